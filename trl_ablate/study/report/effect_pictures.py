"""The pictures of a factorial study, as PNG bytes: main effects, and a map of interactions."""

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from trl_ablate.run.picture import FAINT, INK, STYLE, png_of
from trl_ablate.run.untrusted import for_picture
from trl_ablate.study.report.analysis import Analysis
from trl_ablate.study.report.document import Picture
from trl_ablate.study.report.effects import Effect, Level
from trl_ablate.study.report.factorial import Factorial, index_of
from trl_ablate.study.report.numbers import signed
from trl_ablate.study.report.pictures import DPI

PANEL_WIDTH, PANEL_HEIGHT = 2.3, 2.9
CELL_INCHES = 1.05
COLOUR_MAP = "RdBu"
LABEL_LETTERS = 24
NOISE = 1.5
"""The colours reach to this multiple of half an interval at least."""
BLUE = "#0072B2"


def effect_pictures(found: Factorial, analysis: Analysis) -> list[Picture]:
    """Main effects, and interactions if there are two factors or more."""
    if found.fit is None:
        return []
    metric = analysis.outcome_name
    about = (
        f"fitted mean {metric} at each level of every factor, over all levels of the others; dots "
        "are the cells, crosses those with collapsed runs; bars are the intervals of the "
        "difference from the first level"
    )
    pictures = [Picture("effects.png", _draw_main_effects(found, analysis, metric), about)]
    if any(effect.is_interaction for effect in found.effects):
        about = (
            "interactions as differences of differences; a frame marks one that is distinguishable "
            "from none, a star one that cannot be separated from another effect"
        )
        pictures.append(Picture("interactions.png", _draw_interactions(found), about))
    return pictures


def _draw_main_effects(found: Factorial, analysis: Analysis, metric: str) -> bytes:
    factors = list(found.design.factors)
    with matplotlib.rc_context(STYLE):
        size = (max(5.0, PANEL_WIDTH * len(factors)), PANEL_HEIGHT)
        figure = Figure(size, dpi=DPI, layout="constrained")
        panels = figure.subplots(1, len(factors), sharey=True, squeeze=False)[0]
        for axes, factor in zip(panels, factors, strict=True):
            _main_panel(axes, factor, found, analysis)
        panels[0].set_ylabel(for_picture(metric), parse_math=False)
        return png_of(figure)


def _main_panel(axes: Axes, factor: str, found: Factorial, analysis: Analysis) -> None:
    """Cell means as dots, the fitted means of the levels as a line."""
    fit, levels = found.fit, found.design.factors[factor]
    for name, cell in found.design.cells.items():
        mean = analysis.arm(name).intervals[analysis.decide_on].mean
        if mean is not None:
            mark = "x" if name in found.collapsed else "o"
            axes.plot([index_of(levels, cell[factor])], [mean], mark, color=FAINT, markersize=4,
                      alpha=0.7)  # fmt: skip
    places = [i for i in range(len(levels)) if fit and (factor, i) not in fit.unseen]
    means = {place: fit.level_mean((factor, place)) for place in places if fit}
    mains = [e for e in found.effects if [level[0] for level in e.term] == [factor]]
    strong = any(effect.verdict.differs for effect in mains)
    colour = BLUE if strong else INK
    for effect in mains:
        if effect.found and effect.found.low is not None and effect.found.high is not None:
            half, place = (effect.found.high - effect.found.low) / 2, effect.term[0][1]
            axes.errorbar([place], [means[place]], [half], color=colour, capsize=4, linewidth=1.2)
    axes.plot(places, [*means.values()], "o-", color=colour, linewidth=2.2 if strong else 1.4,
              markersize=6)  # fmt: skip
    names = [_short(found.level((factor, place))) for place in range(len(levels))]
    axes.set_xticks(range(len(levels)), names, parse_math=False)
    axes.set_xlim(-0.5, len(levels) - 0.5)
    axes.set_title(_short(factor), loc="left", fontsize=9, color=INK, parse_math=False,
                   fontweight="bold" if strong else "normal")  # fmt: skip


def _draw_interactions(found: Factorial) -> bytes:
    """A triangle of the contrasts of each pair of factors."""
    pairs = {effect.term: effect for effect in found.effects if effect.is_interaction}
    rows = list(dict.fromkeys(second for _, second in pairs))
    columns = list(dict.fromkeys(first for first, _ in pairs))
    values = np.full((len(rows), len(columns)), np.nan)
    for (first, second), effect in pairs.items():
        if effect.found is not None:
            values[rows.index(second), columns.index(first)] = effect.found.estimate
    limit = _limit(list(pairs.values()))
    style: dict[Any, Any] = {**STYLE, "axes.grid": False}
    with matplotlib.rc_context(style):
        size = (max(5.0, 2.6 + CELL_INCHES * len(columns)), 1.3 + 0.62 * CELL_INCHES * len(rows))
        figure = Figure(size, dpi=DPI, layout="constrained")
        axes = figure.subplots()
        axes.imshow(values, cmap=COLOUR_MAP, vmin=-limit, vmax=limit, aspect="auto")
        for (first, second), effect in pairs.items():
            _interaction_cell(axes, columns.index(first), rows.index(second), effect, limit)
        axes.set_xticks(range(len(columns)), [_label(found, c) for c in columns],
                        parse_math=False)  # fmt: skip
        axes.set_yticks(range(len(rows)), [_label(found, r) for r in rows], parse_math=False)
        axes.set_title("interactions (differences of differences)", loc="left", fontsize=10,
                       fontweight="bold", color=INK)  # fmt: skip
        return png_of(figure)


def _limit(effects: Sequence[Effect]) -> float:
    """The end of the colours: the largest estimate, or an interval, so that noise stays pale."""
    sizes = [0.0]
    for found in (effect.found for effect in effects if effect.found):
        sizes.append(abs(found.estimate))
        if found.high is not None and found.low is not None:
            sizes.append(NOISE * (found.high - found.low) / 2)
    return max(sizes) or 1.0


def _interaction_cell(axes: Axes, column: int, row: int, effect: Effect, limit: float) -> None:
    if effect.found is None:
        axes.text(column, row, "not\nseparable", ha="center", va="center", fontsize=7, color=FAINT)
        return
    strong = effect.verdict.differs
    dark = abs(effect.found.estimate) > 0.6 * limit
    text = signed(effect.found.estimate) + "*" * bool(effect.aliases)
    axes.text(column, row, text, ha="center", va="center", fontsize=8,
              color="white" if dark else INK,
              fontweight="bold" if strong else "normal")  # fmt: skip
    if strong:
        frame = (column - 0.47, row - 0.46), 0.94, 0.92
        axes.add_patch(Rectangle(*frame, fill=False, edgecolor=INK, linewidth=2))


def _label(found: Factorial, level: Level) -> str:
    return f"{_short(level[0])}\n{_short(found.level(level))}"


def _short(text: str) -> str:
    return for_picture(text, LABEL_LETTERS)
