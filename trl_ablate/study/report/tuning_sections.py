"""The sections of a report about tuning: both answers, the trials, and the sensitivity picture."""

from collections.abc import Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from trl_ablate.run.picture import STYLE, png_of
from trl_ablate.run.untrusted import for_picture
from trl_ablate.study.factors import level_text
from trl_ablate.study.planned import Plan
from trl_ablate.study.report import effect_sections, sections
from trl_ablate.study.report.analysis import Analysis, analyse
from trl_ablate.study.report.document import Block, Grid, Items, Picture, Section, Text
from trl_ablate.study.report.factorial import factorial
from trl_ablate.study.report.labels import gutter, label_ends
from trl_ablate.study.report.pictures import DPI, Look, looks
from trl_ablate.study.report.stats import TOO_FEW
from trl_ablate.study.report.tuned import TunedRuns

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


def at_reference(found: TunedRuns, plan: Plan, own: Analysis) -> Section | None:
    """The answer at the value that is best for each arm's reference; None before one is known.

    Args:
        own: the first answer, each arm at its own best.
    """
    if not any(each.at_reference for each in found.arms.values()):
        return None
    analysis = analyse(found.at_reference, plan.primary_metric, plan.decide_on, plan.against)
    values = dict.fromkeys(found.best(found.references[arm]) for arm in found.arms)
    about = Text(
        f"The same arms, each at the {found.tuning.key} that is best for its reference "
        f"({', '.join(values)}). Its verdicts are a family of their own, corrected without those "
        "above."
    )
    blocks: list[Block] = [about]
    if plan.design is not None:
        effects = factorial(plan, found.at_reference)
        blocks += effect_sections.answer(effects, analysis, None).blocks
        blocks += effect_sections.effects_table(effects).blocks
    else:
        blocks += sections.answer(analysis, None).blocks
        changed = _changed(found, own, analysis)
        blocks += [Items(changed)] if changed else []
        blocks += sections.comparisons_table(analysis).blocks
    return Section(f"Answer at the reference's {found.tuning.key}", blocks)


def _changed(found: TunedRuns, own: Analysis, shared: Analysis) -> list[str]:
    """Arms whose verdict depends on where they are compared."""
    pairs = [(own.decisive[arm], shared.decisive[arm]) for arm in own.decisive]
    return [
        f"{mine.arm}: {theirs.verdict} at its reference's {found.tuning.key} "
        f"({found.best(found.references[mine.arm])}), {mine.verdict} at its own best "
        f"({found.best(mine.arm)}): the verdict depends on the {found.tuning.key}."
        for mine, theirs in pairs
        if mine.verdict != theirs.verdict and TOO_FEW not in (mine.verdict, theirs.verdict)
    ]


def trials(found: TunedRuns, picture: Picture | None) -> Section:
    """Every value of every arm, and what is doubtful about the choice."""
    key, by = found.tuning.key, found.tuning.by
    header = ["arm", key, "trials", "collapsed", f"{sections.NAMES[by]} {found.metric}"]
    rows = [
        _row(found, arm, place) for arm in found.arms for place in range(len(found.tuning.values))
    ]
    blocks: list[Block] = [picture] if picture else []
    blocks += [Text(text) for text in _doubts(found)]
    return Section("Tuning", [*blocks, Grid(header, rows, NOTE, numbers_from=2)])


def _row(found: TunedRuns, arm: str, place: int) -> list[str]:
    runs = found.trials[arm][place]
    known = [score for run in runs if (score := found.score(run)) is not None]
    chosen = found.arms[arm].standing.chosen == place
    return [
        arm,
        level_text(found.tuning.values[place]) + (" *" if chosen else ""),
        str(len(known)),
        str(len(_collapsed(found, arm, place))),
        sections.number(sum(known) / len(known) if known else None),
    ]


def _collapsed(found: TunedRuns, arm: str, place: int) -> list[float]:
    """The scores of the trials that collapsed."""
    runs = found.trials[arm][place]
    return [
        score
        for run in runs
        if (score := found.score(run)) is not None
        and (summary := run.summary(found.metric))
        and summary.collapsed_at is not None
    ]


