"""The runs of a study: their states, which ones it needs, and what comes next. No torch.

A study with fixed seeds needs all its runs. With tuning, an arm's trials come first, and its other
runs follow from their outcomes, arm by arm. With looks, seeds are added where a comparison is
undecided. All is computed from the run directories: a study that was interrupted, killed or moved
to another engine goes on where it was, to the same verdicts.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from trl_ablate.errors import ConfigurationError, nearest
from trl_ablate.study.planned import Plan, PlannedArm, PlannedRun, in_order
from trl_ablate.study.report.curves import Run, planned_run, planned_runs
from trl_ablate.study.store import RunStore, State
from trl_ablate.study.tuning import Standing, Tuning, standing
from trl_ablate.study.verdict import reference_runs

if TYPE_CHECKING:
    from trl_ablate.study.report.analysis import Analysis

Finished = Mapping[str, float | None]
"""Run id -> the outcome that the study decides on; None for a run that ended without one."""

PREFERRED = 1e9
"""Above every outcome."""


@dataclass(frozen=True)
class Tuned:
    """The tuning of one arm, and where its other runs are: the candidates with the arm's own best
    value and, unless arms are judged in two parts, with its reference's, once they are known."""

    arm: str
    standing: Standing
    best: str | None
    at_reference: str | None


def next_runs(plan: Plan, finished: Finished) -> list[PlannedRun]:
    """The runs that can start now and have not ended, seed by seed."""
    return [run for run in needed(plan, finished) if run.id not in finished]


def needed(plan: Plan, finished: Finished) -> list[PlannedRun]:
    """The runs that are known to be needed so far, whether or not they have ended."""
    if plan.tuning is None:
        return in_order(plan)
    runs, ids = plan.runs_of, set[str]()
    for each in tuned(plan, finished):
        names = plan.tuning.arms[each.arm]
        ids |= {runs[names[value]][seed].id for value, seed in each.standing.trials}
        for name in filter(None, (each.best, each.at_reference)):
            ids |= {run.id for run in runs[name][plan.trials :]}
    return in_order(plan, ids)


def up_to_next_look(plan: Plan, analysis: "Analysis") -> dict[str, int]:
    """How many seeds of each arm the next look of every undecided comparison needs, and how many
    the others have used."""
    seeds = dict.fromkeys(plan.names, 0 if analysis.decisive else plan.looks[0])
    for name, comparison in analysis.decisive.items():
        used = comparison.next_look or comparison.n or plan.looks[0]  # same runs: 0
        other = analysis.reference_of(name).name
        pool = plan.pool if other == plan.names[0] else None
        of = reference_runs(used, plan.looks[-1], pool)
        seeds[name], seeds[other] = max(seeds[name], used), max(seeds[other], of)
    return seeds


def look_of(plan: Plan, wanted: Iterable[str]) -> int:
    """The number of the look that needs these runs, from 0 on; 0 without looks."""
    needed_by = [plan.up_to(seeds) for seeds in plan.looks]
    return max((sum(run_id not in ids for ids in needed_by) for run_id in wanted), default=0)


def tuned(plan: Plan, finished: Finished) -> list[Tuned]:
    """The tuning of every arm so far."""
    tuning, runs = plan.tuning, plan.runs_of
    assert tuning is not None, f"study {plan.study} has no tuning"
    found: dict[str, Standing] = {}
    for arm, candidates in tuning.arms.items():
        ended = {
            (value, seed): finished[run.id]
            for value, name in enumerate(candidates)
            for seed, run in enumerate(runs[name][: plan.trials])
            if run.id in finished
        }
        found[arm] = standing(tuning, ended)

    def best(arm: str, of: str) -> str | None:
        chosen = found[of].chosen
        return None if chosen is None else tuning.arms[arm][chosen]

    return [
        Tuned(arm, each, best(arm, arm), None if plan.pool else best(arm, plan.reference_of(arm)))
        for arm, each in found.items()
    ]


def bounds(plan: Plan, finished: Finished) -> tuple[list[PlannedRun], list[PlannedRun]]:
    """The runs that the study needs in the best and in the worst case, given what has finished.

    Best: all arms that are still tuned prefer the first value. Worst: each prefers another value
    than its reference.
    """
    cases = dict(finished), dict(finished)
    for name, candidates in plan.tuning.arms.items() if plan.tuning else ():
        last = len(candidates) - 1 if _depth(plan, name) % 2 else 0
        for ended, favourite in zip(cases, (0, last), strict=True):
            for value, candidate in enumerate(candidates):
                for run in plan.runs_of[candidate][: plan.trials]:
                    ended.setdefault(run.id, PREFERRED if value == favourite else 0.0)
    best, worst = (needed(plan, ended) for ended in cases)
    return best, worst


