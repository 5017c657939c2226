"""The pictures of answers, as PNG bytes: differences with their intervals, of one study, of
several, and at several scales."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from trl_ablate.run.picture import FAINT, INK, PALETTE, STYLE, png_of
from trl_ablate.run.untrusted import for_picture
from trl_ablate.study.report.analysis import Analysis
from trl_ablate.study.report.document import Picture
from trl_ablate.study.report.findings_page import Contrast, source_of
from trl_ablate.study.report.found_answers import ArmFound
from trl_ablate.study.report.pictures import DPI, LABEL_SIZE, WIDTH, axes_at, gutter, looks, title
from trl_ablate.study.report.stats import Comparison
from trl_ablate.study.two_part import Shares
from trl_ablate.study.verdict import Verdict

SIDEWAYS: dict[Any, Any] = {**STYLE, "axes.grid.axis": "x", "axes.spines.left": False}
PAIR_LETTERS = 60
"""Limit for the letters of an arm's name and its reference's together."""
SHARES_WIDTH, GAP, RIGHT = 2.2, 0.35, 1.9
ROW, EDGE, SECOND_LINE = 0.25, 0.5, 0.13
ANSWERS_WIDTH, LETTERS = 10.4, 72
NEAR = 0.07
"""Points nearer than this would have their labels in each other."""
SUCCESSES_ABOUT = (
    "for each arm the share of runs that succeed with its exact interval (hollow: its "
    "reference), and the difference of the means over those runs; dotted: the margin"
)
ANSWERS = (
    "Evaluation reward minus that of {usual}, or of the arm named; a cross: runs collapsed; "
    "hollow: over all runs"
)


def differences_picture(analysis: Analysis) -> list[Picture]:
    """The picture of the headline, if there is an interval to draw."""
    found = sorted(analysis.decisive.values(), key=lambda c: c.difference.mean or 0.0)
    if analysis.judge == "two_part":
        judged = [(c, c.two_part.shares) for c in found if c.two_part and c.two_part.shares]
        judged.sort(key=lambda each: each[1].arm[0] / each[1].arm[1])
        png, about = _draw_successes(judged, analysis) if judged else None, SUCCESSES_ABOUT
    else:
        known = [c for c in found if c.difference.mean is not None]
        is_seen = any(c.difference.low is not None for c in known)
        against = analysis.reference.name + " (or the arm after 'vs')" * bool(analysis.against)
        png = _draw_differences(known, analysis) if is_seen else None
        about = f"each arm's difference from {against} with its 95 % interval"
    return [Picture("differences.png", png, about)] if png else []


def _draw_differences(compared: Sequence[Comparison], analysis: Analysis) -> bytes:
    """Each arm's difference from the reference with its 95 % interval, and its collapses. An arm
    with one pair is a hollow point."""
    styles = looks([arm.name for arm in analysis.arms])
    with matplotlib.rc_context(SIDEWAYS):
        across, height = 0.75 * WIDTH, 0.34 * len(compared) + 0.4
        figure = Figure((across, height + 0.72), dpi=DPI)
        labels = _labels(compared, analysis)
        collapses = any(analysis.arm(c.arm).collapsed for c in compared)
        left = gutter(labels) - 0.1
        width = across - left - (2.6 if collapses else 1.6)
        axes = axes_at(figure, left, 0.3, width, height)
        axes.axvline(0, color=INK, linewidth=1)
        for row, of in enumerate(compared):
            arm, found = analysis.arm(of.arm), of.difference
            _interval(
                axes, row, (found.low, found.mean, found.high), styles[of.arm][0],
                collapsed=bool(arm.collapsed), hollow=found.low is None,
                size=7 if arm.collapsed else 6,
            )  # fmt: skip
            collapsed = f", {arm.collapsed}/{arm.ended} collapsed" * bool(arm.collapsed)
            _verdict(axes, row, of.verdict + collapsed, of.verdict.is_final, bold=True)
        axes.set_yticks(range(len(compared)), labels, parse_math=False)
        axes.set_ylim(-0.6, len(compared) - 0.4)
        shown = for_picture(analysis.reference.name)
        against = "the arm's reference" if analysis.against else shown
        text = f"{analysis.outcome_name} minus that of {against}, 95 % intervals"
        title(axes, text + "  (a cross: collapses)" * collapses, start=-(left - 0.1) / width)
        return png_of(figure)


def _draw_successes(shown: Sequence[tuple[Comparison, Shares]], analysis: Analysis) -> bytes:
    """Which share of each arm's runs succeeds, and how much better those are than the
    reference's."""
    labels = _labels([comparison for comparison, _ in shown], analysis)
    with matplotlib.rc_context(SIDEWAYS):
        across, left, height = 10.0, gutter(labels) - 0.1, 0.3 * len(shown) + 0.1
        figure = Figure((across, height + 2 * EDGE), dpi=DPI)
        rest = across - left - SHARES_WIDTH - GAP - RIGHT
        shares = axes_at(figure, left, EDGE, SHARES_WIDTH, height)
        means = axes_at(figure, left + SHARES_WIDTH + GAP, EDGE, rest, height)
        titles = ("share of runs that succeed", "difference of the mean where runs succeed")
        for axes, text in zip((shares, means), titles, strict=True):
            axes.set_ylim(-0.6, height / 0.3 - 0.7)
            axes.set_title(text, loc="left", fontsize=9, fontweight="bold", color=INK)
        shares.set_xlim(-0.03, 1.03)
        shares.set_yticks(range(len(shown)), labels, parse_math=False)
        means.set_yticks([])
        means.axvline(0, color=INK, linewidth=1)
        for margin in (-analysis.margin, analysis.margin) if analysis.margin else ():
            means.axvline(margin, color=FAINT, linewidth=1, linestyle=":")
        for row, (comparison, found) in enumerate(shown):
            verdict, of = comparison.verdict, comparison.difference
            colour, ((k, n), (other_k, other_n)) = _colour(verdict), (found.arm, found.reference)
            shares.hlines(row, *found.intervals[0], color=colour, linewidth=2.2)
            shares.plot([other_k / other_n], [row], "o", color=INK, markersize=6,
                        markerfacecolor="white")  # fmt: skip
            shares.plot([k / n], [row], "o", color=colour, markersize=5)
            if of.low is not None:
                _interval(means, row, (of.low, of.mean, of.high), colour)
            _verdict(means, row, f"{verdict}, {n} runs", verdict.is_final)
        return png_of(figure)


