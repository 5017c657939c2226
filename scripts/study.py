"""Answer a question with arms × seeds: `python scripts/study.py run
recipes/studies/std_dev/study.yaml`.

`plan` shows what a study comes to and starts nothing; `run` brings every run to its end, and can be
interrupted and started again at any time; `status` shows where they are; `fetch` takes in what has
ended on Modal; `report` writes the answer into the study's folder; `clean` removes leftovers.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from trl_ablate.cli.terminal import console
from trl_ablate.errors import ConfigurationError
from trl_ablate.run.termination import Termination

ENGINES = ("local", "ray", "modal", "slurm")
OF_ENGINES = {
    "ray_address": ("ray",),
    "cpus_per_run": ("ray", "slurm"),
    "keep_checkpoints": ("ray", "modal"),
    "gpu": ("modal",),
    "detach": ("modal",),
    "submit": ("slurm",),
}
"""Options of `run` that only some engines have."""

FAILED, UNFINISHED, INTERRUPTED = 1, 3, 130


def main() -> int:
    options = parse()
    Termination().listen()  # ends like Ctrl-C, runs and all; but they save first
    try:
        return options.command(options)
    except ConfigurationError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("stopped; the same command goes on from here\n")
        return INTERRUPTED


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(
        required=True, metavar="plan | run | status | fetch | report | clean"
    )

    def add(name: str, command, text: str, study_needed: bool = True) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        many = None if study_needed else "?"
        added.add_argument("study", type=Path, nargs=many, help="recipes/studies/NAME/study.yaml")
        added.add_argument("--runs", type=Path, default=Path("runs"), help="folder of all runs")
        added.add_argument("--profile", help="instead of the study's own")
        added.set_defaults(command=command)
        return added

    added = add("plan", plan, "Show arms, proof, runs, time and cost. Starts nothing but a probe.")
    added.add_argument("--jobs", type=int, help="runs at once; default: one per free GPU, or one")
    added.add_argument("--price_per_hour", type=float, help="of one GPU, for the cost")
    added.add_argument("--probe", action="store_true", help="measure two steps of unmeasured arms")
    added = add("run", run, "Bring every run to its end; what is done is skipped.")
    added.add_argument("--jobs", type=int, help="runs at once; default: one per free GPU, or one")
    added.add_argument(
        "--retries", type=int, default=1, help="how often a failed run is tried again"
    )
    added.add_argument("--max_hours", type=float, help="stop after so many hours of wall-clock")
    added.add_argument("--only", metavar="RUN", help="do this one run, unless somebody is at it")
    added.add_argument("--engine", choices=ENGINES, default="local", help="where the runs go")
    added.add_argument(
        "--ray_address", help="of the cluster; default: this machine's, or a new one"
    )
    added.add_argument("--cpus_per_run", type=int, help="CPUs of a run on Ray or Slurm; default: 1")
    added.add_argument("--gpu", help="of a run on Modal; default: H100")
    added.add_argument(
        "--keep_checkpoints", action="store_true", help="bring them home from Ray or Modal, too"
    )
    added.add_argument("--detach", action="store_true", help="leave when all are started on Modal")
    added.add_argument(
        "--submit", action="store_true", help="hand the array job to Slurm instead of printing it"
    )
    added = add("fetch", fetch, "Take in what has ended on Modal. Starts nothing.")
    added.add_argument("--keep_checkpoints", action="store_true", help="fetch checkpoints, too")
    add("status", status, "Show where every run is.")
    added = add("report", report, "Write REPORT.md, report.html, pictures and runs.csv.", False)
    added.add_argument("--curves", type=Path, help="report a CSV of published curves instead")
    added.add_argument("--metric", default="eval_reward", help="primary metric of --curves")
    added.add_argument("--reference", type=Path, help="CSV of published curves to draw beside")
    added.add_argument("--out", type=Path, help="folder to write to; default: the study's own")
    added = add("clean", clean, "Remove leftovers of probes, failed and interrupted runs.")
    added.add_argument("--checkpoints", action="store_true", help="numbered checkpoints, too")
    added.add_argument("--results", action="store_true", help="finished runs, too")
    added.add_argument("--yes", action="store_true", help="remove; without it, only say what")
    return parser.parse_args()


def plan(options: argparse.Namespace) -> int:
    from trl_ablate.study.engines.local import LocalEngine
    from trl_ablate.study.estimate import estimate
    from trl_ablate.study.outline import show_plan
    from trl_ablate.study.probing import probe

    planned, store = resolve(options)
    engine = LocalEngine(jobs(options), on_gpu=planned.for_gpu)
    if options.probe:
        probe(planned, store, engine, console.print)
    foreseen = estimate(planned, store, engine.slots)
    show_plan(console, planned, store, foreseen, engine.slots, options.price_per_hour)
    return 0


def run(options: argparse.Namespace) -> int:
    from trl_ablate.study.engines.choosing import Wishes, choose

    for option, engines in OF_ENGINES.items():
        if getattr(options, option) and options.engine not in engines:
            raise ConfigurationError(
                f"--{option} is nothing to --engine {options.engine}; it goes with --engine "
                f"{' or '.join(engines)}"
            )
    planned, store = known(options) if options.only else resolve(options)
    if options.engine == "slurm":
        return run_on_slurm(options, planned, store)
    wishes = Wishes(
        jobs(options), options.ray_address, options.cpus_per_run, options.gpu,
        options.keep_checkpoints,
    )  # fmt: skip
    return bring_to_an_end(
        options.study, planned, store, choose(options.engine, planned, wishes),
        retries=options.retries, max_hours=options.max_hours, stay=not options.detach,
        only=only_of(options, planned),
    )  # fmt: skip


def run_on_slurm(options: argparse.Namespace, planned, store) -> int:
    from trl_ablate.study.engines import slurm

    runs = slurm.to_submit(planned, store)
    if not runs:
        console.print("nothing to do")
        return 0
    command = slurm.study_command(options.study, store, "--retries", str(options.retries))
    script = slurm.array_job(
        planned, runs, store, command, cpus=options.cpus_per_run or 1, at_once=jobs(options)
    )
    if options.submit:
        console.print(f"submitted {len(runs)} runs as job {slurm.submit(script)}")
    else:
        sys.stdout.write(script)
        sys.stderr.write("nothing was submitted: add --submit, or pipe this into sbatch\n")
    return 0


def fetch(options: argparse.Namespace) -> int:
    from trl_ablate.study.engines.choosing import Wishes, choose

    planned, store = known(options)
    away = [run_id for run_id in planned.runs() if store.away(run_id).exists()]
    if not away:
        console.print("nothing is away")
        return 0
    engine = choose("modal", planned, Wishes(checkpoints=options.keep_checkpoints))
    return bring_to_an_end(options.study, planned, store, engine, retries=0, stay=False, only=away)


def bring_to_an_end(study: Path, planned, store, engine, **how) -> int:
    from trl_ablate.study.progress import LiveGrid, grid
    from trl_ablate.study.runner import Runner

    with LiveGrid(planned, store, console) as live:
        outcome = Runner(planned, store, engine, say=live.say, watch=live.redraw, **how).run()
    console.print(grid(planned, store))
    for run_id in outcome.failed:
        console.print(
            f"failed: {store.state(run_id).reason}; see {store.log(run_id)}", markup=False
        )
    if outcome.failed:
        return FAILED
    if any(store.away(run_id).exists() for run_id in outcome.left):
        console.print(f"they go on; now and then: python scripts/study.py fetch {study}")
        return 0
    if outcome.left:
        console.print("time is up; the same command goes on from here")
        return UNFINISHED
    console.print(f"done; now: python scripts/study.py report {study}")
    return 0


def status(options: argparse.Namespace) -> int:
    from trl_ablate.study.progress import grid

    console.print(grid(*known(options)))
    return 0


def report(options: argparse.Namespace) -> int:
    from trl_ablate.study.report.curves import read_curves
    from trl_ablate.study.report.report import report_curves, report_study

    reference = read_curves(options.reference) if options.reference else ()
    if options.curves:
        out = options.out or Path(options.curves.stem)
        written = report_curves(options.curves, out, metric=options.metric, reference=reference)
    elif options.study:
        planned, store = known(options)
        out = options.out or options.study.parent
        written = report_study(planned, store, options.study, out, reference)
    else:
        raise ConfigurationError("nothing to report; name a study.yaml, or give --curves FILE.csv")
    for path in written:
        console.print(str(path))
    return 0


def clean(options: argparse.Namespace) -> int:
    from trl_ablate.study.cleaning import find_rubbish, remove

    planned, store = known(options)
    found = find_rubbish(planned, store, checkpoints=options.checkpoints, results=options.results)
    for rubbish in found:
        gone = options.yes and remove(rubbish, store)
        for path in rubbish.paths:
            console.print(f"{'removed' if gone else 'would remove'} {path}", markup=False)
    size = sum(rubbish.bytes for rubbish in found) / 1e9
    console.print(f"{size:.2f} GB" + ("" if options.yes else "; add --yes to remove it"))
    return 0


def only_of(options: argparse.Namespace, planned) -> list[str] | None:
    from trl_ablate.recipe.strict import nearest

    if options.only is None:
        return None
    runs = planned.runs()
    if options.only not in runs:
        meant = nearest(options.only, runs)
        raise ConfigurationError(f"--only {options.only}: the study has no such run{meant}")
    return [options.only]


def jobs(options: argparse.Namespace) -> int | None:
    if options.jobs is not None and options.jobs < 1:
        raise ConfigurationError(f"--jobs is {options.jobs}; it takes 1 or more")
    return options.jobs


def resolve(options: argparse.Namespace):
    """Study to plan, through every recipe; the plan is kept for the commands that only read."""
    from trl_ablate.study.plan import save_plan
    from trl_ablate.study.resolution import resolve_plan

    study, store = opened(options)
    planned = resolve_plan(study)
    save_plan(planned, study, store.plans)
    return planned, store


def known(options: argparse.Namespace):
    """The kept plan while it is true, which takes no torch; else a new one."""
    from trl_ablate.study.plan import saved_plan

    study, store = opened(options)
    planned = saved_plan(study, store.plans)
    if planned and options.profile in (None, planned.profile):
        return planned, store
    return resolve(options)


def opened(options: argparse.Namespace):
    from trl_ablate.study.definition import load_study
    from trl_ablate.study.store import RunStore

    study = load_study(options.study)
    return replace(study, profile=options.profile or study.profile), RunStore(options.runs)


if __name__ == "__main__":
    sys.exit(main())
