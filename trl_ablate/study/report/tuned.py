"""A study with tuning: its trials, and the runs at each arm's own best and at its reference's."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trl_ablate.study.factors import level_text
from trl_ablate.study.planned import Plan
from trl_ablate.study.report.curves import Run
from trl_ablate.study.runs import Tuned, score, tuned
from trl_ablate.study.tuning import Tuning


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