def _labels(compared: Sequence[Comparison], analysis: Analysis) -> list[str]:
    """The arms, each with its reference if that is not the usual one."""
    against = {arm: f" vs {other}" for arm, other in analysis.against.items()}
    return [for_picture(c.arm + against.get(c.arm, ""), PAIR_LETTERS) for c in compared]


def draw_answers(arms: Sequence[ArmFound]) -> bytes | None:
    """The difference of each arm with its interval; None if no arm has one."""
    drawn = [(arm, *arm.limits) for arm in arms if arm.limits]
    if not drawn:
        return None
    drawn.sort(key=lambda each: each[1][1])
    usual = Counter(arm.against for arm, *_ in drawn).most_common(1)[0][0]
    lines = [
        [for_picture(arm.words, LETTERS)]
        + [for_picture(f"against {arm.against}", LETTERS)] * (arm.against != usual)
        for arm, *_ in drawn
    ]
    rooms = np.array([ROW + SECOND_LINE * (len(each) - 1) for each in lines])
    rows = (np.cumsum(rooms) - rooms / 2).tolist()  # the middle of each row in inches
    with matplotlib.rc_context(SIDEWAYS):
        left, height = gutter([line for each in lines for line in each]) - 0.1, rows[-1] + ROW
        figure = Figure((ANSWERS_WIDTH, height + 2 * EDGE), dpi=DPI)
        axes = axes_at(figure, left, EDGE, ANSWERS_WIDTH - left - 1.2, height)
        axes.axvline(0, color=INK, linewidth=1)
        for row, (arm, limits, hollow) in zip(rows, drawn, strict=True):
            how = {"collapsed": bool(arm.numbers["collapsed"][0]), "hollow": hollow}
            _interval(axes, row, limits, _colour(arm.kind), **how)
            _verdict(axes, row, arm.kind, arm.kind.matters)
        axes.set_yticks(rows, ["\n".join(each) for each in lines], parse_math=False)
        axes.set_ylim(rows[0] - ROW / 2, rows[-1] + ROW / 2)
        figure.text(
            0.2 / ANSWERS_WIDTH, 1 - 0.32 / (height + 2 * EDGE),
            ANSWERS.format(usual=for_picture(usual)), fontsize=10, fontweight="bold",
            parse_math=False,
        )  # fmt: skip
        return png_of(figure)


