"""The pictures of curves, as PNG bytes, also of tuned values, and what all pictures share.

One colour per arm in every panel; names at the ends of the lines instead of a legend; seeds as a
band from lowest to highest. Pyplot is not used: figures are created and saved without a display.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.optimize import isotonic_regression

from trl_ablate.run.picture import INK, PALETTE, STYLE, WATCHED, png_of
from trl_ablate.run.untrusted import for_picture
from trl_ablate.study.factors import level_text
from trl_ablate.study.report.analysis import Analysis
from trl_ablate.study.report.costs import TOKENS, Cost, axis_of_cost
from trl_ablate.study.report.curves import Run
from trl_ablate.study.report.document import Picture
from trl_ablate.study.report.tuned import TunedRuns

LABEL_SIZE, LABEL_INCHES, INCHES_PER_LETTER = 8.5, 12 / 72, 0.074
LEADER_INCHES = 0.18
SMOOTHED_POINTS = 25
"""A noisy metric is averaged so that about this many independent points are left."""
TUNED_WIDTH, TUNED_HEIGHT = 7.2, 3.6
LOG_RANGE = 10.0
"""Tuned values, if positive, that span this factor or more are drawn on a logarithmic axis."""
DASHES = ("-", (0, (4, 1.5)), (0, (1, 1.2)))

WIDTH, MARGIN, GAP = 11.5, 0.62, 0.75
TOP_HEIGHT, SMALL_HEIGHT, TITLE_SPACE, AXIS_SPACE = 3.3, 1.75, 0.42, 0.55
DPI = 110
LOG_SCALE_RANGE = 30.0
BANDS, BANDS_IN_SMALL_PANELS = 8, 3
"""Up to how many arms are drawn with bands, which hide each other."""
TITLE_LETTERS = 110

Look = tuple[str, str | tuple[int, tuple[float, float]]]
"""Colour and dash of an arm."""


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
    drawn = []
    for run in [run for run in runs if run.counts] or runs:
        series = run.series.get(metric)
        if series and series.values:
            paid = cost(run, series) if cost else series.steps
            drawn += [] if paid is None else [(series, paid)]
    if not drawn:
        return None
    steps = np.array(sorted({step for series, _ in drawn for step in series.steps}))
    # interpolated between points, held at both ends
    values = np.array([np.interp(steps, series.steps, series.values) for series, _ in drawn])
    if smooth:  # a centred mean, whose window shrinks at the ends: no value is invented
        window = np.ones(len(steps) // SMOOTHED_POINTS // 2 * 2 + 1)
        inside = np.convolve(np.ones(len(steps)), window, "same")
        values = np.array([np.convolve(row, window, "same") for row in values]) / inside
    x = np.mean([np.interp(steps, s.steps, paid) for s, paid in drawn], axis=0) if cost else steps
    return Line(x, values.mean(axis=0), values.min(axis=0), values.max(axis=0), len(drawn))


def gutter(names: Iterable[str]) -> float:
    """Width in inches of the longest name and its value in a picture."""
    return 0.3 + INCHES_PER_LETTER * max((len(name) + 6 for name in names), default=0)


def label_ends(
    axes: Axes, ends: Mapping[str, tuple[float, float]], styles: Mapping[str, Look]
) -> None:
    """Names at the right edge, moved apart if lines end close together, each with a thin leader."""
    if not ends:
        return
    low, high = axes.get_ylim()
    box = np.asarray(axes.get_window_extent().size) / axes.figure.dpi
    spacing = (high - low) * LABEL_INCHES / box[1]
    names = sorted(ends, key=lambda name: ends[name][1])
    places = spread([ends[name][1] for name in names], spacing, low, high)
    start, end = axes.get_xlim()
    edge = end + (end - start) * LEADER_INCHES / box[0]
    for name, place in zip(names, places, strict=True):
        (x, y), colour = ends[name], styles[name][0]
        axes.annotate(
            f"{for_picture(name)}  {y:.2f}", (x, y), (edge, place), textcoords="data", va="center",
            fontsize=LABEL_SIZE, color=colour, annotation_clip=False, parse_math=False,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.6, "alpha": 0.6,
                        "shrinkA": 1, "shrinkB": 2, "relpos": (0, 0.5)},
        )  # fmt: skip


def spread(places: Sequence[float], spacing: float, low: float, high: float) -> list[float]:
    """Ascending positions at least `spacing` apart, as near to the given ones as possible, inside
    the limits; too many of them exceed the upper limit."""
    offsets = spacing * np.arange(len(places))
    free = isotonic_regression(np.asarray(places) - offsets).x + offsets if len(places) else offsets
    return list(np.maximum(np.minimum(free, high - offsets[::-1]), low + offsets))


def looks(names: Sequence[str]) -> dict[str, Look]:
    """The reference in the text colour, the others in the palette's order, then again dashed."""
    found: dict[str, Look] = {}
    for position, name in enumerate(names):
        turn, colour = divmod(position - 1, len(PALETTE))
        found[name] = (INK, "-") if position == 0 else (PALETTE[colour], DASHES[turn % len(DASHES)])
    return found


