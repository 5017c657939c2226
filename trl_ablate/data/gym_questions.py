"""Questions of reasoning-gym's tasks: `dataset: reasoning_gym/chain_sum`.

The setting `gym` has fields of the task's config, among them `size` (of the training questions,
unless train_size is given) and `seed`. Item i of a task is drawn with seed + i, so that questions
of an evaluation begin at a seed far away.
"""

import json
from typing import Any

from trl_ablate.data.choice import Selection, Source
from trl_ablate.errors import ConfigurationError
from trl_ablate.named_code import one_line
from trl_ablate.reward_specs import GYM
from trl_ablate.rewards.gym import create

USUAL_SIZE = 500
"""As in reasoning-gym."""
FAR_AWAY = 10**9
"""Added to the seed for every split but `train`."""


def is_gym(name: str) -> bool:
    return name.startswith(GYM)


def gym_rows(source: Source, selection: Selection) -> list[dict[str, Any]]:
    """As many questions as the selection asks for, in the order of their index."""
    config = dict(source.gym or {})
    size = selection.size or config.get("size", USUAL_SIZE)
    seed = config.get("seed", selection.seed)
    for name, value, least in (("size", size, 1), ("seed", seed, 0)):
        if type(value) is not int or value < least:
            raise ConfigurationError(
                f"gym: {name} is {str(value)[:80]}; give a whole number from {least} on"
            )
    seed = seed if source.split == "train" else seed + FAR_AWAY
    config |= {"size": size, "seed": seed}
    task = source.name.removeprefix(GYM)
    made = create(task, config)
    described = json.dumps({"task": task, "config": config}, sort_keys=True)
    try:
        return [_row(made[index], described, index) for index in range(size)]
    except Exception as error:  # of the task's own code
        raise ConfigurationError(
            f"dataset '{source.name}' cannot make its questions with gym {str(config)[:200]}: "
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