def draw_scales(contrasts: Sequence[Contrast]) -> bytes:
    """The same contrasts side by side: studies here with intervals, published runs as points, each
    with its source; hollow where the arm has one run."""
    here = {"the toy, 0.1 M": [each.toy for each in contrasts],
            "SmolLM2, 135 M": [each.small for each in contrasts]}  # fmt: skip
    here = {title: found for title, found in here.items() if any(found)}
    with matplotlib.rc_context({**SIDEWAYS, "axes.grid.axis": "both"}):
        height = 1.6 * ROW * len(contrasts) + 2 * EDGE
        figure = Figure((ANSWERS_WIDTH, height), dpi=DPI)
        panels = figure.subplots(1, len(here) + 1, sharex=True, sharey=True)
        for axes, of in zip(panels, [*here, "published, 1 to 1.5 B"], strict=True):
            axes.set_title(of, loc="left", fontsize=10, fontweight="bold")
            for row, one in enumerate(here.get(of, ())):
                if one:
                    limits = [one[key] for key in ("low", "difference", "high")]
                    _interval(axes, row, limits, PALETTE[0], hollow=one["collapsed"][1] == 1)
        for row, each in enumerate(contrasts):
            _draw_published(panels[-1], row, each)
        for axes in panels:
            axes.axvline(0, color=INK, linewidth=1)
        labels = [for_picture(each.words, LETTERS) for each in contrasts]
        panels[0].set_yticks(range(len(contrasts)), labels, parse_math=False)
        panels[0].set_ylim(len(contrasts) - 0.5, -0.6)
        figure.supxlabel(
            "difference of the reward at the end; without a bar: no interval yet; hollow: one run",
            fontsize=10,
        )
        figure.tight_layout()
        return png_of(figure)


def _draw_published(axes: Axes, row: int, contrast: Contrast) -> None:
    """A point each; neighbours have their labels above and below in turn, the first to the left."""
    points = sorted(contrast.published.items(), key=lambda each: each[1])
    places = [-math.inf, *(difference for _, (difference, _) in points), math.inf]
    above = False
    for place, (name, (difference, runs)) in enumerate(points, 1):
        face = PALETTE[1] if runs > 1 else "none"
        axes.plot([difference], [row], "o", color=PALETTE[1], markerfacecolor=face, markersize=6)
        after, before = (abs(difference - places[place + by]) < NEAR for by in (1, -1))
        above = not above if before else True
        axes.annotate(
            for_picture(source_of(name)),
            (difference, row), xytext=(0, 5 if above else -5), textcoords="offset points",
            ha="right" if after and not before else "center",
            va="bottom" if above else "top", fontsize=LABEL_SIZE - 1.5, color=INK,
            parse_math=False,
        )  # fmt: skip


def _interval(
    axes: Axes, row: float, limits: Sequence[float | None], colour: str, *,
    collapsed: bool = False, hollow: bool = False, size: float = 6,
) -> None:  # fmt: skip
    low, mean, high = limits
    if low is not None and high is not None:
        axes.hlines(row, low, high, color=colour, linewidth=2.2)
    face = "white" if hollow else colour
    axes.plot(np.array([mean], float), [row], "X" if collapsed else "o", color=colour,
              markersize=size, markerfacecolor=face)  # fmt: skip


def _verdict(axes: Axes, row: float, text: str, strong: bool, *, bold: bool = False) -> None:
    """Right of a row."""
    axes.annotate(
        text, (1.02, row), xycoords=("axes fraction", "data"), va="center", fontsize=LABEL_SIZE,
        color=INK if strong else FAINT, annotation_clip=False,
        fontweight="bold" if strong and bold else "normal",
    )  # fmt: skip


def _colour(kind: Verdict) -> str:
    return PALETTE[0] if kind.matters else PALETTE[1] if kind is Verdict.EQUIVALENT else FAINT
