"""The curves of one run as a PNG: the evaluation at the top, metrics that warn early below.

The same rows give the same bytes, so that publishing again does not upload the picture again.
"""

import io
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from trl_ablate.metrics import ENTROPY, EVAL_REWARD, GRAD_NORM, LENGTH, REWARD
from trl_ablate.run.untrusted import for_picture

INK, FAINT = "#222222", "#8a8a8a"

PALETTE = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#999933",
)  # fmt: skip
"""Okabe and Ito's colours, then two of Tol's: distinguishable with any colour vision and in grey
print."""
COLOURS_OF_A_FILE = 64

STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans", "font.size": 9,
    "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": FAINT,
    "axes.linewidth": 0.7, "axes.labelcolor": INK, "axes.grid": True, "axes.grid.axis": "y",
    "grid.color": "#e8e8e8", "grid.linewidth": 0.7, "axes.axisbelow": True,
    "xtick.color": FAINT, "ytick.color": FAINT, "xtick.labelcolor": INK, "ytick.labelcolor": INK,
    "xtick.major.size": 3, "ytick.major.size": 0,
}  # fmt: skip
"""The style of all pictures, of a run and of a study: a faint grid, no boxes."""

WATCHED = {
    GRAD_NORM: "gradient norm", LENGTH: "response length (tokens)", ENTROPY: "token entropy",
}  # fmt: skip
"""Metrics below the reward curve, in pictures of a run and of a study, and their titles."""

BLUE, RED = PALETTE[:2]

Rows = Sequence[Mapping[str, Any]]


def draw_curves(
    rows: Rows, *, unit: str = "GRPO steps", marks: Mapping[float, str] | None = None
) -> bytes | None:
    """The run's curves over GRPO steps, or those of another unit; None where no reward was ever
    logged. Marks are vertical lines in the curve of the reward: step -> text."""
    watched = [metric for metric in WATCHED if points(rows, metric)[0]]
    if not (points(rows, EVAL_REWARD)[0] or points(rows, REWARD)[0]):
        return None
    with matplotlib.rc_context(STYLE):
        figure = Figure((9.5, 5.2 if watched else 3.2), dpi=110, layout="constrained")
        grid = figure.add_gridspec(2 if watched else 1, max(1, len(watched)))
        top = figure.add_subplot(grid[0, :])
        _draw_reward(top, rows)
        for step, text in (marks or {}).items():
            top.axvline(step, color=RED, linewidth=0.8)
            top.annotate(
                for_picture(text), (step, 1), xycoords=("data", "axes fraction"), color=RED,
                fontsize=7, rotation=90, ha="right", va="top",
            )  # fmt: skip
        _finish(top, "reward", unit)
        for column, metric in enumerate(watched):
            axes = figure.add_subplot(grid[1, column])
            axes.plot(*points(rows, metric), color=INK, linewidth=1.2)
            _finish(axes, WATCHED[metric], unit)
        return png_of(figure)


def png_of(figure: Figure) -> bytes:
    """Few colours keep a committed picture small; without a date it is reproducible. An octree
    keeps those of small areas apart, which the median cut joins."""
    FigureCanvasAgg(figure)
    buffer, small = io.BytesIO(), io.BytesIO()
    with warnings.catch_warnings():  # a character that the font lacks is drawn as a box
        warnings.filterwarnings("ignore", r"Glyph .* missing from font")
        figure.savefig(buffer, format="png", facecolor="white", metadata={"Software": None})
    image = (
        Image.open(buffer)
        .convert("RGB")
        .quantize(COLOURS_OF_A_FILE, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    )
    image.save(small, format="png", optimize=True)
    return small.getvalue()


def legend(of: Axes | Figure, **how: Any) -> None:
    """With labels as they are: `$` begins no formula."""
    for label in of.legend(frameon=False, **how).get_texts():
        label.set_parse_math(False)


def points(rows: Rows, metric: str) -> tuple[list[float], list[float]]:
    """GRPO steps and values; if a step was logged twice, as after a resume, its last value."""
    found = {row["grpo_step"]: row[metric] for row in rows if row.get(metric) is not None}
    steps = sorted(found)
    return steps, [found[step] for step in steps]


def _draw_reward(axes: Axes, rows: Rows) -> None:
    axes.plot(*points(rows, REWARD), color=FAINT, linewidth=1, label="training rollouts")
    steps, values = points(rows, EVAL_REWARD)
    errors = dict(zip(*points(rows, f"{EVAL_REWARD}_stderr"), strict=True))
    if steps:
        axes.plot(steps, values, color=BLUE, linewidth=2, label="evaluation, ± standard error")
        half = [errors.get(step, 0.0) for step in steps]
        low, high = np.subtract(values, half), np.add(values, half)
        axes.fill_between(steps, low, high, color=BLUE, alpha=0.18, linewidth=0)
    legend(axes, loc="best")


def _finish(axes: Axes, title: str, unit: str) -> None:
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold", color=INK)
    axes.set_xlabel(unit, color=INK)
    axes.margins(x=0.01)
