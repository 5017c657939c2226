"""Several studies whose runs are in one folder: what comes next, and what all of it costs. No
torch.

Studies share runs: a run that several need is made and counted once, with the first of them.
"""

from bisect import bisect_right
from collections.abc import Container, Sequence
from dataclasses import dataclass, field

from trl_ablate.study.estimate import Measured, measured_for, typical, wall_hours
from trl_ablate.study.planned import Plan
from trl_ablate.study.rounds import runs_of_next_look
from trl_ablate.study.runs import StudyRuns
from trl_ablate.study.schedule import bounds, needed
from trl_ablate.study.store import RunStore


@dataclass(frozen=True)
class Share:
    """What a study adds to those before it, at best and at worst."""

    study: str
    runs: tuple[int, int]
    new: tuple[int, int]
    """Runs that no study before it has."""
    done: int
    """Of the new runs of the worst case."""
    hours: tuple[float | None, float | None]
    """Of one process, for the new runs that are not done; None: nothing was measured."""


@dataclass(frozen=True)
class Total:
    """All studies together."""

    shares: tuple[Share, ...]
    runs: tuple[int, int]
    done: int
    hours: tuple[float | None, float | None]
    wall: tuple[float | None, float | None]
    """Hours with the given number of processes at once."""


def runs_of_pass(
    plan: Plan, store: RunStore, until_decided: bool, failed: Container[str] = ()
) -> list[str]:
    """Ids of the runs that a study needs in this pass: those of its next look, or all that are
    known to be needed. Runs that have failed in an earlier pass are left out."""
    if plan.looks and until_decided:
        wanted = runs_of_next_look(plan, store)
    else:
        known = StudyRuns(plan, store)
        ended = {i: o for i, o in known.finished.items() if i in failed or i in known.done}
        wanted = [run.id for run in needed(plan, ended) if run.id not in ended]
    return [run_id for run_id in wanted if run_id not in failed]


def look_of(plan: Plan, wanted: Container[str]) -> int:
    """The number of the look that needs these runs, from 0 on; 0 without looks."""
    places = [n for arm in plan.arms for n, run in enumerate(arm.runs) if run.id in wanted]
    return bisect_right(plan.looks, max(places, default=0))


@dataclass
class _Case:
    """The runs of all studies so far, at best or at worst."""

    seen: set[str] = field(default_factory=set)
    seconds: list[float] = field(default_factory=list)
    """Of each run that is not done, as far as anything was measured."""

    def add(self, runs: set[str]) -> set[str]:
        """Add the runs of a study; returns those that no study before it has."""
        new = runs - self.seen
        self.seen |= runs
        return new


def total_of(plans: Sequence[Plan], store: RunStore, slots: int) -> Total:
    """What all studies cost. An arm that was not measured costs as much as those of its study that
    were, and then as much as those of all studies."""
    own = {plan.study: {a.name: measured_for(a, store) for a in plan.arms} for plan in plans}
    every = typical([found for arms in own.values() for found in arms.values() if found])
    best, worst = _Case(), _Case()
    shares: list[Share] = []
    for plan in plans:
        known = StudyRuns(plan, store)
        at_best, at_worst = _cases(known)
        new = best.add(at_best), worst.add(at_worst)
        done = known.done & (new[0] | new[1])
        costs = [_seconds(plan, runs - done, own[plan.study], every) for runs in new]
        best.seconds += costs[0]
        worst.seconds += costs[1]
        shares.append(
            Share(
                study=plan.study,
                runs=(len(at_best), len(at_worst)),
                new=(len(new[0]), len(new[1])),
                done=len(done & new[1]),
                hours=(_hours(costs[0], every), _hours(costs[1], every)),
            )
        )
    return Total(
        shares=tuple(shares),
        runs=(len(best.seen), len(worst.seen)),
        done=sum(share.done for share in shares),
        hours=(_hours(best.seconds, every), _hours(worst.seconds, every)),
        wall=(_wall(best.seconds, slots, every), _wall(worst.seconds, slots, every)),
    )


def _cases(known: StudyRuns) -> tuple[set[str], set[str]]:
    """The runs of a study at best, decided at the first look, and at worst."""
    plan = known.plan
    least, most = bounds(plan, known.finished)
    at_best = {run.id for run in least}
    if plan.looks:
        at_best = {run.id for arm in plan.arms for run in arm.runs[: plan.looks[0]]}
    return at_best, {run.id for run in most}


def _seconds(
    plan: Plan, runs: set[str], own: dict[str, Measured | None], every: Measured | None
) -> list[float]:
    common = typical([found for found in own.values() if found]) or every
    found: dict[str, float] = {}
    for arm in plan.arms:
        measured = own[arm.name] or common
        if measured:
            found |= {run.id: measured.seconds(arm) for run in arm.runs if run.id in runs}
    return list(found.values())


def _hours(seconds: Sequence[float], measured: Measured | None) -> float | None:
    return sum(seconds) / 3600 if measured else None


def _wall(seconds: Sequence[float], slots: int, measured: Measured | None) -> float | None:
    return wall_hours([each / 3600 for each in seconds], slots) if measured else None
