"""Open the study that a command names, do its runs or those of a list, and print how they ended."""

import argparse
import os
import shlex
import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trl_ablate.cli.ending import DONE, FAILED
from trl_ablate.cli.engines import EngineOf
from trl_ablate.cli.imports import to_keep
from trl_ablate.cli.terminal import console, table
from trl_ablate.recipe.places import AS_ASKED, SUFFIXES, study_path
from trl_ablate.study.questions_list import LIST

if TYPE_CHECKING:
    from trl_ablate.study.definition import Study
    from trl_ablate.study.engines import Engine
    from trl_ablate.study.expected_hours import Share
    from trl_ablate.study.planned import Plan
    from trl_ablate.study.runner import Outcome
    from trl_ablate.study.runs import StudyRuns
    from trl_ablate.study.store import RunStore

UNFINISHED = 3


def resolve(
    name: str | Path,
    folder: Path,
    profile: str | None = None,
    *,
    to_run: bool = True,
    starts: bool = False,
) -> "StudyRuns":
    """Make the plan of a study from its recipes, and save it for the commands that only read;
    under another profile than that of the saved plan, or than the study's own, only when its runs
    are about to start."""
    study, store = _opened(name, folder, profile)  # a wrong name is refused before torch comes
    with to_keep():
        from trl_ablate.study.planned import save_plan, saved_profile
        from trl_ablate.study.resolution import resolve_plan
        from trl_ablate.study.runs import StudyRuns

    plan = resolve_plan(study, to_run=to_run)
    saved = saved_profile(study, store.plans)
    if starts or saved == study.profile or saved is profile is None:
        with nullcontext() if starts else suppress(OSError):  # who only reads may have no right to
            save_plan(plan, study, store.plans)
    return StudyRuns(plan, store)


def on_paper(plan: "Plan", share: "Share") -> str | None:
    """Hours as `trl-ablate plan` computes them for the first arm; None if it knows no such model or
    machine, or runs were measured."""
    from trl_ablate.plan.recipes import plan_recipe
    from trl_ablate.recipe.resolving import load_recipe

    if share.worst.hours() is not None:
        return None
    first = plan.arms[0]
    recipe, _, profile, *words = first.runs[0].words
    answer = plan_recipe(load_recipe(recipe, profile, words).all_settings(), profile)
    if answer is None or answer.problems:
        return None
    hours = answer.run / 3600
    least, most = (hours * (len(of.runs) - len(of.done)) for of in (share.best, share.worst))
    total = " to ".join(dict.fromkeys((f"{least:.0f}", f"{most:.0f}")))
    return (
        f"on paper (trl-ablate plan): {hours:.1f} hours a run of {first.name} with responses of "
        f"{answer.setup.mean_length} tokens, {total} hours in all"
    )


def known(name: str | Path, folder: Path, profile: str | None = None) -> "StudyRuns":
    """The study by its saved plan if that is up to date, which needs no torch; else resolved."""
    from trl_ablate.study.planned import saved_plan
    from trl_ablate.study.runs import StudyRuns

    study, store = _opened(name, folder, profile)
    plan = saved_plan(study, store.plans)
    if plan and profile in (None, plan.profile):
        return StudyRuns(replace(plan, profile_reason=AS_ASKED) if profile else plan, store)
    return resolve(name, folder, profile, to_run=False)


def _opened(name: str | Path, folder: Path, profile: str | None) -> tuple["Study", "RunStore"]:
    from trl_ablate.study.definition import load_study
    from trl_ablate.study.store import RunStore

    study = load_study(study_path(str(name)))
    if profile and profile.endswith(SUFFIXES) and os.path.exists(profile):
        profile = os.path.abspath(profile)
    return replace(study, profile=profile or study.profile), RunStore(folder)


def files_of(chosen: Path) -> list[Path]:
    """The studies of a list, in the order of its questions."""
    from trl_ablate.study.questions_list import read_findings, study_file

    names = [study for row in read_findings(chosen) for study in row.studies]
    return [study_file(chosen, study) for study in dict.fromkeys(names)]


def executed(runs: "StudyRuns", engine: "Engine", **how) -> "Outcome":
    from trl_ablate.study.outline import live_grid
    from trl_ablate.study.runner import Runner

    with live_grid(runs, console) as redraw:
        how |= {"say": console.print, "watch": redraw}
        return Runner(runs, engine, **how).run()