def _depth(plan: Plan, arm: str) -> int:
    """The number of references between an arm and the first one."""
    reference = plan.reference_of(arm)
    return 0 if reference == arm else 1 + _depth(plan, reference)


@dataclass(frozen=True)
class StudyRuns:
    """A plan, and the store that has its runs.

    States and outcomes are read once, so an object is a picture of one moment: `again` looks again.
    """

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
        return {
            run.id: self.outcome(arm, run)
            for arm in self.plan.arms
            for run in arm.runs
            if run.id in self.done or self.states[run.id].status == "failed"
        }

    def outcome(self, arm: PlannedArm, run: PlannedRun) -> float | None:
        """The value by which a trial is judged, also of a run that collapsed or was stopped; None
        if it logged nothing. Without tuning nothing depends on outcomes, and no curve is read."""
        if self.plan.tuning is None:
            return None
        found = planned_run(self.plan, arm, run, self.store)
        return score(found, self.plan.primary_metric, self.plan.tuning)

    @cached_property
    def needed(self) -> list[PlannedRun]:
        """The runs that are known to be needed so far, ended ones included; seed by seed."""
        return needed(self.plan, self.finished if self.plan.tuning else {})

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

    @cached_property
    def cases(self) -> tuple[set[str], set[str]]:
        """Ids of the runs that the study needs in the best and in the worst case. With looks: if
        the next one decides all comparisons, and if only the last one decides the open ones."""
        plan, each = self.plan, tuned(self.plan, self.finished) if self.plan.tuning else ()
        least, most = ({run.id for run in case} for case in bounds(plan, self.finished))
        if not plan.looks:
            return least, most
        if not self.done or not all(arm.best for arm in each):
            return least & plan.up_to(plan.looks[0]), most
        arms = {name for arm in self.undecided for name in (arm, plan.reference_of(arm))}
        names = [name for arm in arms for name in (plan.tuning.arms[arm] if plan.tuning else [arm])]
        of_open = {run.id for name in names for run in plan.runs_of[name]}
        least = self.done & least | {*self.of_pass(until_decided=True)}
        return least, least | most & of_open

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
        """The trials that have not ended; after them, the runs of the next look: with tuning, those
        at each arm's best value."""
        plan, of_arm = self.plan, self.plan.runs_of
        if plan.tuning:
            best = {each.arm: each.best for each in tuned(plan, ended)}
            trials = [run for run in next_runs(plan, ended) if run.seed in plan.tuning.seeds]
            if trials or not best[plan.names[0]]:
                return trials
            of_arm = {arm: of_arm[name][plan.trials :] for arm, name in best.items() if name}
        seeds = up_to_next_look(plan, self.analysis)
        wanted = {run.id for arm, own in of_arm.items() for run in own[: seeds[arm]]}
        return in_order(plan, wanted - self.done)

    @property
    def unlogged(self) -> str:
        """That runs are done and none has logged the primary metric; empty if that is not so."""
        metric, logged = self.plan.primary_metric, set[str]()
        for run_id in self.done:
            with suppress(ConfigurationError):  # a damaged row: those before it count
                for row in self.store.directory(run_id).metrics():
                    logged |= {name for name, value in row.items() if value is not None}
            if metric in logged:
                return ""
        otherwise = "name a metric that they log as primary_metric"
        meant = nearest(metric, logged, otherwise)
        return f"no finished run has logged {metric}{meant}" if self.done else ""


def analysis_of(plan: Plan, runs: Sequence[Run]) -> "Analysis":
    """Runs of a plan, compared as the plan says."""
    from trl_ablate.study.report.analysis import analyse

    return analyse(
        runs, plan.primary_metric, plan.decide_on, plan.against,
        plan.looks, plan.equivalence_margin, plan.judge, plan.threshold, plan.pool,
    )  # fmt: skip


def score(run: Run, metric: str, tuning: Tuning) -> float | None:
    """The outcome by which a trial is judged; None without one."""
    summary = run.outcome(metric)
    return None if summary is None else summary.value(tuning.by)
