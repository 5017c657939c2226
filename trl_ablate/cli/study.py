"""`trl-ablate study plan | run | status | fetch | restore | report | clean STUDY`: arms × seeds."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from trl_ablate.cli.ending import DONE, exit_code_of
from trl_ablate.cli.engines import add_engine
from trl_ablate.cli.parsing import Parser
from trl_ablate.cli.study_all import check_one, plan_all, restore, run_all
from trl_ablate.cli.study_plans import known, resolve
from trl_ablate.cli.study_runs import bring_to_an_end, check_until, next_look, run_until_decided
from trl_ablate.cli.terminal import console
from trl_ablate.errors import ConfigurationError
from trl_ablate.recipe.places import PACKAGE, SHIPPED, study_path
from trl_ablate.run.termination import Termination
from trl_ablate.study.questions_list import LIST

JOBS = "runs at once; default: one per free GPU, or per core for the miniature, or one"
LEAST = {"jobs": 1, "cpus_per_run": 1, "retries": 0}
"""The smallest value of options that count."""

DESCRIPTION = """\
Compare arms over several seeds.

STUDY is a shipped study's name (`trl-ablate recipes` lists them), a study.yaml, or its folder."""

EXAMPLES = (
    "trl-ablate study plan chains",
    "trl-ablate study run chains --jobs 2",
    "trl-ablate study report chains",
    "trl-ablate study run --all --until decided --max_hours 10",
    "trl-ablate study run recipes/studies/chains/study.yaml --engine slurm | sbatch",
)

EXIT_CODES = """\
exit codes:
  0     done
  1     a run failed, also after its retries
  2     refused: something in the command, a study or a recipe has to change
  3     --max_hours was reached before all runs were done: the same command continues
  130   stopped by Ctrl-C or SIGTERM: the same command continues"""


