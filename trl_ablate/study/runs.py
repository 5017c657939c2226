"""The runs of a study and their states: what has ended, how, and what comes next. No torch.

States and outcomes are read once, so an object is a picture of one moment: make a new one to look
again.
"""

from dataclasses import dataclass
from functools import cached_property

from trl_ablate.study.planned import Plan, PlannedArm, PlannedRun
from trl_ablate.study.report.curves import Run, planned_run
from trl_ablate.study.schedule import Finished, needed
from trl_ablate.study.store import RunStore, State
from trl_ablate.study.tuning import Tuning


@dataclass(frozen=True)
class StudyRuns:
    """A plan, and the store that has its runs."""

    plan: Plan
    store: RunStore

    @cached_property
    def states(self) -> dict[str, State]:
        """The state of every run, by id."""
        return {run_id: self.store.state(run_id) for run_id in self.plan.runs()}

    @cached_property
    def done(self) -> set[str]:
        """Ids of the runs that have a result."""
        return {run_id for run_id, state in self.states.items() if state.done}

    @cached_property
    def finished(self) -> Finished:
        """The runs that have ended, failed ones included, and their outcomes."""
        ended = self.done | {i for i, state in self.states.items() if state.status == "failed"}
        found: dict[str, float | None] = {}
        for arm in self.plan.arms:
            for run in arm.runs:
                if run.id in ended and run.id not in found:
                    found[run.id] = outcome_of(self.plan, arm, run, self.store)
        return found

    @cached_property
    def needed(self) -> list[PlannedRun]:
        """The runs that are known to be needed so far, ended ones included; seed by seed."""
        return needed(self.plan, self.finished if self.plan.tuning else {})

    @property
    def next(self) -> list[PlannedRun]:
        """Those of them that have not ended."""
        return [run for run in self.needed if run.id not in self.finished]

    @property
    def to_start(self) -> list[str]:
        """Ids of the needed runs that are not done and that no process works on."""
        return [
            run.id
            for run in self.needed
            if run.id not in self.done and self.states[run.id].status != "running"
        ]


def outcome_of(plan: Plan, arm: PlannedArm, run: PlannedRun, store: RunStore) -> float | None:
    """The value by which a trial is judged; None if the run did not end, or logged nothing.

    A run that collapsed or was stopped has ended, and counts with the value it ended at. Without
    tuning nothing depends on outcomes, and no curve is read.
    """
    if plan.tuning is None:
        return None
    return score(planned_run(plan, arm, run, store), plan.primary_metric, plan.tuning)


def score(run: Run, metric: str, tuning: Tuning) -> float | None:
    """The outcome by which a trial is judged; None without one."""
    summary = run.outcome(metric)
    return None if summary is None else summary.value(tuning.by)
