"""The sections of a report about tuning: both answers, the trials, and the sensitivity picture."""

from collections.abc import Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from trl_ablate.run.picture import STYLE, png_of
from trl_ablate.run.untrusted import for_picture
from trl_ablate.study.factors import level_text
from trl_ablate.study.planned import Plan
from trl_ablate.study.report import effect_sections, sections, verdicts
from trl_ablate.study.report.analysis import STATISTICS, Analysis, analyse
from trl_ablate.study.report.document import Block, Columns, Items, Picture, Section, Text, table
from trl_ablate.study.report.factorial import factorial
from trl_ablate.study.report.lines import gutter, label_ends
from trl_ablate.study.report.numbers import number
from trl_ablate.study.report.pictures import DPI, Look, looks
from trl_ablate.study.report.tuned import Trials, TunedRuns
from trl_ablate.study.verdict import Verdict

WIDTH, HEIGHT = 7.2, 3.6
LOG_RANGE = 10.0
"""Positive values that span this factor or more are drawn on a logarithmic axis."""
NOTE = (
    "Mean over the trials of each value, whose seeds are used for nothing else; * the arm's best. "
    "The mean of a best value is too high, as it was chosen for being high: the answers come from "
    "fresh seeds."
)


def lead(found: TunedRuns) -> Text:
    """What the first answer compares."""
    chosen = ", ".join(f"{arm} {found.best(arm)}" for arm in found.arms)
    return Text(
        f"Each arm at its own best {found.tuning.key} ({chosen}), which all arms searched with the "
        "same trials; the runs here have other seeds than the trials."
    )


def at_reference(found: TunedRuns, plan: Plan, own: Analysis) -> Section:
    """The answer at the value that is best for each arm's reference; empty before one is known.

    Args:
        own: the first answer, each arm at its own best.
    """
    key = found.tuning.key
    title = f"Answer at the reference's {key}"
    if not any(each.at_reference for each in found.arms.values()):
        return Section(title)
    analysis = analyse(found.at_reference, plan.primary_metric, plan.decide_on, plan.against)
    values = dict.fromkeys(found.best(found.references[arm]) for arm in found.arms)
    about = Text(
        f"The same arms, each at the {key} that is best for its reference ({', '.join(values)}). "
        "Its verdicts are a family of their own, corrected without those above."
    )
    blocks: list[Block] = [about]
    if plan.design is not None:
        effects = factorial(plan, found.at_reference)
        blocks += effect_sections.answer(effects, analysis, None).blocks
        blocks += effect_sections.effects_table(effects).blocks
    else:
        blocks += verdicts.answer(analysis, None).blocks
        changed = _changed(found, own, analysis)
        blocks += [Items(changed)] if changed else []
        blocks += sections.comparisons_table(analysis).blocks
    return Section(title, blocks)


def _changed(found: TunedRuns, own: Analysis, shared: Analysis) -> list[str]:
    """Arms whose verdict depends on where they are compared."""
    key, lines = found.tuning.key, []
    for arm, at_own in own.decisive.items():
        both = (shared.decisive[arm].verdict, at_own.verdict)
        if both[0] != both[1] and Verdict.TOO_FEW not in both:
            lines.append(
                f"{arm}: {both[0]} at its reference's {key} "
                f"({found.best(found.references[arm])}), {both[1]} at its own best "
                f"({found.best(arm)}): the verdict depends on the {key}."
            )
    return lines


def trials(found: TunedRuns) -> Section:
    """Every value of every arm, and what is doubtful about the choice."""

    def value(row: tuple[str, int, Trials]) -> str:
        arm, place, _ = row
        chosen = found.arms[arm].standing.chosen == place
        return level_text(found.tuning.values[place]) + " *" * chosen

    columns: Columns = [
        ("arm", lambda row: row[0]),
        (found.tuning.key, value),
        ("trials", lambda row: str(len(row[2].scores))),
        ("collapsed", lambda row: str(len(row[2].collapsed))),
        (f"{STATISTICS[found.tuning.by]} {found.metric}", lambda row: number(row[2].mean)),
    ]
    rows = [(arm, i, each) for arm, of in found.trials.items() for i, each in enumerate(of)]
    shown = table("Tuning", rows, columns, NOTE, 2)
    shown.blocks[:0] = [*sensitivity(found), *map(Text, _doubts(found))]
    return shown


