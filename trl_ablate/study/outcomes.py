"""The outcomes of runs that have ended, from which `schedule` decides what runs next. No torch."""

from trl_ablate.study.plan import Plan, PlannedArm, PlannedRun
from trl_ablate.study.report.curves import Run, planned_run
from trl_ablate.study.schedule import Finished
from trl_ablate.study.store import RunStore
from trl_ablate.study.tuning import Tuning


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


def finished(plan: Plan, store: RunStore) -> Finished:
    """The runs that have ended, failed ones included, and their outcomes."""
    found: dict[str, float | None] = {}
    for arm in plan.arms:
        for run in arm.runs:
            state = store.state(run.id)
            if run.id not in found and (state.done or state.status == "failed"):
                found[run.id] = outcome_of(plan, arm, run, store)
    return found
