"""A study with tuning: its trials, runs at each arm's own best value and at its reference's, and
the sections about them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trl_ablate.study.factors import level_text
from trl_ablate.study.planned import Plan
from trl_ablate.study.report import effect_sections, sections, verdicts
from trl_ablate.study.report.analysis import STATISTICS, Analysis, analyse
from trl_ablate.study.report.curves import Run
from trl_ablate.study.report.document import Block, Columns, Items, Picture, Section, Text, table
from trl_ablate.study.report.factorial import factorial
from trl_ablate.study.report.numbers import number
from trl_ablate.study.runs import Tuned, score, tuned
from trl_ablate.study.tuning import Tuning
from trl_ablate.study.verdict import Verdict


@dataclass(frozen=True)
class Trials:
    """The trials of one value in one arm, and the scores of those with an outcome."""

    runs: list[Run]
    scores: list[float]
    collapsed: list[float]
    """Scores of those that collapsed."""

    @property
    def mean(self) -> float | None:
        return sum(self.scores) / len(self.scores) if self.scores else None


@dataclass(frozen=True)
class TunedRuns:
    """The runs of a study with tuning. Arms have the names that they have in the study."""

    tuning: Tuning
    arms: dict[str, Tuned]
    trials: dict[str, list[Trials]]
    """Arm -> the trials of each value."""
    own: list[Run]
    """With fresh seeds, each arm at its own best value; without curves before it is known."""
    at_reference: list[Run]
    """With fresh seeds, each arm at the best value of its reference."""
    references: dict[str, str]
    metric: str

    @property
    def numbers(self) -> list[float]:
        """The values, if all are numbers."""
        of = self.tuning.values
        found = [v for v in of if isinstance(v, (int, float)) and not isinstance(v, bool)]
        return [float(v) for v in found] if len(found) == len(of) else []

    def best(self, arm: str) -> str:
        """The text of an arm's best value."""
        chosen = self.arms[arm].standing.chosen
        return "not known yet" if chosen is None else level_text(self.tuning.values[chosen])

    @property
    def ended_trials(self) -> list[Run]:
        """Runs of tuning with an outcome, which no comparison uses."""
        every = (run for of_arm in self.trials.values() for each in of_arm for run in each.runs)
        return [run for run in every if run.counts]


def split(plan: Plan, runs: Sequence[Run]) -> TunedRuns:
    """Sort the runs of a plan, arm by arm as `planned_runs` returns them."""
    tuning, metric = plan.tuning, plan.primary_metric
    if tuning is None:
        raise ValueError(f"study {plan.study} has no tuning")
    by_candidate = {arm.name: [run for run in runs if run.arm == arm.name] for arm in plan.arms}
    finished = {
        planned.id: score(run, metric, tuning)
        for arm in plan.arms
        for planned, run in zip(arm.runs, by_candidate[arm.name], strict=True)
        if run.counts or run.status == "failed"
    }
    arms = {each.arm: each for each in tuned(plan, finished)}
    number = len(tuning.seeds)

    def trials(candidate: str) -> Trials:
        of = by_candidate[candidate][:number]
        ended = [(s, s.value(tuning.by)) for run in of if (s := run.outcome(metric))]
        fallen = [value for summary, value in ended if summary.collapsed]
        return Trials(of, [value for _, value in ended], fallen)

    def fresh(arm: str, candidate: str | None) -> list[Run]:
        found = by_candidate[candidate or tuning.arms[arm][0]][number:]
        if candidate is None:
            return [Run(arm=arm, seed=run.seed, status="to do") for run in found]
        return [replace(run, arm=arm) for run in found]

    return TunedRuns(
        tuning=tuning,
        arms=arms,
        trials={arm: [trials(name) for name in names] for arm, names in tuning.arms.items()},
        own=[run for arm, each in arms.items() for run in fresh(arm, each.best)],
        at_reference=[run for arm, each in arms.items() for run in fresh(arm, each.at_reference)],
        references={arm: plan.reference_of(arm) for arm in arms},
        metric=metric,
    )


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
    analysis = analyse(
        found.at_reference, plan.primary_metric, plan.decide_on, plan.against,
        margin=plan.equivalence_margin,
    )  # fmt: skip
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


def trials_table(found: TunedRuns, pictures: Sequence[Picture]) -> Section:
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
    shown.blocks[:0] = [*pictures, *map(Text, _doubts(found))]
    return shown


def _doubts(found: TunedRuns) -> list[str]:
    texts, key, numbers = [], found.tuning.key, found.numbers
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
