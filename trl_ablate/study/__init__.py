"""Studies: run arms × seeds, and answer the question with intervals.

    decision     the verdict on one comparison, at planned looks; exported: `decide`
    nominal      the level of each look
    definition   read and check study.yaml
    factors      factorial designs: levels, cells, names (`fraction`: which cells, and aliases)
    tuning       which trials an arm needs, and which value is its best
    plan         a resolved study: its arms, settings and runs; saved as JSON
    resolution   recipes -> plan, and the proof that nothing undeclared differs (imports torch)
    store        the folder of runs that studies share: states and locks
    engines      start a run's process: on this machine, with Ray, Modal or Slurm
    schedule     which runs come next, given what has finished
    runs         the states of a study's runs: what has finished, and what comes next
    runner       start, retry and stop the runs of a plan
    progress     the live grid of runs
    estimate     time, GPU-hours and disk space before the start, and a short run that measures it
    outline      print a plan
    cleaning     remove leftovers, checkpoints and results
    report       finished runs -> tables, pictures, verdicts

All modules except `resolution` work without torch, so reading results takes only a second.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trl_ablate.study.decision import Decision, decide

_HOMES = {
    "Decision": "trl_ablate.study.decision",
    "decide": "trl_ablate.study.decision",
}

__all__ = ["Decision", "decide"]


def __getattr__(name: str):
    """Import public names on first use: `study status` needs no scipy."""
    if name not in _HOMES:
        raise AttributeError(f"module 'trl_ablate.study' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)
