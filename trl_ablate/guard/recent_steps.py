"""The last GRPO steps of a run, and what is usual for it. No torch."""

import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

from trl_ablate.metrics import GRAD_NORM


class Compared(NamedTuple):
    """Values of the last steps, and of the steps before, which are at least as many."""

    late: list[float]
    usual: list[float]


@dataclass
class _Step:
    """A GRPO step: its reward, and each metric's value in every optimizer step that logged one."""

    reward: float
    values: dict[str, list[float]] = field(default_factory=dict)


class RecentSteps:
    """The last `window` GRPO steps, up to `history` steps before them, and the best reward so far.

    Args:
        learned: share of the best reward so far that a step needs to count. Where no reward is
            above 0 yet, every step counts.
    """

    def __init__(self, metrics: Sequence[str], window: int, history: int, learned: float):
        self._metrics = metrics
        self._window = window
        self._learned = learned
        self._steps: deque[_Step] = deque(maxlen=window + history)
        self.best_reward = -math.inf

    def see(self, row: Mapping[str, Any]) -> None:
        """Add a logged row; a row with a reward starts a new GRPO step."""
        reward = finite(row, "reward")
        if reward is not None or not self._steps:
            self._steps.append(_Step(-math.inf if reward is None else reward))
            self.best_reward = max(self.best_reward, self._steps[-1].reward)
        for metric in self._metrics:
            value = finite(row, metric)
            if value is not None and (value or metric != GRAD_NORM):  # 0: there was no gradient
                self._steps[-1].values.setdefault(metric, []).append(value)

    def count(self, metric: str) -> int:
        """How many of these steps have logged a metric."""
        return sum(metric in step.values for step in self._steps)

    def compared(self, metric: str) -> Compared | None:
        """None until twice as many steps as the window has have logged this metric."""
        floor = self._learned * max(self.best_reward, 0.0)
        steps = [
            step.values[metric]
            for step in self._steps
            if metric in step.values and max(step.reward, 0.0) >= floor
        ]
        late, before = steps[-self._window :], steps[: -self._window]
        if len(before) < self._window:
            return None
        return Compared(list(chain.from_iterable(late)), list(chain.from_iterable(before)))


def finite(row: Mapping[str, Any], metric: str) -> float | None:
    """The value of a metric in a row; None if it is missing or not finite."""
    value = row.get(metric)
    return value if value is not None and math.isfinite(value) else None


def upper(values: Sequence[float]) -> float:
    """The 70th percentile of the values (linear interpolation)."""
    return statistics.quantiles(values, n=10, method="inclusive")[6]


def least_mean(values: Sequence[float], window: int) -> float:
    """The lowest mean of `window` consecutive values; with fewer values, the mean of all."""
    starts = range(max(1, len(values) - window + 1))
    return min(statistics.fmean(values[start : start + window]) for start in starts)
