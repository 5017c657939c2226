"""Why a setting acts: the styles of a world's answers over a training, drawn run beside run.

Three panels a run, from its logged metrics: the share of each style; its mean reward against its
length, from the first steps to the last, with a line of equal reward per token; and the share of
the loss's weight that the shortest to the longest quarter of the answers get. Where no styles are
logged, all answers are one. No torch.
"""

import itertools
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from trl_ablate.errors import ConfigurationError
from trl_ablate.metrics import LENGTH, REWARD
from trl_ablate.run.picture import FAINT, INK, PALETTE, STYLE, legend, png_of, points
from trl_ablate.run.untrusted import for_picture

SHARE = re.compile(r"style/(?P<style>[^/]+?)(?<!_length)(?<!_reward)")
QUARTERS = {"shortest": "#9ecae1", "second": "#6baed6", "third": "#3182bd", "longest": "#08519c"}
NAMES_OF_ROWS = ("share of answers", "mean reward", "share of the loss's weight")
ALL = "all answers"
WINDOW, SMOOTH, LEAST_TOKENS = 6, 5, 10.0
"""A point of a trajectory is the mean over so many steps; of the weights, over fewer."""
SEEN = 0.02
"""A style with a smaller share has too few answers for a pass rate."""
WIDTH, HEIGHT, DPI = 3.3, 7.6, 100

Rows = Sequence[Mapping[str, Any]]


def styles_of(rows: Rows) -> list[str]:
    """The styles that a run logged, shortest answers first."""
    names = {match["style"] for row in rows for name in row if (match := SHARE.fullmatch(name))}
    lengths = {name: points(rows, f"style/{name}_length")[1] for name in names}
    return sorted(names, key=lambda name: (statistics.fmean(lengths[name] or [0.0]), name))


def with_styles(rows: Rows) -> Rows:
    """The rows; of a run without styles, with all answers as one."""
    if styles_of(rows):
        return rows
    return [
        {**row, f"style/{ALL}": 1.0, f"style/{ALL}_length": row[LENGTH],
         f"style/{ALL}_reward": row[REWARD]}
        for row in rows if LENGTH in row and REWARD in row
    ]  # fmt: skip


def draw_mechanism(runs: Mapping[str, Rows]) -> bytes:
    """A column of three panels for each run, by its title; the columns share their axes."""
    runs = {title: with_styles(rows) for title, rows in runs.items()}
    styles = list(dict.fromkeys(style for rows in runs.values() for style in styles_of(rows)))
    without = [title for title, rows in runs.items() if not styles_of(rows)]
    if without:
        raise ConfigurationError(
            f"run {', '.join(without)} logged no rewards of answers; give runs that were trained"
        )
    with matplotlib.rc_context(STYLE):
        figure = Figure((WIDTH * len(runs) + 0.4, HEIGHT), dpi=DPI, layout="constrained")
        panels: Any = figure.subplots(3, len(runs), sharey="row", sharex="row", squeeze=False)
        for (shares, paths, weights), (title, rows) in zip(panels.T, runs.items(), strict=True):
            _shares(shares, rows, styles)
            _trajectories(paths, rows, styles)
            _weights(weights, rows)
            shares.set_title(
                for_picture(title, 60), loc="left", fontweight="bold", color=INK, parse_math=False
            )
        for row, name in zip(panels, NAMES_OF_ROWS, strict=True):
            row[0].set_ylabel(name)
        every = [trajectory(rows, style) for rows in runs.values() for style in styles]
        rewards = [reward for path in every for _, reward in path]
        low, high = min([0.0, *rewards]), max([1.0, *rewards])
        panels[1][0].set_ylim(1.05 * low, high if high == 1 else 1.05 * high)
        for row in (panels[0], panels[2]):
            legend(row[0], fontsize=8)
        return png_of(figure)


def _shares(axes: Axes, rows: Rows, styles: Sequence[str]) -> None:
    for number, style in enumerate(styles):
        turn, place = divmod(number, len(PALETTE))
        axes.plot(
            *points(rows, f"style/{style}"), color=PALETTE[place],
            linestyle="--" if turn else "-", linewidth=1.8, label=style,
        )  # fmt: skip
    axes.set_xlabel("GRPO steps")
    axes.set_ylim(0, 1)


def _trajectories(axes: Axes, rows: Rows, styles: Sequence[str]) -> None:
    """Small dots are early, the large one is last. Dashed: the same reward per token as that of the
    style which had the highest at the beginning."""
    rates, longest = [0.0], LEAST_TOKENS
    for style, colour in zip(styles, itertools.cycle(PALETTE), strict=False):
        path = trajectory(rows, style)
        if path:
            rates.append(path[0][1] / max(path[0][0], 1.0))
            lengths, rewards = zip(*path, strict=True)
            longest = max(longest, *lengths)
            axes.plot(lengths, rewards, color=colour, linewidth=0.8, alpha=0.6)
            sizes = [10 + 60 * (place + 1) / len(path) for place in range(len(path))]
            axes.scatter(lengths, rewards, s=sizes, color=colour, label=style, linewidth=0)
    axes.axline((0, 0), slope=max(rates), color=FAINT, linewidth=0.8, linestyle=(0, (4, 3)))
    axes.set_xlabel("length (tokens); larger dots are later")
    axes.set_xlim(0, max(axes.get_xlim()[1], 1.05 * longest))  # the axes of a row share it


def trajectory(rows: Rows, style: str) -> list[tuple[float, float]]:
    """(length, pass rate) of a style's answers, averaged over windows of steps by their number."""
    shares, lengths, rewards = (
        dict(zip(*points(rows, f"style/{style}{end}"), strict=True))
        for end in ("", "_length", "_reward")
    )
    steps, path = sorted(shares), []
    for first in range(0, len(steps), WINDOW):
        window = steps[first : first + WINDOW]
        graded = [step for step in window if step in lengths and step in rewards]
        total = sum(shares[step] for step in graded)
        if graded and total / len(window) >= SEEN:
            sums = [sum(shares[s] * of[s] for s in graded) for of in (lengths, rewards)]
            path.append((sums[0] / total, sums[1] / total))
    return path


def _weights(axes: Axes, rows: Rows) -> None:
    for quarter, (name, colour) in enumerate(QUARTERS.items(), 1):
        steps, values = points(rows, f"advantages/weight/q{quarter}")
        windows = (values[max(0, end - SMOOTH) : end] for end in range(1, len(values) + 1))
        smooth = list(map(statistics.fmean, windows))
        axes.plot(steps, smooth, color=colour, linewidth=1.6, label=name)
    axes.axhline(0.25, color=FAINT, linewidth=0.6)
    axes.set_xlabel("GRPO steps")
    axes.set_ylim(0, 1)
