"""The picture of an X-ray: cosine against norm ratio, and who gets the gradient.

A row for each point; on the left all arms, the noise floor shaded; on the right, for each arm, bars
of the shares by sign, length and difficulty. An arm's name has the colour of its mark. Pyplot is
not used.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import matplotlib
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from trl_ablate.run.picture import FAINT, INK, PALETTE, STYLE, png_of
from trl_ablate.run.untrusted import for_picture

if TYPE_CHECKING:
    from trl_ablate.xray.xray_page import AtPoint, Xray

MARKERS = "osD^v"
WIDTH, DPI = 12.5, 110
LEAST_HEIGHT, HEIGHT_OF_AN_ARM = 3.2, 0.3
SHADES = ("#08306b", "#2171b5", "#6baed6", "#c6dbef")
BARS = {"sign": "advantage: +, −", "length": "length, by quarter", "difficulty": "passes, 0 up"}


def draw(result: "Xray") -> bytes:
    """The picture as PNG."""
    height = max(LEAST_HEIGHT, HEIGHT_OF_AN_ARM * len(result.arms) + 0.9)
    rows = len(result.points)
    with matplotlib.rc_context(STYLE):
        figure = Figure((WIDTH, height * rows), dpi=DPI, layout="constrained")
        grid = figure.add_gridspec(rows, 4, width_ratios=(2.1, 1, 1, 1))
        for row, point in enumerate(result.points):
            _directions(figure.add_subplot(grid[row, 0]), result, point)
            for column, (name, title) in enumerate(BARS.items(), start=1):
                axes = figure.add_subplot(grid[row, column])
                _bars(axes, result.arms, point, name, title, labelled=column == 1)
        return png_of(figure)


def _directions(axes: Axes, result: "Xray", point: "AtPoint") -> None:
    cosines = []
    for number, arm in enumerate(result.arms):
        plain = point.figures[arm].plain
        if math.isnan(plain.cosine_mean) or not plain.norm_ratio > 0:
            continue
        cosines.append(plain.cosine_mean)
        colour, marker = _look(number)
        interval = plain.cosine_mean_interval
        if interval is not None:
            axes.vlines(plain.norm_ratio, max(-1, interval[0]), min(1, interval[1]), color=colour)
        axes.plot(
            [plain.norm_ratio], [plain.cosine_mean], marker, color=colour, markersize=7,
            linestyle="none",
        )  # fmt: skip
    if point.floor is not None:
        axes.axhspan(point.floor, 1.0, color=FAINT, alpha=0.25, linewidth=0)
    axes.axhline(0, color=INK, linewidth=0.6)
    axes.set_xscale("log")
    _label_ratios(axes, result, point)
    axes.set_ylim(min(0.0, *cosines, 0.0) - 0.08, 1.04)
    axes.set_xlabel("norm ratio")
    axes.set_ylabel("cosine of the mean gradients")
    _title(axes, f"{point.title}; noise floor shaded")


def _label_ratios(axes: Axes, result: "Xray", point: "AtPoint") -> None:
    ratios = [point.figures[arm].plain.norm_ratio for arm in result.arms]
    known = [ratio for ratio in ratios if ratio > 0]
    axes.set_xlim(min(known, default=1) / 1.6, max(known, default=1) * 1.6)
    steps = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100]
    low, high = axes.get_xlim()
    shown = [step for step in steps if low <= step <= high]
    axes.set_xticks(shown, [f"{step:g}" for step in shown])
    axes.minorticks_off()


def _bars(
    axes: Axes, arms: Sequence[str], point: "AtPoint", name: str, title: str, *, labelled: bool
) -> None:
    for row, arm in enumerate(arms):
        left = 0.0
        shares = point.figures[arm].shares[name]
        for place, share in enumerate(shares):
            axes.barh(row, share, left=left, color=_shade(place, len(shares)), height=0.72)
            left += share
    axes.set_yticks(
        range(len(arms)), [for_picture(arm, 24) for arm in arms] if labelled else [""] * len(arms),
        parse_math=False, fontsize=8,
    )  # fmt: skip
    for number, label in enumerate(axes.get_yticklabels()):
        label.set_color(_look(number)[0])
        label.set_fontweight("bold")
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.grid(False)
    axes.set_xticks([0, 0.5, 1], ["0", "½", "1"])
    _title(axes, title)


def _shade(place: int, classes: int) -> str:
    if classes <= len(SHADES):
        return SHADES[place * (len(SHADES) - 1) // max(1, classes - 1)]
    return to_hex(matplotlib.colormaps["viridis"](place / (classes - 1)))


def _look(number: int) -> tuple[str, str]:
    if number == 0:
        return INK, "*"
    turn, colour = divmod(number - 1, len(PALETTE))
    return PALETTE[colour], MARKERS[turn % len(MARKERS)]


def _title(axes: Axes, text: str) -> None:
    axes.set_title(
        for_picture(text, 70), loc="left", fontsize=9, fontweight="bold", color=INK,
        parse_math=False,
    )  # fmt: skip
