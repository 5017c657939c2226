"""The pictures of a report, as PNG bytes: curves, and differences with their intervals.

One colour per arm in every panel; names at the ends of the lines instead of a legend; seeds as a
band from lowest to highest. Pyplot is not used: figures are created and saved without a display.
"""

from collections.abc import Iterable, Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from trl_ablate.run.picture import FAINT, INK, PALETTE, STYLE, WATCHED, png_of
from trl_ablate.run.untrusted import for_picture
from trl_ablate.study.report.analysis import Analysis, ArmResult
from trl_ablate.study.report.costs import TIME, TOKENS, Cost, axis_of_cost
from trl_ablate.study.report.curves import Run
from trl_ablate.study.report.document import Picture
from trl_ablate.study.report.lines import LABEL_SIZE, Line, gutter, label_ends, line_of
from trl_ablate.study.report.stats import Comparison

DASHES = ("-", (0, (4, 1.5)), (0, (1, 1.2)))

WIDTH, MARGIN, GAP = 11.5, 0.62, 0.75
TOP_HEIGHT, SMALL_HEIGHT, TITLE_SPACE, AXIS_SPACE = 3.3, 1.75, 0.42, 0.55
DPI = 110
LOG_SCALE_RANGE = 30.0
BANDS_IN_SMALL_PANELS = 3
PAIR_LETTERS = 60
"""Limit for the letters of an arm's name and its reference's together."""

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


def draw_curves(analysis: Analysis, published: Sequence[Run] = ()) -> bytes:
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
        _metric_panel(top[0], arms, metric, styles)
        if timed:
            _metric_panel(top[1], arms, metric, styles, against=(cost, costly))
        if watched:
            panels = _row(figure, bottoms[1], SMALL_HEIGHT, len(watched))
            for axes, name in zip(panels, watched, strict=True):
                _watched_panel(axes, arms, name, styles)
        if published:
            _published_row(figure, bottoms[-1], published, metric)
        return png_of(figure)


def difference_picture(analysis: Analysis) -> list[Picture]:
    """The picture of the headline, if there is an interval to draw."""
    compared = [c for c in analysis.decisive.values() if c.difference.mean is not None]
    if all(c.difference.low is None for c in compared):
        return []
    others = " (or the arm after 'vs')" if analysis.against else ""
    about = f"each arm's difference from {analysis.reference.name}{others} with its 95 % interval"
    compared.sort(key=lambda c: c.difference.mean or 0.0)
    return [Picture("differences.png", _draw_differences(compared, analysis), about)]


def _draw_differences(compared: Sequence[Comparison], analysis: Analysis) -> bytes:
    """Each arm's difference from the reference with its 95 % interval, and its collapses. An arm
    with one pair is a hollow point."""
    styles = looks([arm.name for arm in analysis.arms])
    with matplotlib.rc_context({**STYLE, "axes.grid.axis": "x", "axes.spines.left": False}):
        across, height = 0.75 * WIDTH, 0.34 * len(compared) + 0.4
        figure = Figure((across, height + TITLE_SPACE + 0.3), dpi=DPI)
        pairs = (c.arm + _versus(c.arm, analysis) for c in compared)
        labels = [for_picture(pair, PAIR_LETTERS) for pair in pairs]
        collapses = any(analysis.arm(c.arm).collapsed for c in compared)
        left = gutter(labels) - 0.1
        width = across - left - (2.6 if collapses else 1.6)
        axes = _axes(figure, left, 0.3, width, height)
        axes.axvline(0, color=INK, linewidth=1)
        for row, comparison in enumerate(compared):
            _draw_difference(axes, row, comparison, analysis, styles[comparison.arm][0])
        axes.set_yticks(range(len(compared)), labels, parse_math=False)
        axes.set_ylim(-0.6, len(compared) - 0.4)
        shown = for_picture(analysis.reference.name)
        against = "the arm's reference" if analysis.against else shown
        title = f"{analysis.outcome_name} minus that of {against}, 95 % intervals"
        _title(axes, title + "  (a cross: collapses)" * collapses, start=-(left - 0.1) / width)
        return png_of(figure)


def _draw_difference(
    axes: Axes, row: int, comparison: Comparison, analysis: Analysis, colour: str
) -> None:
    difference, arm = comparison.difference, analysis.arm(comparison.arm)
    if difference.low is not None and difference.high is not None:
        axes.hlines(row, difference.low, difference.high, color=colour, linewidth=2.2)
    axes.plot(
        np.array([difference.mean], float), [row], "X" if arm.collapsed else "o", color=colour,
        markersize=7 if arm.collapsed else 6,
        markerfacecolor="white" if difference.low is None else colour,
    )  # fmt: skip
    strong = comparison.verdict.is_final
    collapsed = f", {arm.collapsed}/{arm.ended} collapsed" * bool(arm.collapsed)
    axes.annotate(
        comparison.verdict + collapsed, (1.02, row), xycoords=("axes fraction", "data"),
        va="center", fontsize=LABEL_SIZE, color=INK if strong else FAINT, annotation_clip=False,
        fontweight="bold" if strong else "normal",
    )  # fmt: skip


