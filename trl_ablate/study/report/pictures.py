"""The pictures of curves, as PNG bytes, also of tuned values, and what all pictures share.

One colour per arm in every panel; names at the ends of the lines instead of a legend; seeds as a
band from lowest to highest. Pyplot is not used: figures are created and saved without a display.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from trl_ablate.run.picture import INK, PALETTE, STYLE, WATCHED, png_of
from trl_ablate.run.untrusted import for_picture
from trl_ablate.study.factors import level_text
from trl_ablate.study.report.analysis import STATISTICS, Analysis, ArmResult
from trl_ablate.study.report.costs import TOKENS, Cost, axis_of_cost
from trl_ablate.study.report.curves import Run
from trl_ablate.study.report.document import Picture
from trl_ablate.study.report.tuned import Trials, TunedRuns

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


def looks(names: Sequence[str]) -> dict[str, Look]:
    """The reference in the text colour, the others in the palette's order, then again dashed."""
    found: dict[str, Look] = {}
    for position, name in enumerate(names):
        turn, colour = divmod(position - 1, len(PALETTE))
        found[name] = (INK, "-") if position == 0 else (PALETTE[colour], DASHES[turn % len(DASHES)])
    return found


def about_bands(analysis: Analysis) -> str:
    """What the alternative text says of the bands, where there are any."""
    return ", bands go from the lowest to the highest seed" * (len(analysis.arms) <= BANDS)


def draw_curves(
    analysis: Analysis, published: Sequence[Run] = (), *, unit: str = "GRPO steps"
) -> bytes:
    """The metric against steps, and time or tokens; gradient norm, length, entropy; published
    curves, if any."""
    arms, metric = analysis.arms, analysis.metric
    watched = [name for name in WATCHED if any(name in run.series for run in analysis.runs)]
    cost, costly = axis_of_cost(analysis.runs, metric)
    timed = any(line_of(arm.runs, metric, cost=cost) for arm in arms)
    styles = looks([arm.name for arm in arms])
    with matplotlib.rc_context(STYLE):
        rows = [TOP_HEIGHT] + [SMALL_HEIGHT] * bool(watched) + [TOP_HEIGHT] * bool(published)
        figure = Figure((WIDTH, sum(rows) + len(rows) * (TITLE_SPACE + AXIS_SPACE)), dpi=DPI)
        bottoms = _bottoms(figure, rows)
        top = _row(figure, bottoms[0], TOP_HEIGHT, 1 + timed, labels=list(styles))
        _metric_panel(top[0], arms, metric, styles, unit)
        if timed:
            _metric_panel(top[1], arms, metric, styles, unit, against=(cost, costly))
        if watched:
            panels = _row(figure, bottoms[1], SMALL_HEIGHT, len(watched))
            for axes, name in zip(panels, watched, strict=True):
                _watched_panel(axes, arms, name, styles, unit)
        if published:
            _published_row(figure, bottoms[-1], published, metric)
        return png_of(figure)


def _metric_panel(
    axes: Axes, arms: Sequence[ArmResult], metric: str, styles: dict[str, Look], unit: str,
    *, against: tuple[Cost, str] | None = None,
) -> None:  # fmt: skip
    """Over steps with labels and collapses, or over a cost."""
    cost, costly = against or (None, "")
    lines = _lines({arm.name: arm.runs for arm in arms}, metric, cost=cost)
    scale, unit = _unit(costly, lines.values()) if against else (1.0, unit)
    for name, line in reversed(lines.items()):  # the reference on top
        width = 2.2 if name == arms[0].name else 1.7
        _draw(axes, line, styles[name], scale=scale, width=width, band=len(lines) <= BANDS)
    collapsed = False if against else _mark_collapses(axes, arms, metric, styles)
    note = "  (a cross marks a collapse)" if collapsed else ""
    text = metric + (f" against {costly}" if against else note)
    _finish(axes, lines, styles if not against else None, text, unit=unit, scale=scale)


def _finish(
    axes: Axes, lines: Mapping[str, Line], labelled: dict[str, Look] | None, text: str, *,
    unit: str, scale: float = 1.0,
) -> None:  # fmt: skip
    """The axes and the title, and names at the ends of the lines in their colours."""
    axes.set_xlabel(unit)
    title(axes, text)
    longest = max((line.x[-1] / scale for line in lines.values()), default=0)
    if longest > 0:
        axes.set_xlim(0, longest * 1.01)
    if labelled is not None:
        ends = {name: (line.x[-1], line.mean[-1]) for name, line in lines.items()}
        label_ends(axes, ends, {name: labelled[name][0] for name in ends})


def _lines(
    arms: Mapping[str, Sequence[Run]], metric: str, *, cost: Cost | None = None,
    smooth: bool = False,
) -> dict[str, Line]:  # fmt: skip
    found = {arm: line_of(runs, metric, cost=cost, smooth=smooth) for arm, runs in arms.items()}
    return {arm: line for arm, line in found.items() if line is not None}


def _watched_panel(
    axes: Axes, arms: Sequence[ArmResult], metric: str, styles: dict[str, Look], unit: str
) -> None:
    lines = _lines({arm.name: arm.runs for arm in arms}, metric, smooth=True)
    for name, line in reversed(lines.items()):
        _draw(axes, line, styles[name], width=1.3, band=len(lines) <= BANDS_IN_SMALL_PANELS)
    values = np.concatenate([line.mean for line in lines.values()])
    if values.min() > 0 and values.max() / values.min() > LOG_SCALE_RANGE:
        axes.set_yscale("log")
    _finish(axes, lines, None, WATCHED[metric], unit=unit)


