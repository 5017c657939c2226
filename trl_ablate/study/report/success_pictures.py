"""The picture of a study in two parts: which share of each arm's runs succeeds, and how much better
those are than the reference's."""

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from trl_ablate.run.picture import FAINT, INK, PALETTE, STYLE, png_of
from trl_ablate.run.untrusted import for_picture
from trl_ablate.study.report.analysis import Analysis
from trl_ablate.study.report.document import Picture
from trl_ablate.study.report.lines import LABEL_SIZE, gutter
from trl_ablate.study.report.stats import Comparison
from trl_ablate.study.verdict import Verdict

WIDTH, ROW, EDGE, GAP, RIGHT = 10.0, 0.3, 0.5, 0.35, 1.9
SHARES_WIDTH = 2.2
DPI = 110


def successes_picture(analysis: Analysis) -> list[Picture]:
    """Sorted by the share, then by the difference; nothing before the first look."""
    shown = [c for c in analysis.decisive.values() if c.two_part and c.two_part.shares]
    if not shown:
        return []
    shown.sort(key=_place)
    labels = [for_picture(_label(c, analysis), 60) for c in shown]
    with matplotlib.rc_context({**STYLE, "axes.grid.axis": "x", "axes.spines.left": False}):
        left, height = gutter(labels) - 0.1, ROW * len(shown) + 0.1
        figure = Figure((WIDTH, height + 2 * EDGE), dpi=DPI)
        rest = WIDTH - left - SHARES_WIDTH - GAP - RIGHT
        shares = _panel(figure, left, SHARES_WIDTH, height, "share of runs that succeed")
        title = "difference of the mean where runs succeed"
        means = _panel(figure, left + SHARES_WIDTH + GAP, rest, height, title)
        shares.set_xlim(-0.03, 1.03)
        shares.set_yticks(range(len(shown)), labels, parse_math=False)
        means.set_yticks([])
        means.axvline(0, color=INK, linewidth=1)
        for margin in (-1, 1) if analysis.margin else ():
            means.axvline(margin * (analysis.margin or 0), color=FAINT, linewidth=1, linestyle=":")
        for row, comparison in enumerate(shown):
            _draw(shares, means, row, comparison)
        about = (
            "for each arm the share of runs that succeed with its exact interval (hollow: its "
            "reference), and the difference of the means over those runs; dotted: the margin"
        )
        return [Picture("differences.png", png_of(figure), about)]


def _place(comparison: Comparison) -> tuple[float, float]:
    shares = comparison.two_part and comparison.two_part.shares
    share = shares.arm[0] / shares.arm[1] if shares else 0.0
    return share, comparison.difference.mean or 0.0


def _label(comparison: Comparison, analysis: Analysis) -> str:
    other = analysis.against.get(comparison.arm)
    return comparison.arm + (f" vs {other}" if other else "")


def _panel(figure: Figure, left: float, width: float, height: float, title: str) -> Axes:
    across, up = figure.get_size_inches()
    axes = figure.add_axes((left / across, EDGE / up, width / across, height / up))
    axes.set_ylim(-0.6, height / ROW - 0.7)
    axes.set_title(for_picture(title, 90), loc="left", fontsize=9, fontweight="bold", color=INK)
    return axes


def _draw(shares: Axes, means: Axes, row: int, comparison: Comparison) -> None:
    found, difference = comparison.two_part, comparison.difference
    if found is None or found.shares is None:
        return
    colour = PALETTE[0] if found.verdict.differs else FAINT
    colour = PALETTE[1] if found.verdict is Verdict.EQUIVALENT else colour
    (k, n), (other_k, other_n) = found.shares.arm, found.shares.reference
    shares.hlines(row, *found.shares.intervals[0], color=colour, linewidth=2.2)
    shares.plot([other_k / other_n], [row], "o", color=INK, markersize=6, markerfacecolor="white")
    shares.plot([k / n], [row], "o", color=colour, markersize=5)
    if difference.low is not None and difference.high is not None:
        means.hlines(row, difference.low, difference.high, color=colour, linewidth=2.2)
        means.plot(np.array([difference.mean], float), [row], "o", color=colour, markersize=6)
    means.annotate(
        f"{comparison.verdict}, {n} runs", (1.02, row), xycoords=("axes fraction", "data"),
        va="center", fontsize=LABEL_SIZE, annotation_clip=False,
        color=INK if found.is_final else FAINT,
    )  # fmt: skip
