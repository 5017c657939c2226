"""Tasks of reasoning-gym: their questions, made from a seed, and their own scorers as a reward.

`dataset: reasoning_gym/chain_sum` names a task. The setting `gym` has fields of the task's config,
among them `size` (of the training questions, unless train_size is given) and `seed`. A question is
known by its task, the task's config and its index; the scorer makes it again from them, so that no
column has to hold what the task knows about it. reasoning-gym is optional
(`pip install 'trl-ablate[gym]'`) and takes seconds to import.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from trl_ablate.errors import ConfigurationError, nearest
from trl_ablate.named_code import one_line
from trl_ablate.reward_specs import GYM
from trl_ablate.rewards.extract import extract
from trl_ablate.rewards.functions import completion_text

USUAL_SIZE = 500
"""As in reasoning-gym."""
FAR_AWAY = 10**9
"""Added to the seed for every split but `train`: item i of a task is drawn with seed + i."""


def gym_rows(
    dataset: str, gym: Mapping[str, Any] | None, split: str, size: int | None, seed: int
) -> list[dict[str, Any]]:
    """As many questions as are asked for, in the order of their index.

    Args:
        gym: the config of the task, whose own size and seed are used if it has them.
    """
    config = dict(gym or {})
    size = size or config.get("size", USUAL_SIZE)
    seed = config.get("seed", seed)
    for name, value, least in (("size", size, 1), ("seed", seed, 0)):
        if type(value) is not int or value < least:
            raise ConfigurationError(
                f"gym: {name} is {str(value)[:80]}; give a whole number from {least} on"
            )
    config |= {"size": size, "seed": seed if split == "train" else seed + FAR_AWAY}
    task = dataset.removeprefix(GYM)
    made = create(task, config)
    described = json.dumps({"task": task, "config": config}, sort_keys=True)
    try:
        return [_row(made[index], described, index) for index in range(config["size"])]
    except Exception as error:  # of the task's own code
        raise ConfigurationError(
            f"dataset '{dataset}' cannot make its questions with gym {str(config)[:200]}: "
            f"{one_line(error)}; change gym"
        ) from error


def _row(entry: dict[str, Any], described: str, index: int) -> dict[str, Any]:
    """The question and the answer, if the task has one; numbers of its metadata are columns."""
    answer = entry["answer"]
    numbers = {
        name: value
        for name, value in (entry.get("metadata") or {}).items()
        if type(value) is int and name != "source_index"
    }
    return {
        "question": entry["question"],
        "answer": None if answer is None else str(answer),
        **numbers,
        "gym": described,
        "gym_index": index,
    }


def create(task: str, config: Mapping[str, Any]) -> Any:
    """A task's `ProceduralDataset`; `config` has fields of the task's config class."""
    try:
        from reasoning_gym.composite import DatasetSpec
        from reasoning_gym.factory import DATASETS, create_dataset
    except ImportError as error:
        raise ConfigurationError(
            f"dataset '{GYM}{task}' needs reasoning-gym, which is not installed; "
            "pip install 'trl-ablate[gym]'"
        ) from error
    if task not in DATASETS:
        meant = nearest(task, DATASETS) or "; its documentation lists the tasks"
        raise ConfigurationError(
            f"dataset '{GYM}{task[:80]}' is not a task of reasoning-gym{meant}"
        )
    given = dict(config)
    if task == "composite" and "datasets" in given:
        usual = {"weight": 1, "config": {}}
        given["datasets"] = [DatasetSpec(**{**usual, **one}) for one in given["datasets"]]
    try:
        return create_dataset(task, **given)
    except (TypeError, ValueError, AssertionError) as error:
        raise ConfigurationError(
            f"dataset '{GYM}{task}' refuses gym {str(dict(config))[:200]}: {one_line(error)}; give "
            "the fields of the task's config"
        ) from error


@functools.lru_cache(maxsize=8)
def _made(described: str) -> Any:
    found = json.loads(described)
    return create(found["task"], found["config"])


@functools.lru_cache(maxsize=8192)
def _entry(described: str, index: int) -> dict[str, Any]:
    return _made(described)[index]


def score(
    prompts: Sequence[Any],
    completions: Sequence[Any],
    completion_ids: Sequence[Any],
    gym: Sequence[str],
    gym_index: Sequence[int],
    form: str = "r1_zero",
) -> list[float | None]:
    """The task's own score, from 0 to 1, of each completion's answer; 0 without an answer.

    Args:
        form: the template in whose format the answer is given.

    A scorer that raises leaves the completion ungraded.
    """
    answers = [extract(form, completion_text(text)).answer for text in completions]
    return [_score(*row) for row in zip(answers, gym, gym_index, strict=True)]


def _score(answer: str | None, described: str, index: int) -> float | None:
    if answer is None:
        return 0.0
    entry = _entry(described, int(index))
    try:
        return float(_made(described).score_answer(answer, entry))
    except Exception:  # many scorers parse the answer, and raise for text that they do not expect
        return None
