"""`--engine`, and the options of every engine. An option of another engine is refused, and the
message names that engine."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from trl_ablate.cli.parsing import Parser
from trl_ablate.errors import ConfigurationError

ENGINES = ("local", "ray", "modal", "hf_jobs", "slurm")
LOCAL = ENGINES[0]
IMAGE = f"python:3.{sys.version_info.minor}"
DETACHED = ("modal", "hf_jobs")

OPTIONS: dict[str, tuple[Sequence[str], dict[str, Any]]] = {
    "ray_address": (["ray"], {
        "metavar": "ADDRESS",
        "help": "address of the cluster; default: this machine's, or a new one",
    }),
    "cpus_per_run": (["ray", "slurm"], {
        "metavar": "N", "type": int, "default": 1, "help": "CPUs of a run; default: 1",
    }),
    "gpu": (["modal"], {
        "default": "H100", "help": "Modal's name of a run's GPU; default: H100",
    }),
    "flavor": (["hf_jobs"], {
        "help": "hardware of a run; default: a10g-large, or cpu-upgrade for runs on the CPU",
    }),
    "timeout": (["hf_jobs"], {
        "default": "12h", "help": "longest time of a run, such as 90m; default: 12h",
    }),
    "secrets": (["hf_jobs"], {
        "metavar": "NAME", "nargs": "+", "default": [],
        "help": "environment variables to send as secrets; HF_TOKEN is always sent",
    }),
    "namespace": (["hf_jobs"], {"help": "user or organisation that pays; default: your own"}),
    "image": (["hf_jobs"], {"default": IMAGE, "help": f"Docker image; default: {IMAGE}"}),
    "keep_checkpoints": (["ray", *DETACHED], {
        "action": "store_true", "help": "copy checkpoints back, too",
    }),
    "detach": (DETACHED, {
        "action": "store_true", "help": "exit when all runs have started; collect with fetch",
    }),
    "submit": (["slurm"], {
        "action": "store_true", "help": "submit the array job to Slurm instead of printing it",
    }),
}  # fmt: skip
"""Name -> the engines that it applies to, and its `add_argument`."""


def add_engine(parser: Parser, words: Sequence[str]) -> None:
    """Add `--engine` and its options, and refuse those among the words that are of another one."""
    parser.add_argument("--engine", choices=ENGINES, default=LOCAL, help="where the runs are done")
    for engines in dict.fromkeys(tuple(engines) for engines, _ in OPTIONS.values()):
        group = parser.add_argument_group(f"with --engine {' or '.join(engines)}")
        for name, (applies, arguments) in OPTIONS.items():
            if tuple(applies) == engines:
                group.add_argument(f"--{name}", **arguments)
    parser.set_defaults(make_engine=make)
    engine = _named(words)
    for word in words if engine in ENGINES else ():
        option = word.partition("=")[0]
        engines, _ = OPTIONS.get(option.removeprefix("--"), ((engine,), {}))
        if option.startswith("--") and engine not in engines:
            raise ConfigurationError(
                f"{option} does not apply to --engine {engine}; use it with --engine "
                f"{' or '.join(engines)}"
            )


def make(options: argparse.Namespace, plan) -> Any:
    """The chosen engine, whose module is imported now."""
    module: Any = import_module(f"trl_ablate.study.engines.{options.engine}")
    return module.make(options, plan)


def _named(words: Sequence[str]) -> str:
    """The name of the engine; the full parser refuses one that is missing or wrong."""
    chosen = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    chosen.add_argument("--engine", default=LOCAL)
    try:
        return chosen.parse_known_args(words)[0].engine
    except argparse.ArgumentError:
        return LOCAL