def main(argv: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else list(argv)
    return exit_code_of(lambda: _main(words), stopped="the same command continues from here")


def _main(words: list[str]) -> int:
    options = parse(words)
    return options.command(options)


def parse(words: list[str]) -> argparse.Namespace:
    parser = Parser(EXAMPLES, EXIT_CODES, prog="trl-ablate study", description=DESCRIPTION)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(name: str, command, text: str, study_needed: bool = True) -> Parser:
        shown = "STUDY" if study_needed else "[STUDY]"
        added = commands.add_parser(
            name, help=text, description=text, exit_codes=EXIT_CODES,
            usage=f"trl-ablate study {name} {shown} [options]",
        )  # fmt: skip
        added.add_argument(
            "study", metavar="STUDY", nargs=None if study_needed else "?",
            help="a shipped study's name, a study.yaml, or its folder",
        )  # fmt: skip
        added.add_argument(
            "--runs",
            metavar="FOLDER",
            type=Path,
            default=Path("runs"),
            help="folder of all runs; default: runs",
        )
        added.add_argument("--profile", help="profile to use instead of the study's own")
        added.set_defaults(command=command, parser=added)
        return added

    text = "Print arms, proof, runs, time and cost. Starts no run but a probe."
    added = add("plan", plan, text, False)
    added.add_argument("--jobs", type=int, metavar="N", help=JOBS)
    added.add_argument(
        "--price_per_hour", type=float, metavar="PRICE", help="of one GPU, for the cost"
    )
    added.add_argument(
        "--probe", action="store_true", help="measure two steps of one run for the estimate"
    )
    added.add_argument(
        "--xray", action="store_true", help="compare the arms' gradients on the same rollouts first"
    )
    add_all(added)
    text = "Do all runs; runs that are done already are skipped."
    added = add("run", run, text, False)
    add_run_options(added, words)
    add_all(added)
    add("status", status, "Print the state of every run.")
    added = add("fetch", fetch, "Download finished runs of Modal or Hugging Face.")
    added.add_argument("--keep_checkpoints", action="store_true", help="also fetch checkpoints")
    text = "Put the finished runs that are kept beside a study (runs.parquet) into --runs."
    add_all(add("restore", restore, text, False))
    added = add(
        "report", report, "Write REPORT.md, report.html, report.json, pictures, runs.csv.", False
    )
    added.add_argument(
        "--curves", metavar="CSV", type=Path, help="report a CSV of any curves instead"
    )
    added.add_argument("--metric", default="eval_reward", help="primary metric of --curves")
    added.add_argument(
        "--reference", metavar="CSV", type=Path, help="CSV of published curves to draw as well"
    )
    added.add_argument(
        "--out", metavar="FOLDER", type=Path, help="folder to write to; default: the study's own"
    )
    added = add("clean", clean, "Remove leftovers of probes, failed and interrupted runs.")
    added.add_argument("--checkpoints", action="store_true", help="also remove checkpoint-N")
    added.add_argument("--results", action="store_true", help="also remove finished runs")
    added.add_argument(
        "--yes", action="store_true", help="remove; without it, only print what would be removed"
    )
    options, unknown = parser.parse_known_args(words)
    options.parser.refuse(unknown)
    check_counts(options)
    return options


def add_run_options(parser: Parser, words: list[str]) -> None:
    parser.add_argument("--jobs", type=int, metavar="N", help=JOBS)
    parser.add_argument(
        "--retries",
        type=int,
        metavar="N",
        default=1,
        help="how often a failed run is tried again; default: 1",
    )
    parser.add_argument(
        "--max_hours", type=float, metavar="HOURS", help="stop after this time; wall-clock hours"
    )
    parser.add_argument(
        "--only", metavar="RUN", help="run only this one; skip it if another process holds it"
    )
    parser.add_argument(
        "--until",
        choices=("decided",),
        help="add seeds, look by look, only where a comparison is undecided",
    )
    add_engine(parser, words)


def add_all(parser: Parser) -> None:
    parser.add_argument(
        "--all", metavar="LIST", nargs="?", type=Path, const=LIST,
        help="all studies of a list instead; default: the shipped findings.yaml",
    )  # fmt: skip


def check_counts(options: argparse.Namespace) -> None:
    given = vars(options)
    for name, least in LEAST.items():
        value = given.get(name)
        if value is not None and value < least:
            raise ConfigurationError(f"--{name} is {value}; it takes {least} or more")


def plan(options: argparse.Namespace) -> int:
    check_one(options)
    if options.all:
        return plan_all(options)
    from trl_ablate.study.engines.local import engine_of
    from trl_ablate.study.estimate import estimate, probe
    from trl_ablate.study.outline import show_plan

    Termination().listen()
    planned, store = resolve(options)
    engine = engine_of(planned, options.jobs)
    if options.probe:
        probe(planned, store, engine, console.print)
    whole = estimate(planned, store, engine.slots)
    at_best = estimate(planned, store, engine.slots, planned.looks[0]) if planned.looks else None
    show_plan(console, planned, store, whole, engine.slots, options.price_per_hour, at_best)
    if options.xray:
        from trl_ablate.cli.xray import show_for_plan

        show_for_plan(study_path(options.study), options.profile, planned, store)
    return DONE


def run(options: argparse.Namespace) -> int:
    check_one(options)
    Termination().listen()  # SIGTERM stops the study and its runs as Ctrl-C does; the runs save
    if options.all:
        return run_all(options)
    planned, store = known(options) if options.only else resolve(options)
    if options.until:
        check_until(options, planned)
        if options.engine != "slurm" and not options.detach:
            return run_until_decided(options, planned, store)
    wanted = next_look(planned, store) if options.until else None
    if options.engine == "slurm":
        return run_on_slurm(options, planned, store, wanted)
    return bring_to_an_end(
        options.study, planned, store, options.make_engine(options, planned),
        retries=options.retries, max_hours=options.max_hours, stay=not options.detach,
        only=only_of(options, planned) if wanted is None else wanted,
    )  # fmt: skip


def run_on_slurm(options: argparse.Namespace, planned, store, wanted: list[str] | None) -> int:
    from trl_ablate.study.engines import slurm
    from trl_ablate.study.runs import StudyRuns

    runs = [r for r in StudyRuns(planned, store).to_start if wanted is None or r in wanted]
    if not runs:
        console.print("nothing to do")
        return DONE
    study = study_path(options.study)
    command = slurm.study_command(study, store, "--retries", str(options.retries))
    script = slurm.array_job(
        planned, runs, store, command, cpus=options.cpus_per_run, at_once=options.jobs
    )
    if options.submit:
        console.print(f"submitted {len(runs)} runs as job {slurm.submit(script)}")
    else:
        console.out(script, highlight=False, end="")
        sys.stderr.write("nothing was submitted: add --submit, or pipe this into sbatch\n")
    if planned.tuning:
        sys.stderr.write("more runs follow from these outcomes: then run this command again\n")
    return DONE


def fetch(options: argparse.Namespace) -> int:
    planned, store = known(options)
    away = [run_id for run_id in planned.runs() if store.away(run_id).exists()]
    if not away:
        console.print("no runs to fetch")
        return DONE
    codes = []
    for name, runs in store.away_by_engine(away).items():
        module = import_module(f"trl_ablate.study.engines.{name}")
        engine = module.fetching(planned, checkpoints=options.keep_checkpoints)
        how = {"retries": 0, "stay": False, "only": runs}
        codes.append(bring_to_an_end(options.study, planned, store, engine, **how))
    return max(codes)


def status(options: argparse.Namespace) -> int:
    from trl_ablate.study.progress import grid
    from trl_ablate.study.runs import StudyRuns

    console.print(grid(StudyRuns(*known(options))))
    return DONE


def report(options: argparse.Namespace) -> int:
    from trl_ablate.study.report.curves import read_curves
    from trl_ablate.study.report.making import report_curves, report_study

    reference = read_curves(options.reference) if options.reference else ()
    if options.curves:
        out = options.out or Path(options.curves.stem)
        written = report_curves(options.curves, out, metric=options.metric, reference=reference)
    elif options.study:
        planned, store = known(options)
        study = study_path(options.study)
        out = options.out or report_folder(study)
        written = report_study(planned, store, study, out, reference)
    else:
        raise ConfigurationError("nothing to report; name a study, or give --curves FILE.csv")
    for path in written:
        console.print(str(path))
    return DONE


def report_folder(study: Path) -> Path:
    """The study's own folder; for a study of an installed package, one in the current folder."""
    installed = SHIPPED.is_relative_to(PACKAGE) and study.resolve().is_relative_to(SHIPPED)
    return Path(study.parent.name) if installed else study.parent


def clean(options: argparse.Namespace) -> int:
    from trl_ablate.study.cleaning import find_rubbish, remove

    planned, store = known(options)
    found = find_rubbish(planned, store, checkpoints=options.checkpoints, results=options.results)
    for rubbish in found:
        gone = options.yes and remove(rubbish, store)
        for path in rubbish.paths:
            console.print(f"{'removed' if gone else 'would remove'} {path}")
    size = sum(rubbish.bytes for rubbish in found) / 2**30
    console.print(f"{size:.2f} GiB" + ("" if options.yes else "; add --yes to remove it"))
    return DONE


def only_of(options: argparse.Namespace, planned) -> list[str] | None:
    from trl_ablate.recipe.strict import nearest

    if options.only is None:
        return None
    runs = planned.runs()
    if options.only not in runs:
        meant = nearest(options.only, runs)
        raise ConfigurationError(f"--only {options.only}: the study has no such run{meant}")
    return [options.only]