def run_passes(
    studies: Sequence["StudyRuns"],
    engine_of: EngineOf,
    *,
    until_decided: bool,
    retries: int,
    max_hours: float | None,
) -> "Outcome":
    """Do the runs of all studies, those of earlier looks first, then in the order of the list. So
    every question has a first answer before any has a second one, also after an interruption."""
    from trl_ablate.study.runner import Outcome
    from trl_ablate.study.runs import look_of

    end = None if max_hours is None else time.monotonic() + max_hours * 3600
    found, looks = Outcome(), dict.fromkeys(range(len(studies)), 0)
    while looks:
        place = min(looks, key=lambda place: (looks[place], place))
        runs = studies[place].again()
        wanted = runs.of_pass(until_decided, found.failed)
        look = look_of(runs.plan, wanted) if until_decided else 0
        if not wanted:
            del looks[place]
            continue
        if look > looks[place]:
            looks[place] = look
            continue
        console.print(f"{runs.plan.study}: {len(wanted)} runs", style="bold")
        left = None if end is None else max(0.0, end - time.monotonic()) / 3600
        outcome = executed(
            runs, engine_of(runs.plan), retries=retries, only=wanted, waits_for_others=True,
            max_hours=left,
        )  # fmt: skip
        found.failed += outcome.failed
        found.left = outcome.left
        if found.left:
            break
        if until_decided and runs.plan.looks:
            undecided = ", ".join(runs.again().undecided)
            console.print(f"undecided: {undecided}" if undecided else "no comparison is undecided")
    return found


def run_all(
    studies: Sequence["StudyRuns"], engine_of: EngineOf, options: argparse.Namespace
) -> int:
    outcome = run_passes(
        studies, engine_of, until_decided=bool(options.until), retries=options.retries,
        max_hours=options.max_hours,
    )  # fmt: skip
    if outcome.left:
        return _limit_reached()
    _print_failed(studies[0], outcome.failed)
    own = [] if options.all == LIST else [str(options.all)]
    words = ["trl-ablate", "findings", *own, "--runs", str(options.runs)]
    console.print(f"done; next: {shlex.join(words)}")
    return FAILED if outcome.failed else DONE


def ended(study: str, runs: "StudyRuns", outcome: "Outcome", *, by_looks: bool = False) -> int:
    """Print how the runs ended, and what to do next; the exit code.

    Args:
        study: the study and the options that choose its runs, as the next command needs them.
        by_looks: whether only the runs of the next look are wanted, as with `--until decided`.
    """
    from trl_ablate.study.outline import grid

    runs = runs.again()
    console.print(grid(runs))
    are_away = any(runs.store.away(run_id).exists() for run_id in outcome.left)
    if are_away:
        console.print(
            f"runs continue on the service; collect them with: trl-ablate study fetch {study}"
        )
    if outcome.failed:
        _print_failed(runs, outcome.failed)
        return FAILED
    if are_away:
        return DONE
    if outcome.left:
        return _limit_reached()
    if left := runs.of_pass(by_looks):
        words = f"{study} --until decided" if by_looks else study
        console.print(f"{len(left)} more runs are to do: trl-ablate study run {words}")
    else:
        console.print(runs.unlogged or f"done; next: trl-ablate study report {study}")
    return DONE


def _limit_reached() -> int:
    console.print("time limit reached; rerun this command to continue")
    return UNFINISHED


def _print_failed(runs: "StudyRuns", failed: Sequence[str]) -> None:
    for run_id in failed:
        reason, log = runs.store.state(run_id).reason, runs.store.log(run_id)
        console.print(f"failed: {reason}; see {log}")


def total(options: argparse.Namespace, engine_of: EngineOf) -> list["StudyRuns"]:
    """The studies of the list. A line for each is printed, and the runs and hours of all."""
    from trl_ablate.study.expected_hours import total_of

    studies = [known(file, options.runs) for file in files_of(options.all)]
    slots = [engine_of(runs.plan).slots for runs in studies]
    shares, whole = total_of(studies)
    rows = [
        (
            share.study,
            _between(*share.runs),
            _between(len(share.best.runs), len(share.worst.runs)),
            str(len(share.worst.done)),
            _hours(share),
        )
        for share in shares
    ]
    header = ("study", "runs", "new", "done", "process-hours")
    console.print(table("", rows, header, numbers_from=1))
    console.print(
        f"{_between(*whole.runs)} different runs, {len(whole.worst.done)} done; "
        f"{_hours(whole)} process-hours, {_hours(whole, slots)} hours with "
        f"{_between(min(slots), max(slots))} at once"
    )
    return studies


def _between(*numbers: int) -> str:
    """From the least to the most: where other studies need more seeds, this one has fewer new."""
    return " to ".join(map(str, sorted(set(numbers))))


def _hours(share: "Share", slots: Sequence[int] = (0,)) -> str:
    least, most = share.best.hours(max(slots)), share.worst.hours(min(slots))
    if least is None or most is None:
        return "an unknown number of"
    return " to ".join(dict.fromkeys((f"{least:.1f}", f"{most:.1f}")))
