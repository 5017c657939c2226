"""The pictures of the findings: every answer with an interval, and contrasts at several scales."""

import math
from collections import Counter
from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from trl_ablate.run.picture import FAINT, INK, STYLE
from trl_ablate.run.untrusted import for_picture
from trl_ablate.study.report.calibration import Contrast
from trl_ablate.study.report.found_answers import ArmFound
from trl_ablate.study.report.lines import LABEL_SIZE, gutter
from trl_ablate.study.report.pictures import DPI, PALETTE, png_of
from trl_ablate.study.verdict import Verdict

WIDTH, ROW, EDGE, RIGHT = 10.4, 0.25, 0.5, 1.2
SECOND_LINE = 0.13
LETTERS = 72
NEAR = 0.07
"""Points nearer than this would have their labels in each other."""
TITLE = "Evaluation reward minus that of {usual}, or of the arm named; a cross: runs collapsed"


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


def draw_scales(contrasts: Sequence[Contrast]) -> bytes:
    """The same contrasts side by side: ours with intervals, published ones as points, each with its
    source; hollow where the arm has one run."""
    ours = {"our toy, 0.1 M": [each.toy for each in contrasts],
            "our SmolLM2, 135 M": [each.small for each in contrasts]}  # fmt: skip
    ours = {title: found for title, found in ours.items() if any(found)}
    with matplotlib.rc_context({**STYLE, "axes.grid.axis": "both", "axes.spines.left": False}):
        height = 1.6 * ROW * len(contrasts) + 2 * EDGE
        figure = Figure((WIDTH, height), dpi=DPI)
        panels = figure.subplots(1, len(ours) + 1, sharex=True, sharey=True)
        for axes, (title, found) in zip(panels, ours.items(), strict=False):
            axes.set_title(title, loc="left", fontsize=10, fontweight="bold")
            for row, of in enumerate(found):
                if of and of["low"] is not None:
                    axes.hlines(row, of["low"], of["high"], color=PALETTE[0], linewidth=2.2)
                    axes.plot([of["difference"]], [row], "o", color=PALETTE[0], markersize=6)
        panels[-1].set_title("published, 1 to 1.5 B", loc="left", fontsize=10, fontweight="bold")
        for row, each in enumerate(contrasts):
            _draw_published(panels[-1], row, each)
        for axes in panels:
            axes.axvline(0, color=INK, linewidth=1)
        labels = [for_picture(each.words, LETTERS) for each in contrasts]
        panels[0].set_yticks(range(len(contrasts)), labels, parse_math=False)
        panels[0].set_ylim(len(contrasts) - 0.5, -0.6)
        figure.supxlabel("difference of the reward at the end; hollow: one run", fontsize=10)
        figure.tight_layout()
        return png_of(figure)


def _draw_published(axes: Axes, row: int, contrast: Contrast) -> None:
    """A point each; neighbours have their labels above and below in turn."""
    above, before = True, -math.inf
    for name, (difference, runs) in sorted(contrast.published.items(), key=lambda each: each[1]):
        face = PALETTE[1] if runs > 1 else "none"
        axes.plot([difference], [row], "o", color=PALETTE[1], markerfacecolor=face, markersize=6)
        above = not above if difference - before < NEAR else True
        before = difference
        axes.annotate(
            _source(name),
            (difference, row), xytext=(0, 5 if above else -5), textcoords="offset points",
            ha="center", va="bottom" if above else "top", fontsize=LABEL_SIZE - 1.5, color=INK,
        )  # fmt: skip


def _source(name: str) -> str:
    """`A` of `olmo_a A`, `math` of `qwen_math baselines`."""
    file, _, group = name.partition(" ")
    return for_picture(group if len(group) == 1 else file.rpartition("_")[2])


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
