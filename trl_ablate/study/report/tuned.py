"""A study with tuning: its trials, runs at each arm's own best value and at its reference's, and
the sections about them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trl_ablate.study.factors import level_text
from trl_ablate.study.planned import Plan
from trl_ablate.study.report import factorial, sections, verdicts
from trl_ablate.study.report.analysis import STATISTICS, Analysis, ArmResult, analyse
from trl_ablate.study.report.curves import Run
from trl_ablate.study.report.document import Columns, Items, Picture, Section, Text, table
from trl_ablate.study.report.numbers import number
from trl_ablate.study.runs import Tuned, score, tuned
from trl_ablate.study.tuning import Tuning
from trl_ablate.study.verdict import Verdict

NOTE = (
    "Mean over the trials of each value, whose seeds are used for nothing else; * the arm's best. "
    "The mean of a best value is too high, as it was chosen for being high: the answers come from "
    "fresh seeds."
)


@dataclass(frozen=True)
class TunedRuns:
    """The runs of a study with tuning. Arms have the names that they have in the study."""

    plan: Plan
    tuning: Tuning
    arms: dict[str, Tuned]
    trials: dict[str, list[ArmResult]]
    """Arm -> the trials of each value."""
    own: list[Run]
    """With fresh seeds, each arm at its own best value; without curves before it is known."""
    at_reference: list[Run]
    """With fresh seeds, each arm at the best value of its reference."""

    @property
    def numbers(self) -> list[float]:
        """The values, if all are numbers."""
        numeric = all(type(value) in (int, float) for value in self.tuning.values)
        return [float(value) for value in self.tuning.values] if numeric else []

    def best(self, arm: str) -> str:
        """The text of an arm's best value."""
        chosen = self.arms[arm].standing.chosen
        return "not known yet" if chosen is None else level_text(self.tuning.values[chosen])

    def best_of_reference(self, arm: str) -> str:
        return self.best(self.plan.reference_of(arm))

    @property
    def outcome_name(self) -> str:
        return f"{STATISTICS[self.tuning.by]} {self.plan.primary_metric}"

    @property
    def ended_trials(self) -> list[Run]:
        """Runs of tuning with an outcome, which no comparison uses."""
        every = (run for of_arm in self.trials.values() for each in of_arm for run in each.runs)
        return [run for run in every if run.counts]


def split(plan: Plan, runs: Sequence[Run]) -> TunedRuns:
    """Sort the runs of a plan, arm by arm as `planned_runs` returns them."""
    tuning, metric = plan.tuning, plan.primary_metric
    assert tuning is not None, f"study {plan.study} has no tuning"
    of_candidate = {name: [run for run in runs if run.arm == name] for name in plan.runs_of}
    finished = {
        planned.id: score(run, metric, tuning)
        for name, of in plan.runs_of.items()
        for planned, run in zip(of, of_candidate[name], strict=True)
        if run.counts or run.status == "failed"
    }
    arms = {each.arm: each for each in tuned(plan, finished)}

    def trials(candidate: str) -> ArmResult:
        return ArmResult(candidate, tuple(of_candidate[candidate][: plan.trials]), metric)

    def fresh(arm: str, candidate: str | None) -> list[Run]:
        found = of_candidate[candidate or tuning.arms[arm][0]][plan.trials :]
        if candidate is None:
            return [Run(arm=arm, seed=run.seed, status="to do") for run in found]
        return [replace(run, arm=arm) for run in found]

    return TunedRuns(
        plan=plan,
        tuning=tuning,
        arms=arms,
        trials={arm: [*map(trials, names)] for arm, names in tuning.arms.items()},
        own=[run for arm, each in arms.items() for run in fresh(arm, each.best)],
        at_reference=[run for arm, each in arms.items() for run in fresh(arm, each.at_reference)],
    )


