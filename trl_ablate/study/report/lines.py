"""The line of an arm in a picture: the mean over its seeds, and their range."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from trl_ablate.study.report.curves import Run, Series

SMOOTHED_POINTS = 25
"""A noisy metric is averaged so that about this many independent points are left."""


@dataclass(frozen=True)
class Line:
    """Mean, lowest and highest value over runs at each x."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    runs: int


Cost = Callable[[Run, Series], np.ndarray | None]
"""The cost of a run at each step of a curve; None if it is not known."""


def line_of(
    runs: Sequence[Run], metric: str, *, cost: Cost | None = None, smooth: bool = False
) -> Line | None:
    """The arm's line over GRPO steps, or over the mean cost at which its runs reached each step.

    Only runs that ended are used; if none has ended, all others are. A run that ended early keeps
    its last value. None if nothing was logged.
    """
    shown = [run for run in runs if run.counts] or list(runs)
    logged = [(run, run.series[metric]) for run in shown if metric in run.series]
    drawn = [
        (series, paid)
        for run, series in logged
        for paid in [cost(run, series) if cost else np.asarray(series.steps, float)]
        if series.values and paid is not None
    ]
    if not drawn:
        return None
    found = [series for series, _ in drawn]
    steps = np.array(sorted({step for series in found for step in series.steps}))
    values = np.array([_held(series, steps, series.values) for series in found])
    if smooth:
        values = np.array(
            [_rolling_mean(row, max(1, len(steps) // SMOOTHED_POINTS)) for row in values]
        )
    x = np.mean([_held(series, steps, paid) for series, paid in drawn], axis=0) if cost else steps
    return Line(x, values.mean(axis=0), values.min(axis=0), values.max(axis=0), len(found))


def _held(series: Series, steps: np.ndarray, values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Values at `steps`: interpolated between points, held at both ends."""
    return np.interp(steps, series.steps, values)


def _rolling_mean(values: np.ndarray, window: int) -> np.ndarray:
    """A centred mean; the window shrinks at the ends, so that no value is invented."""
    if window == 1:
        return values
    sums = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    low = np.maximum(0, index - window // 2)
    high = np.minimum(len(values), index + window // 2 + 1)
    return (sums[high] - sums[low]) / (high - low)
