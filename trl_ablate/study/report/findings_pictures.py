"""The picture of the findings: every answer with an interval, and where the two sizes differ."""

from collections import Counter
from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from trl_ablate.run.picture import FAINT, INK, STYLE
from trl_ablate.run.untrusted import for_picture
from trl_ablate.study.report.found_answers import ArmFound
from trl_ablate.study.report.lines import LABEL_SIZE, gutter
from trl_ablate.study.report.pictures import DPI, PALETTE, png_of
from trl_ablate.study.verdict import Verdict

WIDTH, ROW, EDGE, RIGHT = 10.4, 0.25, 0.5, 1.2
SECOND_LINE = 0.13
LETTERS = 72
TITLE = (
    "Final evaluation reward minus that of {usual}, or of the arm named; a cross: runs collapsed"
)


def draw_answers(arms: Sequence[ArmFound]) -> bytes | None:
    """The difference of each arm with its interval; None if no arm has one."""
    drawn = [arm for arm in arms if arm.numbers["low"] is not None]
    if not drawn:
        return None
    drawn.sort(key=lambda arm: arm.numbers["difference"])
    usual = Counter(arm.against for arm in drawn).most_common(1)[0][0]
    labels = [_label(arm, usual) for arm in drawn]
    rows = _rows([label.count("\n") for label in labels])
    with matplotlib.rc_context({**STYLE, "axes.grid.axis": "x", "axes.spines.left": False}):
        lines = [line for label in labels for line in label.split("\n")]
        left, height = gutter(lines) - 0.1, rows[-1] + ROW
        figure = Figure((WIDTH, height + 2 * EDGE), dpi=DPI)
        axes = figure.add_axes(
            (left / WIDTH, EDGE / (height + 2 * EDGE), (WIDTH - left - RIGHT) / WIDTH,
             height / (height + 2 * EDGE))
        )  # fmt: skip
        axes.axvline(0, color=INK, linewidth=1)
        for row, arm in zip(rows, drawn, strict=True):
            colour = _colour(arm.kind)
            of = arm.numbers
            axes.hlines(row, of["low"], of["high"], color=colour, linewidth=2.2)
            mark = "X" if of["collapsed"][0] else "o"
            axes.plot(np.array([of["difference"]]), [row], mark, color=colour, markersize=6)
            axes.annotate(
                for_picture(arm.kind), (1.02, row), xycoords=("axes fraction", "data"),
                va="center", fontsize=LABEL_SIZE, color=INK if arm.kind.matters else FAINT,
                annotation_clip=False,
            )  # fmt: skip
        axes.set_yticks(rows, labels, parse_math=False)
        axes.set_ylim(rows[0] - ROW / 2, rows[-1] + ROW / 2)
        figure.text(
            0.2 / WIDTH, 1 - 0.32 / (height + 2 * EDGE), TITLE.format(usual=for_picture(usual)),
            fontsize=10, fontweight="bold", parse_math=False,
        )  # fmt: skip
        return png_of(figure)


def _label(arm: ArmFound, usual: str) -> str:
    """The arm, and what it is compared with if that is not the usual reference."""
    lines = [arm.words] if arm.against == usual else [arm.words, f"against {arm.against}"]
    return "\n".join(for_picture(line, LETTERS) for line in lines)


def _rows(more_lines: Sequence[int]) -> list[float]:
    """The height of each row's middle in inches; a label of two lines takes more room."""
    rooms = [ROW + SECOND_LINE * more for more in more_lines]
    ends = np.cumsum(rooms)
    return [float(end - room / 2) for end, room in zip(ends, rooms, strict=True)]


def _colour(kind: Verdict) -> str:
    return PALETTE[0] if kind.matters else PALETTE[1] if kind == Verdict.EQUIVALENT else FAINT
