"""The runs of a study and their states: what has ended, how, and what comes next. No torch.

States and outcomes are read once, so an object is a picture of one moment: `again` looks again.
All is computed from the run directories, so a study that was interrupted, killed or moved to
another engine goes on where it was, to the same verdicts.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from trl_ablate.errors import ConfigurationError
from trl_ablate.study.planned import Plan, PlannedArm, PlannedRun, in_order
from trl_ablate.study.report.curves import Run, planned_run, planned_runs
from trl_ablate.study.schedule import Finished, compared, needed, next_runs, up_to_next_look
from trl_ablate.study.store import RunStore, State
from trl_ablate.study.tuning import Tuning

if TYPE_CHECKING:
    from trl_ablate.study.report.analysis import Analysis


@dataclass(frozen=True)
class StudyRuns:
    """A plan, and the store that has its runs."""

    plan: Plan
    store: RunStore

    def again(self) -> "StudyRuns":
        return StudyRuns(self.plan, self.store)

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
        runs = [(arm, run) for arm in self.plan.arms for run in arm.runs if run.id in ended]
        return {run.id: outcome_of(self.plan, arm, run, self.store) for arm, run in runs}

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
        left = [run.id for run in self.needed if run.id not in self.done]
        return [run_id for run_id in left if self.states[run_id].status != "running"]

    @cached_property
    def analysis(self) -> "Analysis":
        """The numbers of the study, as far as its runs are done."""
        runs = planned_runs(self.plan, self.store)
        if self.plan.tuning:
            from trl_ablate.study.report.tuned import split

            runs = split(self.plan, runs).own
        return analysis_of(self.plan, runs)

    @property
    def undecided(self) -> list[str]:
        """The arms whose comparison needs more seeds."""
        found = self.analysis.decisive.items()
        return [name for name, comparison in found if comparison.next_look is not None]

    def of_pass(self, until_decided: bool, failed: Container[str] = ()) -> list[str]:
        """Ids of the runs to do in this pass, seed by seed: those of the next look of an undecided
        comparison, or all that are known to be needed. Those that failed in an earlier pass are
        left out."""
        ended = {i: o for i, o in self.finished.items() if i in failed or i in self.done}
        if self.plan.looks and until_decided:
            runs = self._of_next_look(ended)
        else:
            runs = next_runs(self.plan, ended)
        return [run.id for run in runs if run.id not in failed]

    def _of_next_look(self, ended: Finished) -> list[PlannedRun]:
        """The trials that have not ended; after them, the runs of the next look."""
        of_arm = compared(self.plan, ended)
        tuning = self.plan.tuning
        if tuning and not all(of_arm.values()):
            return [run for run in next_runs(self.plan, ended) if run.seed in tuning.seeds]
        seeds = up_to_next_look(self.plan, self.analysis)
        wanted = {run.id for arm, own in of_arm.items() for run in own[: seeds[arm]]}
        return [run for run in in_order(self.plan) if run.id in wanted - self.done]

    def check_has_looks(self) -> None:
        if not self.plan.looks:
            raise ConfigurationError(
                f"study {self.plan.study}: its seeds are fixed, so --until decided has nothing to "
                "add; write seeds: {looks: [3, 5, 8, 12]} in study.yaml, or leave out --until"
            )


def analysis_of(plan: Plan, runs: Sequence[Run]) -> "Analysis":
    """Runs of a plan, compared as the plan says."""
    from trl_ablate.study.report.analysis import analyse

    return analyse(
        runs, plan.primary_metric, plan.decide_on, plan.against,
        plan.looks, plan.equivalence_margin, plan.judge, plan.threshold,
    )  # fmt: skip


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