def _published_row(figure: Figure, bottom: float, published: Sequence[Run], metric: str) -> None:
    arms: dict[str, list[Run]] = {}
    for run in published:
        if metric in run.series:
            arms.setdefault(run.arm, []).append(run)
    styles = looks(list(arms))
    axes = _row(figure, bottom, TOP_HEIGHT, 1, labels=list(arms))[0]
    lines = _lines(arms, metric)
    for arm, line in reversed(lines.items()):
        _draw(axes, line, styles[arm], width=1.7)
    _finish(axes, lines, styles, f"{metric}, published curves", unit="steps")


def _draw(
    axes: Axes, line: Line, look: Look, *, width: float, scale: float = 1.0, band: bool = True
) -> None:
    colour, dash = look
    x = line.x / scale
    if line.runs > 1 and band:
        axes.fill_between(x, line.low, line.high, color=colour, alpha=0.13, linewidth=0)
    marker = "o" if len(x) == 1 else None
    axes.plot(x, line.mean, color=colour, linestyle=dash, linewidth=width, marker=marker,
              solid_capstyle="round")  # fmt: skip


def _mark_collapses(
    axes: Axes, arms: Sequence[ArmResult], metric: str, styles: dict[str, Look]
) -> bool:
    found = False
    for arm in arms:
        for run, summary in zip(arm.runs, arm.summaries, strict=True):
            if summary is None or summary.collapsed_at is None:
                continue
            series = run.series[metric]
            value = series.values[series.steps.index(summary.collapsed_at)]
            axes.plot([summary.collapsed_at], [value], marker="X", markersize=7, zorder=5,
                      color=styles[arm.name][0], markeredgecolor="white")  # fmt: skip
            found = True
    return found


def _row(
    figure: Figure, bottom: float, height: float, columns: int, labels: Sequence[str] = ()
) -> list[Axes]:
    """Panels of equal width side by side; the first has space for its labels on its right."""
    space = gutter([for_picture(label) for label in labels]) if labels else 0.0
    width = (WIDTH - MARGIN - 0.2 - (columns - 1) * GAP - space) / columns
    lefts = [MARGIN + i * (width + GAP) + space * (i > 0) for i in range(columns)]
    return [axes_at(figure, left, bottom, width, height) for left in lefts]


def axes_at(figure: Figure, left: float, bottom: float, width: float, height: float) -> Axes:
    across, up = figure.get_size_inches()
    return figure.add_axes((left / across, bottom / up, width / across, height / up))


def _bottoms(figure: Figure, rows: Sequence[float]) -> list[float]:
    place, found = float(figure.get_figheight()), []
    for height in rows:
        place -= TITLE_SPACE + height
        found.append(place)
        place -= AXIS_SPACE
    return found


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
    key, what = found.tuning.key, f"{STATISTICS[found.tuning.by]} {found.metric}"
    with matplotlib.rc_context(STYLE):
        across = TUNED_WIDTH + gutter([for_picture(arm) for arm in found.arms])
        figure = Figure((across, TUNED_HEIGHT), dpi=DPI)
        axes = figure.add_axes((0.62 / across, 0.16, (TUNED_WIDTH - 0.9) / across, 0.7))
        xs, styles = _scale(axes, found), looks(list(found.arms))
        for arm, tried in reversed(found.trials.items()):
            drawn = [(x, each) for x, each in zip(xs, tried, strict=True) if each.scores]
            if drawn:
                ends[arm] = _draw_trials(axes, drawn, styles[arm])
        axes.set_xlabel(for_picture(key), parse_math=False)
        axes.set_title(
            for_picture(f"{what} of trials (a cross marks a collapse)", 110), loc="left",
            fontsize=10, fontweight="bold", parse_math=False,
        )  # fmt: skip
        label_ends(axes, ends, {arm: styles[arm][0] for arm in ends})
        about = (
            f"{what} against {key}: a line through the mean of each arm's trials, dots for single "
            "trials, crosses for collapsed ones"
        )
        return [Picture("sensitivity.png", png_of(figure), about)] if ends else []


def _draw_trials(axes: Axes, drawn: list[tuple[float, Trials]], look: Look) -> tuple[float, float]:
    """Draw the line of an arm; its right end."""
    colour, dash = look
    means = sorted((x, each.mean or 0.0) for x, each in drawn)
    axes.plot([x for x, _ in means], [y for _, y in means], color=colour, linestyle=dash,
              linewidth=1.7)  # fmt: skip
    for x, each in drawn:
        axes.plot([x] * len(each.scores), each.scores, "o", color=colour, markersize=3.5, alpha=0.6)
        axes.plot([x] * len(each.collapsed), each.collapsed, "X", color=colour, markersize=8,
                  markeredgecolor="white", zorder=5)  # fmt: skip
    return means[-1]


def _scale(axes: Axes, found: TunedRuns) -> list[float]:
    """The places of the values on the axis: numbers to scale, others side by side."""
    numbers, values = found.numbers, found.tuning.values
    if numbers and min(numbers) > 0 and max(numbers) / min(numbers) >= LOG_RANGE:
        axes.set_xscale("log")
    places = numbers or [float(place) for place in range(len(values))]
    axes.set_xticks(places, [for_picture(level_text(v), 16) for v in values], parse_math=False)
    axes.minorticks_off()
    return places
