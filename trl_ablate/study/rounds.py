"""Seeds until decided: which runs the next look needs. No torch.

All is computed again from the run directories each time, so a study that was interrupted, killed or
moved to another engine goes on where it was, to the same verdicts.
"""

from collections.abc import Sequence

from trl_ablate.errors import ConfigurationError
from trl_ablate.study.planned import Plan, PlannedArm, in_order
from trl_ablate.study.report.analysis import Analysis, analyse
from trl_ablate.study.report.curves import Run, planned_runs
from trl_ablate.study.store import RunStore


def check_has_looks(plan: Plan) -> None:
    if not plan.looks:
        raise ConfigurationError(
            f"study {plan.study}: its seeds are fixed, so --until decided has nothing to add; "
            "write seeds: {looks: [3, 5, 8, 12]} in study.yaml, or leave out --until"
        )


def analysis_of(plan: Plan, store: RunStore) -> Analysis:
    """The numbers of a plan, as far as its runs are done."""
    return analysis_of_runs(plan, planned_runs(plan, store))


def analysis_of_runs(plan: Plan, runs: Sequence[Run]) -> Analysis:
    """Runs of a plan, compared as the plan says."""
    return analyse(
        runs, plan.primary_metric, plan.decide_on, plan.against,
        plan.looks, plan.equivalence_margin,
    )  # fmt: skip


def runs_of_next_look(plan: Plan, store: RunStore) -> list[str]:
    """Ids of the runs that are not done and that the next look of an undecided comparison needs,
    in the order of the seeds."""
    return to_do(plan, store, analysis_of(plan, store))


def to_do(plan: Plan, store: RunStore, analysis: Analysis) -> list[str]:
    """The same of an analysis that is known."""
    wanted = needed(plan, analysis)
    return [run.id for run in in_order(plan) if run.id in wanted and not store.state(run.id).done]


def needed(plan: Plan, analysis: Analysis) -> set[str]:
    """Ids of the runs up to the next look of every undecided comparison, and of what the others
    have used."""
    arms = {arm.name: arm for arm in plan.arms}
    found: set[str] = set()
    for name, comparison in analysis.decisive.items():
        seeds = comparison.next_look or comparison.difference.n
        for arm in (arms[name], arms[analysis.reference_of(name).name]):
            found |= _first(arm, seeds)
    if len(plan.arms) == 1:
        found |= _first(plan.arms[0], plan.looks[0])
    return found


def _first(arm: PlannedArm, seeds: int) -> set[str]:
    return {run.id for run in arm.runs[:seeds]}


def undecided(analysis: Analysis) -> list[str]:
    """The arms whose comparison needs more seeds."""
    return [name for name, found in analysis.decisive.items() if found.next_look is not None]
