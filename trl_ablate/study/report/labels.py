"""Labels at the ends of lines, used instead of a legend."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes

from trl_ablate.run.untrusted import for_picture

LABEL_SIZE, INCHES_PER_LETTER = 8.5, 0.074
LEADER_INCHES = 0.18


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
    clusters: list[list[float]] = []  # each: [sum of wanted first places, number of labels]
    for place in places:
        clusters.append([place, 1])
        while len(clusters) > 1 and _first(clusters[-2]) + clusters[-2][1] * spacing > _first(
            clusters[-1]
        ):
            total, count = clusters.pop()
            clusters[-1][0] += total - clusters[-1][1] * count * spacing
            clusters[-1][1] += count
    found = [_first(c) + i * spacing for c in clusters for i in range(int(c[1]))]
    if found and found[-1] > high:
        found = [min(p, high - (len(found) - 1 - i) * spacing) for i, p in enumerate(found)]
    return [max(place, low + i * spacing) for i, place in enumerate(found)]


def _first(cluster: list[float]) -> float:
    return cluster[0] / cluster[1]