def lead(found: TunedRuns) -> Text:
    """What the first answer compares."""
    chosen = ", ".join(f"{arm} {found.best(arm)}" for arm in found.arms)
    return Text(
        f"Each arm at its own best {found.tuning.key} ({chosen}), which all arms searched with the "
        "same trials; the runs here have other seeds than the trials."
    )


def at_reference(found: TunedRuns, own: Analysis) -> Section:
    """The answer at the value that is best for each arm's reference, beside `own`, each arm at its
    own best; empty before a value is known."""
    plan, key = found.plan, found.tuning.key
    title = f"Answer at the reference's {key}"
    if not any(each.at_reference for each in found.arms.values()):
        return Section(title)
    analysis = analyse(
        found.at_reference, plan.primary_metric, plan.decide_on, plan.against,
        margin=plan.equivalence_margin, references=found.own,
    )  # fmt: skip
    values = dict.fromkeys(map(found.best_of_reference, found.arms))
    about = Text(
        f"The same arms, each at the {key} that is best for its reference ({', '.join(values)}). "
        "Its verdicts are a family of their own, corrected without those above."
    )
    if plan.design is not None:
        effects = factorial.factorial(plan, analysis)
        parts = factorial.answer(effects, analysis, None), factorial.effects_table(effects)
    else:
        changed = _changed(found, own, analysis)
        parts = (
            verdicts.answer(analysis, None), Section("", [Items(changed)] if changed else []),
            sections.comparisons_table(analysis),
        )  # fmt: skip
    return Section(title, [about, *(block for part in parts for block in part.blocks)])


def _changed(found: TunedRuns, own: Analysis, shared: Analysis) -> list[str]:
    """Arms whose verdict depends on where they are compared."""
    key, lines = found.tuning.key, []
    for arm, at_own in own.decisive.items():
        both = (shared.decisive[arm].verdict, at_own.verdict)
        if both[0] != both[1] and Verdict.TOO_FEW not in both:
            lines.append(
                f"{arm}: {both[0]} at its reference's {key} ({found.best_of_reference(arm)}), "
                f"{both[1]} at its own best ({found.best(arm)}): the verdict depends on the {key}."
            )
    return lines


def trials_table(found: TunedRuns, pictures: Sequence[Picture]) -> Section:
    """Every value of every arm, and what is doubtful about the choice."""

    def value(row: tuple[str, int, ArmResult]) -> str:
        arm, place, _ = row
        chosen = found.arms[arm].standing.chosen == place
        return level_text(found.tuning.values[place]) + " *" * chosen

    columns: Columns = [
        ("arm", lambda row: row[0]),
        (found.tuning.key, value),
        ("trials", lambda row: str(row[2].ended)),
        ("collapsed", lambda row: str(row[2].collapsed)),
        (found.outcome_name, lambda row: number(row[2].intervals[found.tuning.by].mean)),
    ]
    rows = [(arm, i, each) for arm, of in found.trials.items() for i, each in enumerate(of)]
    shown = table("Tuning", rows, columns, NOTE, 2)
    doubts = (Text(text) for arm in found.arms for text in _doubts(found, arm))
    shown.blocks[:0] = [*pictures, *doubts]
    return shown


def _doubts(found: TunedRuns, arm: str) -> list[str]:
    numbers, (trials, chosen) = found.numbers, found.arms[arm].standing
    edges = [numbers.index(min(numbers)), numbers.index(max(numbers))] if numbers[2:] else []
    needed, done = len(trials), sum(of.ended for of in found.trials[arm])
    texts = []
    if chosen is None:
        texts.append(
            f"{arm}: tuning is not complete, {done} of {needed} trials have an outcome: it has no "
            "best value yet."
        )
    elif done < needed:
        texts.append(
            f"{arm}: {needed - done} of {needed} trials have no outcome; the choice rests on the "
            "others."
        )
    if chosen in edges:
        texts.append(
            f"{arm}: its best {found.tuning.key}, {found.best(arm)}, is at the edge of the values "
            "tried; a better one may lie beyond."
        )
    return texts