def about_bands(analysis: Analysis) -> str:
    """What the alternative text says of the bands, where there are any."""
    several = any(sum(run.counts for run in arm.runs) > 1 for arm in analysis.arms)
    return ", bands go from the lowest to the highest seed" * (
        several and len(analysis.arms) <= BANDS
    )


def about_curves(analysis: Analysis, unit: str) -> str:
    """The alternative text of `draw_curves`."""
    cost, costly = axis_of_cost(analysis.runs, analysis.metric, analysis.beside)
    arms = {arm.name: arm.runs for arm in analysis.arms}
    against = unit + f" and {costly}" * bool(_lines(arms, analysis.metric, cost=cost))
    below = [text.partition(" (")[0] for name, text in WATCHED.items() if _lines(arms, name)]
    drawn = ", ".join([f"{analysis.metric} against {against}", *below])
    return f"{drawn}; lines are means over seeds{about_bands(analysis)}"


def draw_curves(
    analysis: Analysis, published: Sequence[Run] = (), *, unit: str = "GRPO steps"
) -> bytes:
    """The metric against steps, and time or tokens; gradient norm, length, entropy; published
    curves, if any."""
    arms, metric = {arm.name: arm.runs for arm in analysis.arms}, analysis.metric
    watched = {name: _lines(arms, name, smooth=True) for name in WATCHED}
    watched = {name: lines for name, lines in watched.items() if lines}
    cost, costly = axis_of_cost(analysis.runs, metric, analysis.beside)
    paid, styles = _lines(arms, metric, cost=cost), looks(list(arms))
    others: dict[str, list[Run]] = {}
    for run in published:
        if metric in run.series:
            others.setdefault(run.arm, []).append(run)
    with matplotlib.rc_context(STYLE):
        rows = [_height(arms)] + [SMALL_HEIGHT] * bool(watched) + [_height(others)] * bool(others)
        place, bottoms = sum(rows) + len(rows) * (TITLE_SPACE + AXIS_SPACE), list[float]()
        figure = Figure((WIDTH, place), dpi=DPI)
        for height in rows:
            bottoms.append(place - (TITLE_SPACE + height))
            place = bottoms[-1] - AXIS_SPACE
        left, *right = _row(figure, bottoms[0], rows[0], 1 + bool(paid), labels=arms)
        note = "  (a cross marks a collapse)" * _mark_collapses(left, analysis, styles)
        _panel(left, _lines(arms, metric), styles, metric + note, unit, heavy=True, labelled=True)
        for axes in right:
            scale, name = _unit(costly, paid.values())
            text = f"{metric} against {costly}"
            _panel(axes, paid, styles, text, name, scale=scale, heavy=True)
        panels = _row(figure, bottoms[1], SMALL_HEIGHT, len(watched)) if watched else []
        for axes, (name, lines) in zip(panels, watched.items(), strict=True):
            means = np.concatenate([line.mean for line in lines.values()])
            if means.min() > 0 and means.max() / means.min() > LOG_SCALE_RANGE:
                axes.set_yscale("log")
            _panel(axes, lines, styles, WATCHED[name], unit, width=1.3, bands=BANDS_IN_SMALL_PANELS)
        if others:
            (axes,) = _row(figure, bottoms[-1], rows[-1], 1, labels=others)
            text, lines = f"{metric}, published curves", _lines(others, metric)
            styles = looks(list(others))
            _panel(axes, lines, styles, text, "steps", bands=len(others), labelled=True)
        return png_of(figure)


def _lines(
    arms: Mapping[str, Sequence[Run]], metric: str, *, cost: Cost | None = None,
    smooth: bool = False,
) -> dict[str, Line]:  # fmt: skip
    found = {arm: line_of(runs, metric, cost=cost, smooth=smooth) for arm, runs in arms.items()}
    return {arm: line for arm, line in found.items() if line is not None}


def _panel(
    axes: Axes, lines: dict[str, Line], styles: Mapping[str, Look], text: str, unit: str, *,
    scale: float = 1.0, width: float = 1.7, heavy: bool = False, bands: int = BANDS,
    labelled: bool = False,
) -> None:  # fmt: skip
    """Draw the lines, the reference on top and wider if `heavy`, with bands up to that many lines;
    `scale` is what the unit has of their x."""
    reference = next(iter(styles)) if heavy else None
    for name, line in reversed(lines.items()):
        (colour, dash), x = styles[name], line.x / scale
        if line.runs > 1 and len(lines) <= bands:
            axes.fill_between(x, line.low, line.high, color=colour, alpha=0.13, linewidth=0)
        axes.plot(x, line.mean, color=colour, linestyle=dash, solid_capstyle="round",
                  linewidth=2.2 if name == reference else width,
                  marker="o" if len(x) == 1 else None)  # fmt: skip
    axes.set_xlabel(unit)
    title(axes, text)
    first = min((line.x[0] / scale for line in lines.values()), default=0)
    longest = max((line.x[-1] / scale for line in lines.values()), default=0)
    if longest > 0:
        axes.set_xlim(first if longest / 2 < first < longest else 0, longest * 1.01)
    if labelled:
        ends = {name: (line.x[-1], line.mean[-1]) for name, line in lines.items()}
        label_ends(axes, ends, styles)


