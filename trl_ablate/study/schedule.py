"""Which runs come next, given what has finished. Pure: no files.

A study without tuning needs all its runs. With tuning, an arm's trials come first, and its other
runs follow from their outcomes, arm by arm. Nothing is stored: the same outcomes always give the
same runs, so a study that is interrupted continues where it was.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from trl_ablate.study.planned import Plan, PlannedArm, PlannedRun, in_order
from trl_ablate.study.tuning import Standing, Trial, Tuning, standing, trials_per_arm

Finished = Mapping[str, float | None]
"""Run id -> the outcome that the study decides on; None for a run that ended without one."""

PREFERRED = 1e9
"""Above every outcome."""


@dataclass(frozen=True)
class Tuned:
    """The tuning of one arm, and where its other runs are."""

    arm: str
    standing: Standing
    best: str | None
    """The candidate with the arm's own best value, once it is known."""
    at_reference: str | None
    """The candidate with the best value of the arm's reference, once it is known."""


def next_runs(plan: Plan, finished: Finished) -> list[PlannedRun]:
    """The runs that can start now and have not ended, seed by seed."""
    return [run for run in needed(plan, finished) if run.id not in finished]


def needed(plan: Plan, finished: Finished) -> list[PlannedRun]:
    """The runs that are known to be needed so far, whether or not they have ended."""
    if plan.tuning is None:
        return in_order(plan)
    places = {(name, seed) for each in tuned(plan, finished) for name, seed in _places(plan, each)}
    return _in_places(plan, places)


def bounds(plan: Plan, finished: Finished) -> tuple[list[PlannedRun], list[PlannedRun]]:
    """The runs that the study needs in the best and in the worst case, given what has finished.

    Best: all arms that are still tuned have the same best value. Worst: each differs from its
    reference.
    """
    if plan.tuning is None:
        return in_order(plan), in_order(plan)
    return _in_case(plan, finished, same=True), _in_case(plan, finished, same=False)


def tuned(plan: Plan, finished: Finished) -> list[Tuned]:
    """The tuning of every arm so far."""
    tuning = _tuning(plan)
    arms = {arm.name: arm for arm in plan.arms}
    found = {
        arm: standing(tuning, _scores(tuning, [arms[name] for name in names], finished))
        for arm, names in tuning.arms.items()
    }
    return [_tuned(plan, arm, found[arm], found[reference_of(plan, arm)]) for arm in found]


def reference_of(plan: Plan, arm: str) -> str:
    """The arm that an arm of a study with tuning is compared with; of the first arm, itself."""
    return plan.against.get(arm, next(iter(_tuning(plan).arms)))


def tuning_text(plan: Plan, finished: Finished) -> str:
    """The number of trials and of other runs, for people."""
    tuning = _tuning(plan)
    least, most = (len(runs) for runs in bounds(plan, finished))
    each = trials_per_arm(tuning)
    of_each = f"{len(tuning.values)} values of {tuning.key}, {len(tuning.seeds)} tuning seeds"
    halved = ", half of the values left after each" if tuning.halving else ""
    total = f"{least}" if least == most else f"{least} to {most}"
    return (
        f"tuning: {each} runs of each of {len(tuning.arms)} arms ({of_each}{halved}), then each "
        f"arm at its own best and at its reference's best with fresh seeds: {total} runs in all"
    )


def _tuned(plan: Plan, arm: str, own: Standing, references: Standing) -> Tuned:
    candidates = _tuning(plan).arms[arm]
    return Tuned(
        arm=arm,
        standing=own,
        best=None if own.chosen is None else candidates[own.chosen],
        at_reference=None if references.chosen is None else candidates[references.chosen],
    )


def _scores(
    tuning: Tuning, candidates: list[PlannedArm], finished: Finished
) -> dict[Trial, float | None]:
    return {
        (value, seed): finished[candidate.runs[seed].id]
        for value, candidate in enumerate(candidates)
        for seed in range(len(tuning.seeds))
        if candidate.runs[seed].id in finished
    }


def _places(plan: Plan, arm: Tuned) -> set[tuple[str, int]]:
    """The runs of an arm that are needed so far: candidate and position among its runs."""
    tuning = _tuning(plan)
    candidates = tuning.arms[arm.arm]
    trials = {(candidates[value], seed) for value, seed in arm.standing.trials}
    fresh = range(len(tuning.seeds), len(plan.arms[0].runs))
    used = {name for name in (arm.best, arm.at_reference) if name is not None}
    return trials | {(name, position) for name in used for position in fresh}


def _in_case(plan: Plan, finished: Finished, *, same: bool) -> list[PlannedRun]:
    """The runs, if tuning that is not complete prefers the first value in every arm (`same`), or
    another value than in the arm's reference."""
    tuning = _tuning(plan)
    arms = {arm.name: arm for arm in plan.arms}
    ended: dict[str, float | None] = dict(finished)
    for name, candidates in tuning.arms.items():
        favourite = 0 if same or _depth(plan, name) % 2 == 0 else len(candidates) - 1
        for value, candidate in enumerate(candidates):
            for run in arms[candidate].runs[: len(tuning.seeds)]:
                ended.setdefault(run.id, PREFERRED if value == favourite else 0.0)
    return needed(plan, ended)


def _depth(plan: Plan, arm: str) -> int:
    """The number of references between an arm and the first one."""
    reference = reference_of(plan, arm)
    return 0 if reference == arm else 1 + _depth(plan, reference)


def _in_places(plan: Plan, places: set[tuple[str, int]]) -> list[PlannedRun]:
    """Each run once, position by position and arm by arm."""
    return list(
        {
            arm.runs[position].id: arm.runs[position]
            for position in range(len(plan.arms[0].runs))
            for arm in plan.arms
            if (arm.name, position) in places
        }.values()
    )


def _tuning(plan: Plan) -> Tuning:
    if plan.tuning is None:
        raise ValueError(f"study {plan.study} has no tuning")
    return plan.tuning
