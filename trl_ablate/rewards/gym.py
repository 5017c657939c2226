"""Tasks of reasoning-gym: their questions, made from a seed, and their own scorers as a reward.

A question is known by its task, the task's config and its index; the scorer makes it again from
them, so that no column has to hold what the task knows about it. reasoning-gym is optional
(`pip install 'trl-ablate[gym]'`) and takes seconds to import.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from trl_ablate.errors import ConfigurationError
from trl_ablate.named_code import one_line
from trl_ablate.reward_specs import GYM
from trl_ablate.rewards.extract import extract
from trl_ablate.rewards.functions import completion_text


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
        close = get_close_matches(task, DATASETS, n=1)
        meant = f"did you mean '{close[0]}'?" if close else "its documentation lists the tasks"
        raise ConfigurationError(
            f"dataset '{GYM}{task[:80]}' is not a task of reasoning-gym; {meant}"
        )
    given = dict(config)
    if task == "composite" and "datasets" in given:
        given["datasets"] = [DatasetSpec(**{"weight": 1, "config": {}, **one})
                             for one in given["datasets"]]  # fmt: skip
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
    rows = zip(completions, gym, gym_index, strict=True)
    return [
        _score(extract(form, completion_text(text)).answer, described, index)
        for text, described, index in rows
    ]


def _score(answer: str | None, described: str, index: int) -> float | None:
    if answer is None:
        return 0.0
    entry = _entry(described, int(index))
    try:
        return float(_made(described).score_answer(answer, entry))
    except Exception:  # many scorers parse the answer, and raise for text that they do not expect
        return None
