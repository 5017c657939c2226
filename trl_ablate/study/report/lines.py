"""The lines of a picture: the mean over an arm's seeds, their range, and labels at the ends."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

from trl_ablate.run.untrusted import for_picture
from trl_ablate.study.report.costs import Cost
from trl_ablate.study.report.curves import Run

LABEL_SIZE, INCHES_PER_LETTER = 8.5, 0.074
LEADER_INCHES = 0.18
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


def line_of(
    runs: Sequence[Run], metric: str, *, cost: Cost | None = None, smooth: bool = False
) -> Line | None:
    """The arm's line over GRPO steps, or over the mean cost at which its runs reached each step.

    Only runs that ended are used; if none has ended, all others are. A run that ended early keeps
    its last value. None if nothing was logged.
    """
    shown = [run for run in runs if run.counts] or list(runs)
    drawn = []
    for run in shown:
        series = run.series.get(metric)
        if series and series.values:
            paid = cost(run, series) if cost else series.steps
            drawn += [] if paid is None else [(series, paid)]
    if not drawn:
        return None
    steps = np.array(sorted({step for series, _ in drawn for step in series.steps}))
    # interpolated between points, held at both ends
    values = np.array([np.interp(steps, series.steps, series.values) for series, _ in drawn])
    if smooth:
        window = max(1, len(steps) // SMOOTHED_POINTS)
        values = np.array([_rolling_mean(row, window) for row in values])
    x = np.mean([np.interp(steps, s.steps, paid) for s, paid in drawn], axis=0) if cost else steps
    return Line(x, values.mean(axis=0), values.min(axis=0), values.max(axis=0), len(drawn))


def _rolling_mean(values: np.ndarray, window: int) -> np.ndarray:
    """A centred mean; the window shrinks at the ends, so that no value is invented."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    low = np.maximum(0, index - window // 2)
    high = np.minimum(len(values), index + window // 2 + 1)
    return values if window == 1 else (sums[high] - sums[low]) / (high - low)


def gutter(names: Sequence[str]) -> float:
    """Width in inches of the longest name and its value in a picture."""
    return 0.3 + INCHES_PER_LETTER * max((len(name) + 6 for name in names), default=0)


def label_ends(
    axes: Axes, ends: Mapping[str, tuple[float, float]], colours: Mapping[str, str]
) -> None:
    """Names at the right edge, moved apart if lines end close together, each with a thin leader."""
    if not ends:
        return
    low, high = axes.get_ylim()
    box = np.asarray(axes.get_window_extent().size) / axes.figure.dpi
    spacing = (high - low) * (LABEL_SIZE + 3.5) / 72 / box[1]
    names = sorted(ends, key=lambda name: ends[name][1])
    places = spread([ends[name][1] for name in names], spacing, low, high)
    start, end = axes.get_xlim()
    edge = end + (end - start) * LEADER_INCHES / box[0]
    for name, place in zip(names, places, strict=True):
        x, y = ends[name]
        colour = colours[name]
        axes.annotate(
            f"{for_picture(name)}  {y:.2f}", (x, y), (edge, place), textcoords="data", va="center",
            fontsize=LABEL_SIZE, color=colour, annotation_clip=False, parse_math=False,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.6, "alpha": 0.6,
                        "shrinkA": 1, "shrinkB": 2, "relpos": (0, 0.5)},
        )  # fmt: skip


def spread(places: Sequence[float], spacing: float, low: float, high: float) -> list[float]:
    """Ascending positions at least `spacing` apart, as near to the given ones as possible, inside
    the limits.

    If there are too many labels, they keep their spacing and exceed the upper limit.
    """
    from scipy.optimize import isotonic_regression

    offsets = spacing * np.arange(len(places))
    free = isotonic_regression(np.asarray(places) - offsets).x + offsets if len(places) else offsets
    return list(np.maximum(np.minimum(free, high - offsets[::-1]), low + offsets))
