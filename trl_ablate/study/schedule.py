"""Which runs a study needs, given what has finished. Pure: no files.

A study with fixed seeds needs all its runs. With tuning, an arm's trials come first, and its other
runs follow from their outcomes, arm by arm. With looks, seeds are added where a comparison is
undecided. Nothing is stored: the same outcomes always give the same runs, so a study that is
interrupted continues where it was.
"""

from bisect import bisect_right
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trl_ablate.study.looks import reference_runs
from trl_ablate.study.planned import Plan, PlannedRun, in_order
from trl_ablate.study.tuning import Standing, Tuning, standing, trials_per_arm

if TYPE_CHECKING:
    from trl_ablate.study.report.analysis import Analysis

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
    """The candidate with the best value of the arm's reference, once it is known; none where arms
    are judged in two parts, each at its own best alone."""


def next_runs(plan: Plan, finished: Finished) -> list[PlannedRun]:
    """The runs that can start now and have not ended, seed by seed."""
    return [run for run in needed(plan, finished) if run.id not in finished]


def needed(plan: Plan, finished: Finished) -> list[PlannedRun]:
    """The runs that are known to be needed so far, whether or not they have ended."""
    if plan.tuning is None:
        return in_order(plan)
    fresh = range(plan.trials, max(len(arm.runs) for arm in plan.arms))
    places: set[tuple[str, int]] = set()
    for each in tuned(plan, finished):
        names = plan.tuning.arms[each.arm]
        places |= {(names[value], seed) for value, seed in each.standing.trials}
        places |= {(name, n) for name in (each.best, each.at_reference) if name for n in fresh}
    return in_order(plan, places)


def up_to_next_look(plan: Plan, analysis: "Analysis") -> dict[str, int]:
    """How many seeds of each arm the next look of every undecided comparison needs, and how many
    the others have used."""
    seeds = dict.fromkeys(plan.names, 0)
    if len(seeds) == 1:
        return dict.fromkeys(seeds, plan.looks[0])
    for name, comparison in analysis.decisive.items():
        used = comparison.next_look or comparison.n
        other = analysis.reference_of(name).name
        pool = plan.pool if other == plan.names[0] else None
        of = reference_runs(used, plan.looks[-1], pool)
        seeds[name], seeds[other] = max(seeds[name], used), max(seeds[other], of)
    return seeds


def compared(plan: Plan, finished: Finished) -> dict[str, Sequence[PlannedRun]]:
    """The runs of each arm that are compared: with tuning, those at its best value, once it is
    known."""
    runs = plan.runs_of
    if plan.tuning is None:
        return runs
    found = tuned(plan, finished)
    return {each.arm: runs[each.best][plan.trials :] if each.best else () for each in found}


def look_of(plan: Plan, wanted: Container[str]) -> int:
    """The number of the look that needs these runs, from 0 on; 0 without looks."""
    places = [n for arm in plan.arms for n, run in enumerate(arm.runs) if run.id in wanted]
    return bisect_right(plan.looks, max(places, default=0))


def tuned(plan: Plan, finished: Finished) -> list[Tuned]:
    """The tuning of every arm so far."""
    tuning, runs = _tuning(plan), plan.runs_of
    found: dict[str, Standing] = {}
    for arm, candidates in tuning.arms.items():
        trials = {
            (value, seed): runs[name][seed].id
            for value, name in enumerate(candidates)
            for seed in range(len(tuning.seeds))
        }
        ended = {trial: finished[run_id] for trial, run_id in trials.items() if run_id in finished}
        found[arm] = standing(tuning, ended)

    def best(arm: str, of: str) -> str | None:
        chosen = found[of].chosen
        return None if chosen is None else tuning.arms[arm][chosen]

    two_part = plan.judge == "two_part"
    return [
        Tuned(arm, each, best(arm, arm), None if two_part else best(arm, plan.reference_of(arm)))
        for arm, each in found.items()
    ]


def bounds(plan: Plan, finished: Finished) -> tuple[list[PlannedRun], list[PlannedRun]]:
    """The runs that the study needs in the best and in the worst case, given what has finished.

    Best: all arms that are still tuned have the same best value. Worst: each differs from its
    reference.
    """
    if plan.tuning is None:
        return in_order(plan), in_order(plan)
    return _in_case(plan, finished, same=True), _in_case(plan, finished, same=False)


def _in_case(plan: Plan, finished: Finished, *, same: bool) -> list[PlannedRun]:
    """The runs, if tuning that is not complete prefers the first value in every arm (`same`), or
    another value than in the arm's reference."""
    tuning, ended = _tuning(plan), dict(finished)
    for name, candidates in tuning.arms.items():
        favourite = 0 if same or _depth(plan, name) % 2 == 0 else len(candidates) - 1
        for value, candidate in enumerate(candidates):
            for run in plan.runs_of[candidate][: len(tuning.seeds)]:
                ended.setdefault(run.id, PREFERRED if value == favourite else 0.0)
    return needed(plan, ended)


def _depth(plan: Plan, arm: str) -> int:
    """The number of references between an arm and the first one."""
    reference = plan.reference_of(arm)
    return 0 if reference == arm else 1 + _depth(plan, reference)


def tuning_text(plan: Plan, finished: Finished) -> str:
    """The number of trials and of other runs, for people."""
    tuning = _tuning(plan)
    least, most = (len(runs) for runs in bounds(plan, finished))
    halved = ", half of the values left after each" if tuning.halving else ""
    both = "" if plan.pool else " and at its reference's best"
    return (
        f"tuning: {trials_per_arm(tuning)} runs of each of {len(tuning.arms)} arms "
        f"({len(tuning.values)} values of {tuning.key}, {len(tuning.seeds)} tuning seeds{halved}), "
        f"then each arm at its own best{both} with fresh seeds: "
        f"{' to '.join(dict.fromkeys((str(least), str(most))))} runs in all"
    )


def _tuning(plan: Plan) -> Tuning:
    assert plan.tuning is not None, f"study {plan.study} has no tuning"
    return plan.tuning
