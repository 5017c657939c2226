"""The pictures of a factorial study, as PNG bytes: main effects, and a map of interactions."""

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from trl_ablate.run.picture import BLUE, FAINT, INK, STYLE, png_of
from trl_ablate.run.untrusted import for_picture
from trl_ablate.study.report.analysis import Analysis
from trl_ablate.study.report.document import Picture
from trl_ablate.study.report.effects import Effect
from trl_ablate.study.report.factorial import Factorial
from trl_ablate.study.report.numbers import signed
from trl_ablate.study.report.pictures import DPI

PANEL_WIDTH, PANEL_HEIGHT = 2.3, 2.9
CELL_INCHES = 1.05
COLOUR_MAP = "RdBu"
LABEL_LETTERS = 24
NOISE = 1.5
"""The colours reach to this multiple of half an interval at least, so that noise stays pale."""


def effect_pictures(found: Factorial, analysis: Analysis) -> list[Picture]:
    """Main effects, and interactions if there are two factors or more."""
    if not any(found.outcomes.values()):
        return []
    metric = analysis.outcome_name
    about = (
        f"fitted mean {metric} at each level of every factor, over all levels of the others; dots "
        "are the cells, crosses those with collapsed runs; bars are the intervals of the "
        "difference from the first level"
    )
    pictures = [Picture("effects.png", _draw_main_effects(found, analysis), about)]
    if any(effect.is_interaction for effect in found.effects):
        about = (
            "interactions as differences of differences; a frame marks one that is distinguishable "
            "from none, a star one that cannot be separated from another effect"
        )
        pictures.append(Picture("interactions.png", _draw_interactions(found), about))
    return pictures


def _draw_main_effects(found: Factorial, analysis: Analysis) -> bytes:
    factors = list(found.levels)
    with matplotlib.rc_context(STYLE):
        size = (max(5.0, PANEL_WIDTH * len(factors)), PANEL_HEIGHT)
        figure = Figure(size, dpi=DPI, layout="constrained")
        panels = figure.subplots(1, len(factors), sharey=True, squeeze=False)[0]
        for axes, factor in zip(panels, factors, strict=True):
            _main_panel(axes, factor, found, analysis)
        panels[0].set_ylabel(for_picture(analysis.outcome_name), parse_math=False)
        return png_of(figure)


def _main_panel(axes: Axes, factor: str, found: Factorial, analysis: Analysis) -> None:
    """Cell means as dots, the fitted means of the levels as a line."""
    levels = found.levels[factor]
    for name, cell in found.cells.items():
        mean = analysis.arm(name).intervals[analysis.decide_on].mean
        if mean is not None:
            mark, place = "x" if name in found.collapsed else "o", levels.index(cell[factor])
            axes.plot([place], [mean], mark, color=FAINT, markersize=4, alpha=0.7)
    mains = [e for e in found.effects if [level[0] for level in e.term] == [factor]]
    whole = all(effect.found for effect in mains)  # else they cannot be told from others
    means = {place: found.fit.level_mean((factor, level)) for place, level in enumerate(levels)
             if whole and (factor, level) not in found.fit.unseen}  # fmt: skip
    strong = any(effect.verdict.differs for effect in mains)
    colour = BLUE if strong else INK
    for effect in mains:
        if whole and effect.found and effect.found.half_width is not None:
            place = levels.index(str(effect.term[0][1]))
            axes.errorbar([place], [means[place]], [effect.found.half_width], color=colour,
                          capsize=4, linewidth=1.2)  # fmt: skip
    axes.plot([*means], [*means.values()], "o-", color=colour, linewidth=2.2 if strong else 1.4,
              markersize=6)  # fmt: skip
    axes.set_xticks(range(len(levels)), [_short(level) for level in levels], parse_math=False)
    axes.set_xlim(-0.5, len(levels) - 0.5)
    axes.set_title(_short(factor), loc="left", fontsize=9, color=INK, parse_math=False,
                   fontweight="bold" if strong else "normal")  # fmt: skip


def _draw_interactions(found: Factorial) -> bytes:
    """A triangle of the contrasts of each pair of factors."""
    pairs = [effect for effect in found.effects if effect.is_interaction]
    columns, rows = (list(dict.fromkeys(effect.term[i] for effect in pairs)) for i in (0, 1))
    values = np.full((len(rows), len(columns)), np.nan)
    sizes = [0.0]
    for effect in pairs:
        if effect.found is not None:
            first, second = effect.term
            values[rows.index(second), columns.index(first)] = effect.found.estimate
            sizes += [abs(effect.found.estimate), NOISE * (effect.found.half_width or 0.0)]
    limit = max(sizes) or 1.0
    with matplotlib.rc_context({**STYLE, "axes.grid": False}):
        size = (max(5.0, 2.6 + CELL_INCHES * len(columns)), 1.3 + 0.62 * CELL_INCHES * len(rows))
        figure = Figure(size, dpi=DPI, layout="constrained")
        axes = figure.subplots()
        axes.imshow(values, cmap=COLOUR_MAP, vmin=-limit, vmax=limit, aspect="auto")
        for effect in pairs:
            first, second = effect.term
            _interaction_cell(axes, columns.index(first), rows.index(second), effect, limit)
        across, up = ([f"{_short(factor)}\n{_short(level)}" for factor, level in of]
                      for of in (columns, rows))  # fmt: skip
        axes.set_xticks(range(len(columns)), across, parse_math=False)
        axes.set_yticks(range(len(rows)), up, parse_math=False)
        axes.set_title("interactions (differences of differences)", loc="left", fontsize=10,
                       fontweight="bold", color=INK)  # fmt: skip
        return png_of(figure)


def _interaction_cell(axes: Axes, column: int, row: int, effect: Effect, limit: float) -> None:
    if effect.found is None:
        axes.text(column, row, "not\nseparable", ha="center", va="center", fontsize=7, color=FAINT)
        return
    strong, dark = effect.verdict.differs, abs(effect.found.estimate) > 0.6 * limit
    text = signed(effect.found.estimate) + "*" * bool(effect.aliases)
    axes.text(column, row, text, ha="center", va="center", fontsize=8,
              color="white" if dark else INK,
              fontweight="bold" if strong else "normal")  # fmt: skip
    if strong:
        frame = (column - 0.47, row - 0.46), 0.94, 0.92
        axes.add_patch(Rectangle(*frame, fill=False, edgecolor=INK, linewidth=2))


def _short(text: object) -> str:
    return for_picture(str(text), LABEL_LETTERS)