def _doubts(found: TunedRuns) -> list[str]:
    texts = []
    values, key = found.tuning.values, found.tuning.key
    for arm, each in found.arms.items():
        done = sum(
            found.score(found.trials[arm][value][seed]) is not None
            for value, seed in each.standing.trials
        )
        if each.standing.chosen is None:
            texts.append(
                f"{arm}: tuning is not complete, {done} of {len(each.standing.trials)} trials have "
                "an outcome: it has no best value yet."
            )
        elif done < len(each.standing.trials):
            texts.append(
                f"{arm}: {len(each.standing.trials) - done} of {len(each.standing.trials)} trials "
                "have no outcome; the choice rests on the others."
            )
        if each.standing.chosen in (_extremes(values) or ()):
            texts.append(
                f"{arm}: its best {key}, {found.best(arm)}, is at the edge of the values tried; a "
                "better one may lie beyond."
            )
    return texts


def _extremes(values: Sequence[object]) -> tuple[int, int] | None:
    """The places of the lowest and the highest of three or more numbers."""
    numbers = [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
    if len(numbers) != len(values) or len(values) < 3:
        return None
    return numbers.index(min(numbers)), numbers.index(max(numbers))


def sensitivity(found: TunedRuns) -> Picture | None:
    """The outcome of the trials against the tuned value, a line for each arm; None without any."""
    lines = {arm: _means(found, arm) for arm in found.arms}
    if not any(lines.values()):
        return None
    key = found.tuning.key
    with matplotlib.rc_context(STYLE):
        space = gutter([for_picture(arm) for arm in lines])
        figure = Figure((WIDTH + space, HEIGHT), dpi=DPI)
        axes = figure.add_axes((0.62 / (WIDTH + space), 0.16, (WIDTH - 0.9) / (WIDTH + space), 0.7))
        xs = _scale(axes, found.tuning.values)
        styles = looks(list(lines))
        for arm, means in reversed(lines.items()):
            _draw(axes, found, arm, xs, means, styles[arm])
        axes.set_xlabel(for_picture(key), parse_math=False)
        axes.set_title(
            for_picture(f"{sections.NAMES[found.tuning.by]} {found.metric} of trials (a cross marks"
                        " a collapse)", 110),
            loc="left", fontsize=10, fontweight="bold", parse_math=False,
        )  # fmt: skip
        last = {arm: max(means, key=xs.__getitem__) for arm, means in lines.items() if means}
        ends = {arm: (xs[place], lines[arm][place]) for arm, place in last.items()}
        label_ends(axes, ends, {arm: styles[arm][0] for arm in ends})
        png = png_of(figure)
    about = (
        f"{sections.NAMES[found.tuning.by]} {found.metric} against {key}: a line through the mean "
        "of each arm's trials, dots for single trials, crosses for collapsed ones"
    )
    return Picture("sensitivity.png", png, about)


def _means(found: TunedRuns, arm: str) -> dict[int, float]:
    """Place of a value -> the mean over its trials."""
    means = {}
    for place, runs in enumerate(found.trials[arm]):
        known = [score for run in runs if (score := found.score(run)) is not None]
        if known:
            means[place] = sum(known) / len(known)
    return means


def _draw(
    axes: Axes, found: TunedRuns, arm: str, xs: list[float], means: dict[int, float], look: Look
) -> None:
    colour, dash = look
    places = sorted(means, key=lambda place: xs[place])
    axes.plot([xs[p] for p in places], [means[p] for p in places], color=colour, linestyle=dash,
              linewidth=1.7)  # fmt: skip
    for place, runs in enumerate(found.trials[arm]):
        scores = [score for run in runs if (score := found.score(run)) is not None]
        fallen = _collapsed(found, arm, place)
        axes.plot([xs[place]] * len(scores), scores, "o", color=colour, markersize=3.5, alpha=0.6)
        axes.plot([xs[place]] * len(fallen), fallen, "X", color=colour, markersize=8,
                  markeredgecolor="white", zorder=5)  # fmt: skip


def _scale(axes: Axes, values: Sequence[object]) -> list[float]:
    """The places of the values on the axis: numbers to scale, others side by side."""
    numbers = [float(v) for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
    if len(numbers) != len(values):
        numbers = [float(place) for place in range(len(values))]
    elif min(numbers) > 0 and max(numbers) / min(numbers) >= LOG_RANGE:
        axes.set_xscale("log")
    axes.set_xticks(numbers, [for_picture(level_text(v), 16) for v in values], parse_math=False)
    axes.minorticks_off()
    return numbers
