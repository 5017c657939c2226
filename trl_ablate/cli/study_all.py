"""`trl-ablate study plan --all`, `study run --all`, `study restore`: the studies of a list, sharing
their runs."""

import argparse
from pathlib import Path

from trl_ablate.cli.ending import DONE, FAILED
from trl_ablate.cli.study_plans import known
from trl_ablate.cli.study_runs import UNFINISHED, end_of, executed, hours_left
from trl_ablate.cli.terminal import console
from trl_ablate.errors import ConfigurationError
from trl_ablate.recipe.places import study_path

OF_ONE_STUDY = ("only", "detach", "xray", "probe", "profile")
"""Options that apply to one study."""


def check_one(options: argparse.Namespace) -> None:
    """Either a study or a list; with a list, only what applies to all its studies."""
    if bool(options.study) == bool(options.all):
        raise ConfigurationError("name one STUDY, or give --all for the studies of a list")
    given = [name for name in OF_ONE_STUDY if options.all and vars(options).get(name)]
    if given:
        raise ConfigurationError(f"--{given[0]} applies to one study; use it without --all")
    if options.all and vars(options).get("engine", "local") != "local":
        raise ConfigurationError(
            f"--all makes its runs on this machine, not with --engine {options.engine}; run the "
            "studies one by one there"
        )


def plan_all(options: argparse.Namespace) -> int:
    """Print what the studies need, and what all of them cost."""
    show_total(plans_of(options), options)
    return DONE


def run_all(options: argparse.Namespace) -> int:
    """Do the runs of all studies, those of earlier looks first, then in the order of the list. So
    every question has a first answer before any has a second one, also after an interruption."""
    from trl_ablate.study.together import look_of, runs_of_pass

    plans = plans_of(options)
    show_total(plans, options)
    engine = options.make_engine(options, plans[0][0])
    until = end_of(options.max_hours)
    failed: list[str] = []
    looks = dict.fromkeys(range(len(plans)), 0)
    while looks:
        place = min(looks, key=lambda place: (looks[place], place))
        plan, store = plans[place]
        wanted = runs_of_pass(plan, store, bool(options.until), failed)
        if not wanted:
            del looks[place]
            continue
        look = look_of(plan, wanted) if options.until else 0
        if look > looks[place]:
            looks[place] = look
            continue
        console.print(f"{plan.study}: {len(wanted)} runs", style="bold")
        outcome = executed(
            plan, store, engine, retries=options.retries, max_hours=hours_left(until), only=wanted,
            waits_for_others=True,
        )  # fmt: skip
        failed += outcome.failed
        if outcome.left:
            console.print("time limit reached; rerun this command to continue")
            return UNFINISHED
    store = plans[0][1]
    for run_id in failed:
        console.print(f"failed: {store.state(run_id).reason}; see {store.log(run_id)}")
    console.print(f"done; next: trl-ablate findings --runs {options.runs}")
    return FAILED if failed else DONE


def restore(options: argparse.Namespace) -> int:
    """Put the runs that are kept beside a study, or beside all of a list, into the runs folder."""
    from trl_ablate.study.kept_runs import beside, restore

    check_one(options)
    for file in files_of(options.all) if options.all else [study_path(options.study)]:
        if beside(file).is_file():
            plan, store = plan_of(file, options.runs)
            restored = restore(beside(file), store, plan.runs())
            console.print(f"{plan.study}: {len(restored)} runs restored")
        elif not options.all:
            raise ConfigurationError(f"there is no {beside(file)}, so no run is kept of this study")
    return DONE


def plans_of(options: argparse.Namespace):
    """The plan of every study of the list, and the store of the runs."""
    return [plan_of(file, options.runs) for file in files_of(options.all)]


def files_of(chosen: Path) -> list[Path]:
    """The studies of a list."""
    from trl_ablate.study.questions_list import read_findings, studies_of, study_file

    return [study_file(chosen, study) for study in studies_of(read_findings(chosen))]


def plan_of(study: Path, runs: Path):
    """The plan of a study, saved or new, and the store of the runs."""
    return known(argparse.Namespace(study=str(study), runs=runs, profile=None))


def show_total(plans, options: argparse.Namespace) -> None:
    """Print a line for each study, and the runs and hours of all."""
    from rich.table import Table

    from trl_ablate.study.engines.local import engine_of
    from trl_ablate.study.together import total_of

    slots = engine_of(plans[0][0], options.jobs).slots
    total = total_of([plan for plan, _ in plans], plans[0][1], slots)
    table = Table(box=None, padding=(0, 3, 0, 0))
    for name in ("study", "runs", "new", "done", "process-hours"):
        table.add_column(name, no_wrap=True, justify="left" if name == "study" else "right")
    for share in total.shares:
        table.add_row(
            share.study, between(share.runs), between(share.new), str(share.done),
            hours(share.hours),
        )  # fmt: skip
    console.print(table)
    console.print(
        f"{between(total.runs)} different runs, {total.done} done; {hours(total.hours)} "
        f"process-hours, {hours(total.wall)} hours with {slots} at once"
    )


def between(numbers: tuple[int, int]) -> str:
    """From the least to the most: where other studies need more seeds, this one has fewer new."""
    least, most = sorted(numbers)
    return f"{least}" if least == most else f"{least} to {most}"


def hours(numbers: tuple[float | None, float | None]) -> str:
    least, most = (None if each is None else f"{each:.1f}" for each in numbers)
    if least is None:
        return "an unknown number of"
    return f"{least}" if least == most else f"{least} to {most}"