def _mark_collapses(axes: Axes, analysis: Analysis, styles: Mapping[str, Look]) -> bool:
    found = [
        (arm.name, run.series[analysis.metric], summary.collapsed_at)
        for arm in analysis.arms
        for run, summary in zip(arm.runs, arm.summaries, strict=True)
        if summary is not None and summary.collapsed_at is not None
    ]
    for name, series, at in found:
        axes.plot([at], [series.values[series.steps.index(at)]], marker="X", markersize=7,
                  zorder=5, color=styles[name][0], markeredgecolor="white")  # fmt: skip
    return bool(found)


def _height(labels: Collection[str]) -> float:
    """Of a panel in inches, in which all labels have their place."""
    return max(TOP_HEIGHT, len(labels) * LABEL_INCHES)


def _row(
    figure: Figure, bottom: float, height: float, columns: int, labels: Collection[str] = ()
) -> list[Axes]:
    """Panels of equal width side by side; the first has space for its labels on its right."""
    space = gutter(map(for_picture, labels)) if labels else 0.0
    width = (WIDTH - MARGIN - 0.2 - (columns - 1) * GAP - space) / columns
    lefts = [MARGIN + i * (width + GAP) + space * (i > 0) for i in range(columns)]
    return [axes_at(figure, left, bottom, width, height) for left in lefts]


def axes_at(figure: Figure, left: float, bottom: float, width: float, height: float) -> Axes:
    across, up = figure.get_size_inches()
    return figure.add_axes((left / across, bottom / up, width / across, height / up))


def title(axes: Axes, text: str, start: float = 0.0) -> None:
    """Above the axes; from `start` on, as a share of their width."""
    axes.set_title(
        for_picture(text, TITLE_LETTERS), loc="left", x=start, fontsize=10, fontweight="bold",
        color=INK, pad=8, parse_math=False,
    )  # fmt: skip


def _unit(costly: str, lines: Iterable[Line]) -> tuple[float, str]:
    """By what an axis of tokens or time is divided, and its name."""
    longest = max((line.x[-1] for line in lines), default=0.0)
    if costly == TOKENS:
        return (1e6, "million tokens") if longest > 2e6 else (1e3, "thousand tokens")
    units = ((7200, 3600.0, "hours"), (120, 60.0, "minutes"))
    scale, unit = next(((s, u) for most, s, u in units if longest > most), (1.0, "s"))
    return scale, f"wall-clock ({unit})"


def sensitivity(found: TunedRuns) -> list[Picture]:
    """The outcome of the trials against the tuned value, a line for each arm; none without any."""
    ends: dict[str, tuple[float, float]] = {}
    key, by, what = found.tuning.key, found.tuning.by, found.outcome_name
    with matplotlib.rc_context(STYLE):
        across = TUNED_WIDTH + gutter(map(for_picture, found.arms))
        figure = Figure((across, TUNED_HEIGHT), dpi=DPI)
        axes = figure.add_axes((0.62 / across, 0.16, (TUNED_WIDTH - 0.9) / across, 0.7))
        places, styles = _places(axes, found), looks(list(found.arms))
        for arm, tried in reversed(found.trials.items()):
            colour, dash = styles[arm]
            drawn = [(x, each) for x, each in zip(places, tried, strict=True) if each.ended]
            means = sorted((x, each.intervals[by].mean or 0.0) for x, each in drawn)
            axes.plot(*zip(*means, strict=True), color=colour, linestyle=dash, linewidth=1.7)
            for x, each in drawn:
                scores = [summary.value(by) for summary in each.known]
                fallen = [summary.value(by) for summary in each.known if summary.collapsed]
                axes.plot([x] * len(scores), scores, "o", color=colour, markersize=3.5,
                          alpha=0.6)  # fmt: skip
                axes.plot([x] * len(fallen), fallen, "X", color=colour, markersize=8,
                          markeredgecolor="white", zorder=5)  # fmt: skip
            ends |= {arm: means[-1]} if means else {}
        axes.set_xlabel(for_picture(key), parse_math=False)
        axes.set_title(
            for_picture(f"{what} of trials (a cross marks a collapse)", TITLE_LETTERS), loc="left",
            fontsize=10, fontweight="bold", parse_math=False,
        )  # fmt: skip
        label_ends(axes, ends, styles)
        about = (
            f"{what} against {key}: a line through the mean of each arm's trials, dots for single "
            "trials, crosses for collapsed ones"
        )
        return [Picture("sensitivity.png", png_of(figure), about)] if ends else []


def _places(axes: Axes, found: TunedRuns) -> list[float]:
    """The places of the values on the axis: numbers to scale, others side by side."""
    numbers, values = found.numbers, found.tuning.values
    if numbers and min(numbers) > 0 and max(numbers) / min(numbers) >= LOG_RANGE:
        axes.set_xscale("log")
    places = numbers or [float(place) for place in range(len(values))]
    axes.set_xticks(places, [for_picture(level_text(v), 16) for v in values], parse_math=False)
    axes.minorticks_off()
    return places
