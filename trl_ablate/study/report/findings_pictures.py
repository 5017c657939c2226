"""The picture of the findings: every answer with an interval, and where the two sizes differ."""

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from trl_ablate.run.picture import FAINT, INK, STYLE
from trl_ablate.run.untrusted import for_picture
from trl_ablate.study.report.findings import DOES_NOT, MATTERS, ArmFound
from trl_ablate.study.report.labels import LABEL_SIZE, gutter
from trl_ablate.study.report.pictures import DPI, PALETTE, png_of

WIDTH, ROW, EDGE, RIGHT = 9.6, 0.25, 0.5, 1.2
LETTERS = 64
TITLE = "Final evaluation reward minus that of the reference, with intervals (a cross: collapses)"


def draw_answers(arms: Sequence[ArmFound]) -> bytes | None:
    """The difference of each arm with its interval; None if no arm has one."""
    drawn = [arm for arm in arms if arm.numbers["low"] is not None]
    if not drawn:
        return None
    drawn.sort(key=lambda arm: arm.numbers["difference"])
    labels = [for_picture(f"{arm.words} (against {arm.against})", LETTERS) for arm in drawn]
    with matplotlib.rc_context({**STYLE, "axes.grid.axis": "x", "axes.spines.left": False}):
        left, height = gutter(labels) - 0.1, ROW * len(drawn) + 0.2
        figure = Figure((WIDTH, height + 2 * EDGE), dpi=DPI)
        axes = figure.add_axes(
            (left / WIDTH, EDGE / (height + 2 * EDGE), (WIDTH - left - RIGHT) / WIDTH,
             height / (height + 2 * EDGE))
        )  # fmt: skip
        axes.axvline(0, color=INK, linewidth=1)
        for row, arm in enumerate(drawn):
            colour = _colour(arm.kind)
            of = arm.numbers
            axes.hlines(row, of["low"], of["high"], color=colour, linewidth=2.2)
            mark = "X" if of["collapsed"][0] else "o"
            axes.plot(np.array([of["difference"]]), [row], mark, color=colour, markersize=6)
            axes.annotate(
                for_picture(arm.kind), (1.02, row), xycoords=("axes fraction", "data"),
                va="center", fontsize=LABEL_SIZE, color=INK if arm.kind in MATTERS else FAINT,
                annotation_clip=False,
            )  # fmt: skip
        axes.set_yticks(range(len(drawn)), labels, parse_math=False)
        axes.set_ylim(-0.6, len(drawn) - 0.4)
        figure.text(
            0.2 / WIDTH, 1 - 0.32 / (height + 2 * EDGE), TITLE, fontsize=10, fontweight="bold"
        )
        return png_of(figure)


def _colour(kind: str) -> str:
    return PALETTE[0] if kind in MATTERS else PALETTE[1] if kind in DOES_NOT else FAINT
