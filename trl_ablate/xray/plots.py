"""The picture of an X-ray: cosine against norm ratio, and who gets the gradient.

A row for each point; on the left all arms, the noise floor shaded; on the right, for each arm, bars
of the shares by sign, length and difficulty. An arm's name has the colour of its mark. Pyplot is
not used.
"""

import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import matplotlib
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from trl_ablate.run.picture import FAINT, INK, PALETTE, STYLE, png_of
from trl_ablate.run.untrusted import for_picture
from trl_ablate.xray.figures import LEAST_FLOOR

if TYPE_CHECKING:
    from trl_ablate.xray.xray_page import Xray, XrayedPoint

MARKERS = "osD^v"
WIDTH, DPI = 12.5, 110
LEAST_HEIGHT, HEIGHT_OF_AN_ARM = 3.2, 0.3
TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
SHADES = ("#08306b", "#2171b5", "#6baed6", "#c6dbef")
BARS = {"sign": "advantage: +, −", "length": "length, by quarter", "difficulty": "passes, 0 up"}


def draw(result: "Xray") -> bytes:
    arms, rows = list(result.against), len(result.points)
    height = max(LEAST_HEIGHT, HEIGHT_OF_AN_ARM * len(arms) + 0.9)
    with matplotlib.rc_context(STYLE):
        figure = Figure((WIDTH, height * rows), dpi=DPI, layout="constrained")
        grid = figure.add_gridspec(rows, 4, width_ratios=(2.1, 1, 1, 1))
        for row, point in enumerate(result.points):
            others = {arm for arm, label in result.labels.items() if label != arm}
            _directions(figure.add_subplot(grid[row, 0]), arms, point, others)
            for column, name in enumerate(BARS, start=1):
                axes = figure.add_subplot(grid[row, column])
                labels = [for_picture(arm, 24) if column == 1 else "" for arm in arms]
                _bars(axes, labels, name, [point.arms[arm].figures.shares[name] for arm in arms])
        return png_of(figure)


def _directions(
    axes: Axes, arms: Sequence[str], point: "XrayedPoint", others: Collection[str]
) -> None:
    """The marks of `others`, which are compared with another arm than the reference, are hollow."""
    figures = [point.arms[arm].figures.plain for arm in arms]
    lowest = 0.0
    for number, (arm, plain) in enumerate(zip(arms, figures, strict=True)):
        if math.isnan(plain.cosine_mean) or not 0 < plain.norm_ratio < math.inf:
            continue
        lowest = min(lowest, plain.cosine_mean)
        colour, marker = _look(number)
        if interval := plain.cosine_mean_interval:
            low, high = max(-1, interval[0]), min(1, interval[1])
            axes.vlines(plain.norm_ratio, low, high, color=colour)
            lowest = min(lowest, low)
        axes.plot(
            [plain.norm_ratio], [plain.cosine_mean], marker, color=colour, markersize=7,
            linestyle="none", markerfacecolor="white" if arm in others else colour,
        )  # fmt: skip
    if point.floor is not None:
        axes.axhspan(max(point.floor, LEAST_FLOOR), 1.0, color=FAINT, alpha=0.25, linewidth=0)
    axes.axhline(0, color=INK, linewidth=0.6)
    axes.set_xscale("log")
    known = [plain.norm_ratio for plain in figures if 0 < plain.norm_ratio < math.inf]
    low, high = min(known, default=1) / 1.6, max(known, default=1) * 1.6
    axes.set(xlim=(low, high), ylim=(lowest - 0.08, 1.04))
    axes.set(xlabel="norm ratio", ylabel="cosine of the mean gradients")
    shown = [tick for tick in TICKS if low <= tick <= high]
    axes.set_xticks(shown, [f"{tick:g}" for tick in shown])
    axes.minorticks_off()
    _title(
        axes, f"{point.title}; noise floor shaded" + "; hollow: against another arm" * bool(others)
    )


def _bars(axes: Axes, labels: Sequence[str], name: str, shares: Sequence[Sequence[float]]) -> None:
    for row, parts in enumerate(shares):
        for place, share in enumerate(parts):
            if len(parts) <= len(SHADES):
                colour = SHADES[place * (len(SHADES) - 1) // max(1, len(parts) - 1)]
            else:
                colour = to_hex(matplotlib.colormaps["viridis"](place / (len(parts) - 1)))
            axes.barh(row, share, left=sum(parts[:place]), color=colour, height=0.72)
    axes.set_yticks(range(len(labels)), labels, parse_math=False, fontsize=8)
    for number, label in enumerate(axes.get_yticklabels()):
        label.set_color(_look(number)[0])
        label.set_fontweight("bold")
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.grid(False)
    axes.set_xticks([0, 0.5, 1], ["0", "½", "1"])
    _title(axes, BARS[name])


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
