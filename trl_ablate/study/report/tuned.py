"""A study with tuning: its trials, and the runs at each arm's own best and at its reference's."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trl_ablate.study.factors import level_text
from trl_ablate.study.planned import Plan
from trl_ablate.study.report.curves import Run
from trl_ablate.study.runs import score
from trl_ablate.study.schedule import Finished, Tuned, reference_of, tuned
from trl_ablate.study.tuning import Tuning


@dataclass(frozen=True)
class TunedRuns:
    """The runs of a study with tuning. Arms have the names that they have in the study."""

    tuning: Tuning
    arms: dict[str, Tuned]
    trials: dict[str, list[list[Run]]]
    """Arm -> the trials of each value; those that are not needed have no outcome."""
    own: list[Run]
    """With fresh seeds, each arm at its own best value; without curves before it is known."""
    at_reference: list[Run]
    """With fresh seeds, each arm at the best value of its reference."""
    references: dict[str, str]
    metric: str

    def value(self, candidate: str | None, arm: str) -> str:
        """The text of a candidate's value."""
        if candidate is None:
            return "not known yet"
        return level_text(self.tuning.values[self.tuning.arms[arm].index(candidate)])

    def best(self, arm: str) -> str:
        return self.value(self.arms[arm].best, arm)

    def score(self, run: Run) -> float | None:
        return score(run, self.metric, self.tuning)


def split(plan: Plan, runs: Sequence[Run]) -> TunedRuns:
    """Sort the runs of a plan, arm by arm as `planned_runs` returns them."""
    tuning = plan.tuning
    if tuning is None:
        raise ValueError(f"study {plan.study} has no tuning")
    by_candidate: dict[str, list[Run]] = {arm.name: [] for arm in plan.arms}
    for run in runs:
        by_candidate[run.arm].append(run)
    arms = {each.arm: each for each in tuned(plan, _finished(plan, by_candidate, tuning))}
    trials = len(tuning.seeds)

    def fresh(arm: str, candidate: str | None) -> list[Run]:
        found = by_candidate[candidate or tuning.arms[arm][0]][trials:]
        known = found if candidate else [_to_do(run) for run in found]
        return [replace(run, arm=arm) for run in known]

    return TunedRuns(
        tuning=tuning,
        arms=arms,
        trials={
            arm: [by_candidate[name][:trials] for name in names]
            for arm, names in tuning.arms.items()
        },
        own=[run for arm, each in arms.items() for run in fresh(arm, each.best)],
        at_reference=[run for arm, each in arms.items() for run in fresh(arm, each.at_reference)],
        references={arm: reference_of(plan, arm) for arm in arms},
        metric=plan.primary_metric,
    )


def _finished(plan: Plan, by_candidate: dict[str, list[Run]], tuning: Tuning) -> Finished:
    return {
        planned.id: score(run, plan.primary_metric, tuning)
        for arm in plan.arms
        for planned, run in zip(arm.runs, by_candidate[arm.name], strict=True)
        if run.counts or run.status == "failed"
    }


def _to_do(run: Run) -> Run:
    return Run(arm=run.arm, seed=run.seed, status="to do")
