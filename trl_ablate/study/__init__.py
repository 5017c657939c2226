"""Studies: run arms × seeds, and answer the question with intervals.

    decision     the verdict on one comparison; exported: `decide`
    two_part     the same for runs that are not paired and may fail, and what a design can find
                 before any run; exported: `TwoPart`
    nominal      the level of each look
    verdict      every verdict, its words, and the looks at which it may be given
    definition   read and check study.yaml: its arms, looks, factors and tuning
    factors      factorial designs: levels, cells, names, fractions and their aliases
    tuning       which trials an arm needs, and which value is its best
    planned      a resolved study: its arms, settings and runs; saved as JSON
    resolution   recipes -> plan, and the proof that nothing undeclared differs (imports torch)
    store        the folder of runs that studies share: states and locks
    runs         `StudyRuns`: the states of a study's runs, which it needs, what comes next
    runner       start, retry and stop the runs of a plan (`engines`: where)
    expected_hours   time, GPU-hours and disk space of studies, and a run that measures it
    outline      print a plan, and the live grid of runs
    cleaning     remove leftovers, checkpoints and results
    kept_runs    finished runs in one table beside their study
    report       finished runs -> tables, pictures, verdicts

All modules except `resolution` work without torch, so reading results takes only a second.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trl_ablate.study.decision import Decision, TwoPart, decide

__all__ = ["Decision", "TwoPart", "decide"]


def __getattr__(name: str):
    """Import public names on first use: `study status` needs no scipy."""
    if name not in __all__:
        raise AttributeError(f"module 'trl_ablate.study' has no attribute '{name}'")
    from trl_ablate.study import decision

    return getattr(decision, name)
