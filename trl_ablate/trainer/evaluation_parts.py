"""Parts of an evaluation: the rewards of one set, and the questions with one value of a column."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from trl.trainer.utils import get_callable_name, is_async_callable

from trl_ablate.errors import ConfigurationError
from trl_ablate.estimates import Row, summary
from trl_ablate.named_code import waited_for
from trl_ablate.run.untrusted import on_one_line
from trl_ablate.trainer.temporary import replaced

MOST_GROUPS = 50
GROUP = "group"
"""Key of a row's group; its metrics are those of the whole set that measure the answers."""
WHOLE_SET_ONLY = ("mean_length", "truncated", "ungraded")


@dataclass(frozen=True)
class RewardsOfSet:
    """Reward functions that grade one evaluation set in place of the trainer's."""

    functions: list[Callable[..., Any]]
    names: list[str]
    weights: torch.Tensor

    @classmethod
    def of(cls, functions: Sequence[Callable[..., Any]], weights: Sequence[float]):
        names = [get_callable_name(function) for function in functions]
        return cls(
            [_plain(one) for one in functions],
            names,
            torch.tensor(weights, dtype=torch.float32),
        )


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """An async function as a plain one: TRL has an event loop only if the trainer's rewards need
    it."""
    if not is_async_callable(function):
        return function
    return lambda **given: waited_for(function(**given))


def own_rewards(trainer: Any, key: str) -> AbstractContextManager[None]:
    """Until the end of the block, the trainer grades with the rewards of the set, if it has any."""
    own = trainer.rewards_of_sets.get(key)
    if own is None:
        return nullcontext()
    return replaced(
        trainer,
        reward_funcs=own.functions,
        reward_func_names=own.names,
        reward_weights=own.weights.to(trainer.reward_weights.device),
        reward_processing_classes=[None] * len(own.functions),
    )


def of_question(question: Mapping[str, Any], column: str | None) -> dict[str, Any]:
    """The entries of a row that name its question and its group, as far as its set has them."""
    found = {"question": question["question"]} if "question" in question else {}
    if column is not None and column in question:
        value = question[column]
        found[GROUP] = "none" if value is None else on_one_line(str(value))
    return found


def by_group(rows: Sequence[Row], samples: int, column: str | None) -> dict[str, float]:
    """The metrics of each group, as `reward/level=3`, in the order of the groups' names."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if GROUP in row:
            groups.setdefault(row[GROUP], []).append(row)
    if len(groups) > MOST_GROUPS:
        raise ConfigurationError(
            f"eval_by is '{column}', which has {len(groups)} values in the eval questions, such as "
            f"'{min(groups)}'; name a column with at most {MOST_GROUPS}"
        )
    return {
        f"{name}/{column}={group}": value
        for group in sorted(groups)
        for name, value in summary(groups[group], samples).items()
        if name not in WHOLE_SET_ONLY
    }
