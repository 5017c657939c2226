"""Compare arms over several seeds.

STUDY is a shipped study's name (`trl-ablate recipes` lists them), a study.yaml, or its folder.

examples:
  trl-ablate study plan chains
  trl-ablate study run chains --jobs 2
  trl-ablate study report chains
  trl-ablate study run --all --until decided --max_hours 10
  trl-ablate study run recipes/studies/chains/study.yaml --engine slurm | sbatch
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trl_ablate.cli import study_runs
from trl_ablate.cli.ending import DONE
from trl_ablate.cli.engines import OPTIONS, add_engine, check_engine, engine_module, engines
from trl_ablate.cli.parsing import RUNS, Option, Parser, Work, at_least, command, flag, option
from trl_ablate.cli.terminal import console
from trl_ablate.errors import ConfigurationError
from trl_ablate.metrics import EVAL_REWARD
from trl_ablate.recipe.places import AS_ASKED, PACKAGE, SHIPPED, study_path
from trl_ablate.run.termination import Termination
from trl_ablate.study.questions_list import LIST

if TYPE_CHECKING:
    from trl_ablate.study.runs import StudyRuns

CODES = {
    1: "a run failed, also after its retries",
    3: "--max_hours was reached before all runs were done: the same command continues",
    130: "stopped by Ctrl-C or SIGTERM: the same command continues",
}
OF_ONE_STUDY = ("only", "detach", "xray", "probe", "profile", "price_per_hour")
"""Options that do not go with --all."""
WITHOUT_LIMIT = {
    "ray": "leave it out: of a run that is stopped there, nothing is kept",
    "slurm": "set SBATCH_TIMELIMIT",
}
"""Engines that refuse --max_hours, and what to do instead."""

JOBS = option(
    "--jobs", metavar="N", type=at_least(1),
    help="runs at once; default: one per free GPU, or per core for the miniature, or one",
)  # fmt: skip
ALL = option(
    "--all", metavar="LIST", nargs="?", type=Path, const=LIST,
    help="all studies of a list instead; default: the shipped findings.yaml",
)  # fmt: skip

COMMANDS: dict[str, tuple[str, Work, Sequence[Option], str]] = {}
"""Name -> its help, its function, its options, and how it takes a study."""


def subcommand(text: str, *options: Option, study: str = "STUDY"):
    """Makes a function a command of `study`."""

    def declare(run: Work) -> Work:
        COMMANDS[run.__name__] = text, run, options, study
        return run

    return declare


def add_commands(parser: Parser) -> None:
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, (text, run, options, study) in COMMANDS.items():
        added = commands.add_parser(
            name, help=text, description=text, codes=CODES,
            usage=f"trl-ablate study {name} {study} [options]",
        )  # fmt: skip
        added.add_argument(
            "study", metavar="STUDY", nargs="?" if study == "[STUDY]" else None,
            help="a shipped study's name, a study.yaml, or its folder",
        )  # fmt: skip
        RUNS(added)
        added.add_argument("--profile", help="profile to use instead of the study's own")
        for add in options:
            add(added)
        added.set_defaults(command=run, parser=added)


@command(add_commands, stopped="the same command continues from here", codes=CODES)
def main(options: argparse.Namespace) -> int | None:
    return options.command(options)


def check_one(options: argparse.Namespace) -> None:
    """Either a study or a list; with a list, only what applies to all its studies."""
    if bool(options.study) == bool(options.all):
        raise ConfigurationError("name one STUDY, or give --all for the studies of a list")
    if not options.all:
        return
    for name in OF_ONE_STUDY:
        if vars(options).get(name):
            raise ConfigurationError(f"--{name} applies to one study; use it without --all")
    if vars(options).get("engine", "local") != "local":
        raise ConfigurationError(
            f"--all makes its runs on this machine, not with --engine {options.engine}; run the "
            "studies one by one there"
        )


def known_runs(options: argparse.Namespace) -> "StudyRuns":
    return study_runs.known(options.study, options.runs, options.profile)


@subcommand(
    "Print arms, proof, runs, time and cost. Starts no run but a probe.",
    JOBS,
    option(
        "--price_per_hour", metavar="PRICE", type=at_least(0, float),
        help="of one GPU, for the cost",
    ),
    flag("--probe", "measure two steps of one run for the estimate"),
    flag("--xray", "compare the arms' gradients on the same rollouts first"),
    ALL,
    study="[STUDY]",
)  # fmt: skip
def plan(options: argparse.Namespace) -> None:
    check_one(options)
    if options.all:
        study_runs.total(options, engines("local", options))
        return
    from trl_ablate.study.engines import local
    from trl_ablate.study.expected_hours import probe
    from trl_ablate.study.outline import show_plan

    Termination().listen()
    runs = study_runs.resolve(options.study, options.runs, options.profile)
    engine = local.make(options, runs.plan)
    if options.probe:
        probe(runs, engine, console.print)
    share = show_plan(console, runs, engine.slots, options.price_per_hour)
    if paper := study_runs.on_paper(runs.plan, share):
        console.print(paper)
    if options.xray:
        from trl_ablate.cli.xray import show_for_plan

        show_for_plan(study_path(options.study), options.profile, runs.plan, runs.store)


@subcommand(
    "Do all runs; runs that are done already are skipped.",
    JOBS,
    option(
        "--retries", metavar="N", type=at_least(0), default=1,
        help="how often a failed run is tried again; default: 1",
    ),
    option(
        "--max_hours", metavar="HOURS", type=at_least(0, float),
        help="save and stop after this time; wall-clock hours",
    ),
    option(
        "--only", metavar="RUN", help="run only this one; skip it if another process holds it"
    ),
    option(
        "--until", choices=("decided",),
        help="add seeds, look by look, only where a comparison is undecided",
    ),
    ALL,
    add_engine,
    study="[STUDY]",
)  # fmt: skip
def run(options: argparse.Namespace) -> int | None:
    check_engine(options)
    check_one(options)
    if options.max_hours is not None and options.engine in WITHOUT_LIMIT:
        raise ConfigurationError(
            f"--max_hours does not apply to --engine {options.engine}; "
            f"{WITHOUT_LIMIT[options.engine]}"
        )
    Termination().listen()  # SIGTERM stops the study and its runs as Ctrl-C does; the runs save
    if options.all:
        engine_of = engines(options.engine, options)
        return study_runs.run_all(study_runs.total(options, engine_of), engine_of, options)
    opened = study_runs.known if options.only else partial(study_runs.resolve, starts=True)
    runs = opened(options.study, options.runs, options.profile)
    if options.engine != "local" and runs.plan.profile_reason != AS_ASKED:
        raise ConfigurationError(
            f"--engine {options.engine}: profile '{runs.plan.profile}' is that of this machine "
            f"({runs.plan.profile_reason}); give --profile, for the machines that train"
        )
    only = only_of(options, runs)
    if options.engine == "slurm":
        return run_on_slurm(options, runs, only)
    engine = engine_module(options.engine).make(options, runs.plan)
    how = {"retries": options.retries, "max_hours": options.max_hours}
    if options.until and not options.detach:
        outcome = study_runs.run_passes([runs], lambda plan: engine, until_decided=True, **how)
    else:
        outcome = study_runs.executed(runs, engine, **how, stay=not options.detach, only=only)
    return study_runs.ended(chosen(options), runs, outcome, by_looks=bool(options.until))


def chosen(options: argparse.Namespace) -> str:
    """The words that choose the study and its runs in the next command."""
    words = [options.study]
    words += ["--runs", str(options.runs)] * (options.runs != Path("runs"))
    return shlex.join(words + ["--profile", options.profile] * bool(options.profile))


def only_of(options: argparse.Namespace, runs: "StudyRuns") -> list[str] | None:
    """Ids of the runs to do: with `--until`, those of the next look; None: all."""
    from trl_ablate.recipe.strict import nearest

    if options.until and options.only:
        raise ConfigurationError(
            "--only names one run and --until decided chooses; use one of them"
        )
    if options.until and not runs.plan.looks:
        raise ConfigurationError(
            f"study {runs.plan.study}: its seeds are fixed, so --until decided has nothing to "
            "add; write seeds: {looks: [3, 5, 8, 12]} in study.yaml, or leave out --until"
        )
    if options.until:
        return runs.of_pass(True)
    if options.only and options.only not in runs.plan.runs():
        ids = [*runs.plan.runs()]
        meant = nearest(options.only, ids, f"name one by its id, such as {ids[0]}")
        raise ConfigurationError(f"--only {options.only}: the study has no such run{meant}")
    return [options.only] if options.only else None


def run_on_slurm(options: argparse.Namespace, runs: "StudyRuns", only: list[str] | None) -> None:
    from trl_ablate.study.engines import slurm

    ids = [run for run in runs.to_start if only is None or run in only]
    if not ids:
        console.print("nothing to do")
        return
    study, folder = study_path(options.study).resolve(), runs.store.path.resolve()
    words = [sys.executable, "-m", "trl_ablate", "study", "run", str(study), "--runs", str(folder)]
    words += ["--profile", options.profile] if options.profile else []
    words += ["--retries", str(options.retries)]
    script = slurm.array_job(runs, ids, words, cpus=options.cpus_per_run, at_once=options.jobs)
    if options.submit:
        console.print(f"submitted {len(ids)} runs as job {slurm.submit(script)}")
    else:
        console.print(script, end="")
        sys.stderr.write("nothing was submitted: add --submit, or pipe this into sbatch\n")
    if runs.plan.tuning or options.until:
        sys.stderr.write("more runs follow from these outcomes: then run this command again\n")


@subcommand("Print the state of every run.")
def status(options: argparse.Namespace) -> None:
    from trl_ablate.study.outline import grid

    console.print(grid(known_runs(options)))


def forget_engines(parser: Parser) -> None:
    """The options of all engines have their defaults: to fetch, nothing is started."""
    every = {name: how for options in OPTIONS.values() for name, how in options.items()}
    parser.set_defaults(jobs=None, **{name: how.get("default") for name, how in every.items()})


@subcommand(
    "Download finished runs of Modal or Hugging Face.",
    forget_engines,
    flag("--keep_checkpoints", "also fetch checkpoints"),
)
def fetch(options: argparse.Namespace) -> int:
    runs = known_runs(options)
    away = [run_id for run_id in runs.plan.runs() if runs.store.away(run_id).exists()]
    if not away:
        console.print("no runs to fetch")
    codes = [DONE]
    for name, only in runs.store.away_by_engine(away).items():
        engine = engine_module(name).make(options, runs.plan)
        outcome = study_runs.executed(runs, engine, retries=0, stay=False, only=only)
        codes.append(
            study_runs.ended(chosen(options), runs, outcome, by_looks=bool(runs.plan.looks))
        )
    return max(codes)


@subcommand(
    "Put the finished runs that are kept beside a study (runs.parquet) into --runs.",
    ALL,
    study="[STUDY]",
)
def restore(options: argparse.Namespace) -> None:
    from trl_ablate.study import kept_runs

    check_one(options)
    studies = study_runs.files_of(options.all) if options.all else [study_path(options.study)]
    kept = [study for study in studies if kept_runs.beside(study).is_file()]
    if not kept:
        of = f"any study of {options.all}" if options.all else "this study"
        raise ConfigurationError(
            f"there is no {kept_runs.beside(studies[0])}, so no run is kept of {of}; a "
            "checkout has those of the studies that come with this package"
        )
    for study in kept:
        runs = study_runs.known(study, options.runs, options.profile)
        restored = kept_runs.restore(runs, kept_runs.beside(study), console.print)
        console.print(f"{runs.plan.study}: {len(restored)} runs restored")


@subcommand(
    "Write REPORT.md, report.html, report.json, pictures, runs.csv.",
    option(
        "--curves",
        metavar="FILE",
        type=Path,
        help="report any curves instead, from a file that `judge` reads",
    ),
    option("--metric", help="primary metric of --curves; default: eval_reward"),
    option("--reference", metavar="FILE", type=Path, help="published curves to draw as well"),
    option(
        "--out", metavar="FOLDER", type=Path, help="folder to write to; default: the study's own"
    ),
    study="[STUDY]",
)
def report(options: argparse.Namespace) -> None:
    if options.curves and options.study:
        raise ConfigurationError(
            f"--curves {options.curves} is reported in place of a study; leave it out, or "
            f"'{options.study}'"
        )
    if options.metric and not options.curves:
        raise ConfigurationError(
            f"--metric {options.metric} applies to --curves; leave it out, as a study names its own"
        )
    from trl_ablate.study.report.foreign_runs import read_curves
    from trl_ablate.study.report.making import report_curves, report_study

    reference = read_curves(options.reference) if options.reference else ()
    if options.curves:
        out = options.out or Path(options.curves.stem)
        metric = options.metric or EVAL_REWARD
        written = report_curves(options.curves, out, metric=metric, reference=reference)
    elif options.study:
        runs, study = known_runs(options), study_path(options.study)
        installed = SHIPPED.is_relative_to(PACKAGE) and study.resolve().is_relative_to(SHIPPED)
        out = options.out or (Path(study.parent.name) if installed else study.parent)
        written = report_study(runs.plan, runs.store, study, out, reference)
    else:
        raise ConfigurationError("nothing to report; name a study, or give --curves FILE.csv")
    for path in written:
        console.print(str(path))


@subcommand(
    "Remove leftovers of probes, failed and interrupted runs.",
    flag("--checkpoints", "also remove checkpoint-N"),
    flag("--results", "also remove finished runs"),
    flag("--yes", "remove; without it, only print what would be removed"),
)
def clean(options: argparse.Namespace) -> None:
    from trl_ablate.study.cleaning import find_rubbish, remove

    runs = known_runs(options)
    found = find_rubbish(runs, checkpoints=options.checkpoints, results=options.results)
    size = 0
    for rubbish in found:
        kept = options.yes and not remove(rubbish, runs.store)
        words = "removed" if options.yes else "would remove"
        for path in rubbish.paths:
            console.print(f"{'kept (in use, or done by now)' if kept else words} {path}")
        size += 0 if kept else rubbish.bytes
    asked = "; add --yes to remove it" * bool(found and not options.yes)
    console.print(f"{size / 2**30:.2f} GiB{asked}")
