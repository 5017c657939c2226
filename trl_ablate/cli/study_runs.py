"""Start the runs of a study, and print how they ended."""

import argparse
import time

from trl_ablate.cli.ending import DONE, FAILED
from trl_ablate.cli.terminal import console
from trl_ablate.errors import ConfigurationError

UNFINISHED = 3


def check_until(options: argparse.Namespace, planned) -> None:
    """Refuse `--until decided` beside `--only`, and for a study without looks."""
    from trl_ablate.study.rounds import check_has_looks

    if options.only:
        raise ConfigurationError(
            "--only names one run and --until decided chooses; use one of them"
        )
    check_has_looks(planned)


def next_look(planned, store) -> list[str]:
    from trl_ablate.study.rounds import runs_of_next_look

    return runs_of_next_look(planned, store)


def end_of(max_hours: float | None) -> float | None:
    """The time of `time.monotonic` at which these hours have passed."""
    return None if max_hours is None else time.monotonic() + max_hours * 3600


def hours_left(end: float | None) -> float | None:
    return None if end is None else max(0.0, end - time.monotonic()) / 3600


def run_until_decided(options: argparse.Namespace, planned, store) -> int:
    """Look after look, until all comparisons are decided, the last look or the time limit."""
    from trl_ablate.study.rounds import analysis_of, to_do, undecided
    from trl_ablate.study.runner import Outcome

    engine = options.make_engine(options, planned)
    until = end_of(options.max_hours)
    failed: list[str] = []
    analysis = analysis_of(planned, store)
    while runs := [run for run in to_do(planned, store, analysis) if run not in failed]:
        outcome = executed(
            planned, store, engine, retries=options.retries, max_hours=hours_left(until), only=runs,
            waits_for_others=True,
        )  # fmt: skip
        failed += outcome.failed
        if outcome.left:
            return ended(options.study, planned, store, outcome)
        analysis = analysis_of(planned, store)
        waiting = undecided(analysis)
        console.print(
            f"undecided: {', '.join(waiting)}" if waiting else "no comparison is undecided"
        )
    return ended(options.study, planned, store, Outcome(failed=failed))


def bring_to_an_end(study: str, planned, store, engine, **how) -> int:
    return ended(study, planned, store, executed(planned, store, engine, **how))


def executed(planned, store, engine, **how):
    from trl_ablate.study.progress import LiveGrid
    from trl_ablate.study.runner import Runner

    with LiveGrid(planned, store, console) as live:
        return Runner(planned, store, engine, say=live.say, watch=live.redraw, **how).run()


def ended(study: str, planned, store, outcome) -> int:
    """Print how the runs ended, and what to do next; the exit code."""
    from trl_ablate.study.progress import grid
    from trl_ablate.study.runs import StudyRuns

    runs = StudyRuns(planned, store)
    console.print(grid(runs))
    for run_id in outcome.failed:
        console.print(f"failed: {runs.states[run_id].reason}; see {store.log(run_id)}")
    if outcome.failed:
        return FAILED
    if any(store.away(run_id).exists() for run_id in outcome.left):
        console.print(
            f"runs continue on the service; collect them with: trl-ablate study fetch {study}",
        )
        return DONE
    if outcome.left:
        console.print("time limit reached; rerun this command to continue")
        return UNFINISHED
    if planned.tuning and runs.next:
        console.print(f"more runs follow from these outcomes: trl-ablate study run {study}")
        return DONE
    console.print(f"done; next: trl-ablate study report {study}")
    return DONE
