"""`--engine`, and the options of every engine. An option of another engine is refused, and the
message names that engine."""

import argparse
import sys
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from trl_ablate.cli.parsing import Parser, at_least
from trl_ablate.errors import ConfigurationError

if TYPE_CHECKING:
    from trl_ablate.study.engines import Engine
    from trl_ablate.study.planned import Plan

EngineOf = Callable[["Plan"], "Engine"]

ENGINES = ("local", "ray", "modal", "hf_jobs", "slurm")
IMAGE = f"python:3.{sys.version_info.minor}"

OPTIONS: dict[tuple[str, ...], dict[str, dict[str, Any]]] = {
    ("ray",): {
        "ray_address": {"metavar": "ADDRESS",
                        "help": "address of the cluster; default: this machine's, or a new one"},
    },
    ("ray", "slurm"): {
        "cpus_per_run": {"metavar": "N", "type": at_least(1), "default": 1,
                         "help": "CPUs of a run; default: 1"},
    },
    ("modal",): {
        "gpu": {"default": "H100", "help": "Modal's name of a run's GPU; default: H100"},
    },
    ("hf_jobs",): {
        "flavor": {"help": "hardware of a run; default: a10g-large, or cpu-upgrade for runs on the "
                   "CPU"},
        "timeout": {"default": "12h", "help": "longest time of a run, such as 90m; default: 12h"},
        "secrets": {"metavar": "NAME", "nargs": "+", "default": [],
                    "help": "environment variables to send as secrets; HF_TOKEN is always sent"},
        "namespace": {"help": "user or organisation that pays; default: your own"},
        "image": {"default": IMAGE, "help": f"Docker image; default: {IMAGE}"},
    },
    ("ray", "modal", "hf_jobs"): {
        "keep_checkpoints": {"action": "store_true", "help": "copy checkpoints back, too"},
    },
    ("modal", "hf_jobs"): {
        "detach": {"action": "store_true",
                   "help": "exit when the runs have started, with --jobs so many of them; collect "
                   "with fetch"},
    },
    ("slurm",): {
        "submit": {"action": "store_true",
                   "help": "submit the array job to Slurm instead of printing it"},
    },
}  # fmt: skip
"""Engines -> the options that apply to them, and their `add_argument`."""


def add_engine(parser: Parser) -> None:
    parser.add_argument(
        "--engine", choices=ENGINES, default="local", help="where the runs are done"
    )
    for engines, options in OPTIONS.items():
        group = parser.add_argument_group(f"with --engine {' or '.join(engines)}")
        for name, arguments in options.items():
            group.add_argument(f"--{name}", **arguments)


def check_engine(options: argparse.Namespace) -> None:
    for engines, of_them in OPTIONS.items():
        for name in of_them:
            given = vars(options)[name] != options.parser.get_default(name)
            if given and options.engine not in engines:
                raise ConfigurationError(
                    f"--{name} does not apply to --engine {options.engine}; use it with --engine "
                    f"{' or '.join(engines)}"
                )


def engine_module(name: str) -> Any:
    """The module of an engine, which is imported now; some need a package of their own."""
    try:
        return import_module(f"trl_ablate.study.engines.{name}")
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"--engine {name}: there is no module '{error.name}'; pip install 'trl-ablate[{name}]'"
        ) from error


def engines(name: str, options: argparse.Namespace) -> EngineOf:
    """The engine of each plan of a list; plans whose runs need the same share one."""
    module, made = engine_module(name), {}

    def engine_of(plan: "Plan") -> "Engine":
        kind = plan.for_gpu, plan.of_one_core
        if kind not in made:
            made[kind] = module.make(options, plan)
        return made[kind]

    return engine_of