def _doubts(found: TunedRuns) -> list[str]:
    texts, key, numbers = [], found.tuning.key, _numbers(found.tuning.values)
    extremes = [numbers.index(min(numbers)), numbers.index(max(numbers))] if numbers[2:] else []
    for arm, each in found.arms.items():
        needed = len(each.standing.trials)
        done = sum(len(of.scores) for of in found.trials[arm])
        if each.standing.chosen is None:
            texts.append(
                f"{arm}: tuning is not complete, {done} of {needed} trials have an outcome: it has "
                "no best value yet."
            )
        elif done < needed:
            texts.append(
                f"{arm}: {needed - done} of {needed} trials have no outcome; the choice rests on "
                "the others."
            )
        if each.standing.chosen in extremes:
            texts.append(
                f"{arm}: its best {key}, {found.best(arm)}, is at the edge of the values tried; a "
                "better one may lie beyond."
            )
    return texts


def sensitivity(found: TunedRuns) -> list[Picture]:
    """The outcome of the trials against the tuned value, a line for each arm; none without any."""
    ends: dict[str, tuple[float, float]] = {}
    key, what = found.tuning.key, f"{STATISTICS[found.tuning.by]} {found.metric}"
    with matplotlib.rc_context(STYLE):
        across = WIDTH + gutter([for_picture(arm) for arm in found.arms])
        figure = Figure((across, HEIGHT), dpi=DPI)
        axes = figure.add_axes((0.62 / across, 0.16, (WIDTH - 0.9) / across, 0.7))
        xs, styles = _scale(axes, found.tuning.values), looks(list(found.arms))
        for arm, tried in reversed(found.trials.items()):
            drawn = [(x, each) for x, each in zip(xs, tried, strict=True) if each.scores]
            if drawn:
                ends[arm] = _draw(axes, drawn, styles[arm])
        axes.set_xlabel(for_picture(key), parse_math=False)
        axes.set_title(
            for_picture(f"{what} of trials (a cross marks a collapse)", 110), loc="left",
            fontsize=10, fontweight="bold", parse_math=False,
        )  # fmt: skip
        label_ends(axes, ends, {arm: styles[arm][0] for arm in ends})
        about = (
            f"{what} against {key}: a line through the mean of each arm's trials, dots for single "
            "trials, crosses for collapsed ones"
        )
        return [Picture("sensitivity.png", png_of(figure), about)] if ends else []


def _draw(axes: Axes, drawn: list[tuple[float, Trials]], look: Look) -> tuple[float, float]:
    """Draw the line of an arm; its right end."""
    colour, dash = look
    means = sorted((x, each.mean or 0.0) for x, each in drawn)
    axes.plot([x for x, _ in means], [y for _, y in means], color=colour, linestyle=dash,
              linewidth=1.7)  # fmt: skip
    for x, each in drawn:
        axes.plot([x] * len(each.scores), each.scores, "o", color=colour, markersize=3.5, alpha=0.6)
        axes.plot([x] * len(each.collapsed), each.collapsed, "X", color=colour, markersize=8,
                  markeredgecolor="white", zorder=5)  # fmt: skip
    return means[-1]


def _numbers(values: Sequence[object]) -> list[float]:
    """The values, if all are numbers."""
    found = [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
    return [float(v) for v in found] if len(found) == len(values) else []


def _scale(axes: Axes, values: Sequence[object]) -> list[float]:
    """The places of the values on the axis: numbers to scale, others side by side."""
    numbers = _numbers(values)
    if numbers and min(numbers) > 0 and max(numbers) / min(numbers) >= LOG_RANGE:
        axes.set_xscale("log")
    places = numbers or [float(place) for place in range(len(values))]
    axes.set_xticks(places, [for_picture(level_text(v), 16) for v in values], parse_math=False)
    axes.minorticks_off()
    return places