def _versus(arm: str, analysis: Analysis) -> str:
    return f" vs {analysis.against[arm]}" if arm in analysis.against else ""


def _metric_panel(
    axes: Axes, arms: Sequence[ArmResult], metric: str, styles: dict[str, Look],
    *, against: tuple[Cost, str] | None = None,
) -> None:  # fmt: skip
    """Over GRPO steps with labels and collapses, or over a cost."""
    cost, costly = against or (None, "")
    lines = _lines(arms, metric, cost=cost)
    scale, unit = _unit(costly, lines.values())
    for name, line in reversed(lines.items()):  # the reference on top
        _draw(axes, line, styles[name], scale=scale, width=2.2 if name == arms[0].name else 1.7)
    collapsed = False if against else _mark_collapses(axes, arms, metric, styles)
    axes.set_xlabel(unit)
    note = "  (a cross marks a collapse)" if collapsed else ""
    _title(axes, metric + (f" against {costly}" if against else note))
    _fit_x(axes, [line.x[-1] / scale for line in lines.values()])
    if not against:
        _label(axes, lines, styles)


def _lines(
    arms: Sequence[ArmResult], metric: str, *, cost: Cost | None = None, smooth: bool = False
) -> dict[str, Line]:
    found = {arm.name: line_of(arm.runs, metric, cost=cost, smooth=smooth) for arm in arms}
    return {name: line for name, line in found.items() if line is not None}


def _label(axes: Axes, lines: Mapping[str, Line], styles: dict[str, Look]) -> None:
    ends = {name: (line.x[-1], line.mean[-1]) for name, line in lines.items()}
    label_ends(axes, ends, {name: styles[name][0] for name in ends})


def _watched_panel(
    axes: Axes, arms: Sequence[ArmResult], metric: str, styles: dict[str, Look]
) -> None:
    lines = _lines(arms, metric, smooth=True)
    for name, line in reversed(lines.items()):
        _draw(axes, line, styles[name], width=1.3, band=len(lines) <= BANDS_IN_SMALL_PANELS)
    values = np.concatenate([line.mean for line in lines.values()])
    if values.min() > 0 and values.max() / values.min() > LOG_SCALE_RANGE:
        axes.set_yscale("log")
    axes.set_xlabel("GRPO steps")
    _title(axes, WATCHED[metric])
    _fit_x(axes, [line.x[-1] for line in lines.values()])


def _published_row(figure: Figure, bottom: float, published: Sequence[Run], metric: str) -> None:
    runs = [run for run in published if metric in run.series]
    arms = list(dict.fromkeys(run.arm for run in runs))
    styles = looks(arms)
    axes = _row(figure, bottom, TOP_HEIGHT, 1, labels=arms)[0]
    found = {arm: line_of([run for run in runs if run.arm == arm], metric) for arm in arms}
    lines = {arm: line for arm, line in found.items() if line is not None}
    for arm, line in reversed(lines.items()):
        _draw(axes, line, styles[arm], width=1.7)
    axes.set_xlabel("GRPO steps")
    _title(axes, f"{metric}, published curves")
    _fit_x(axes, [line.x[-1] for line in lines.values()])
    _label(axes, lines, styles)


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
    return [_axes(figure, left, bottom, width, height) for left in lefts]


def _axes(figure: Figure, left: float, bottom: float, width: float, height: float) -> Axes:
    across, up = figure.get_size_inches()
    return figure.add_axes((left / across, bottom / up, width / across, height / up))


def _bottoms(figure: Figure, rows: Sequence[float]) -> list[float]:
    place, found = float(figure.get_figheight()), []
    for height in rows:
        place -= TITLE_SPACE + height
        found.append(place)
        place -= AXIS_SPACE
    return found


def _title(axes: Axes, text: str, start: float = 0.0) -> None:
    """Above the axes; from `start` on, as a share of their width."""
    axes.set_title(
        for_picture(text, TITLE_LETTERS), loc="left", x=start, fontsize=10, fontweight="bold",
        color=INK, pad=8, parse_math=False,
    )  # fmt: skip


def _fit_x(axes: Axes, ends: Sequence[float]) -> None:
    if ends and max(ends) > 0:
        axes.set_xlim(0, max(ends) * 1.01)


def _unit(costly: str, lines: Iterable[Line]) -> tuple[float, str]:
    """By what an axis is divided, and its name."""
    longest = max((line.x[-1] for line in lines), default=0.0)
    if costly == TOKENS:
        return (1e6, "million tokens") if longest > 2e6 else (1e3, "thousand tokens")
    if costly == TIME:
        units = ((7200, 3600.0, "hours"), (120, 60.0, "minutes"))
        scale, unit = next(((s, u) for most, s, u in units if longest > most), (1.0, "s"))
        return scale, f"wall-clock ({unit})"
    return 1.0, "GRPO steps"
