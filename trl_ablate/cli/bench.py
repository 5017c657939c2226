"""Measure this package against stock TRL. Every mode prints a table and writes JSON.

examples:
  trl-ablate bench train
  trl-ablate bench step --rows 256 --output step.json
  trl-ablate bench train --preset short_answers --model_name_or_path Qwen/Qwen2.5-0.5B
  torchrun --nproc-per-node 2 -m trl_ablate bench train --only
  trl-ablate bench gpu
"""

import argparse
import os
import shlex
import warnings
from collections.abc import Iterator
from dataclasses import Field, fields
from pathlib import Path
from pkgutil import resolve_name
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from trl_ablate.bench.gpu import parts
from trl_ablate.bench.gpu.parts import FINISHED, PARTS, Results, Setup
from trl_ablate.bench.modes import MODES, PRESETS
from trl_ablate.cli.ending import DONE, FAILED
from trl_ablate.cli.parsing import Option, Parser, at_least, check_writable, command, flag, option
from trl_ablate.cli.terminal import console
from trl_ablate.errors import ConfigurationError
from trl_ablate.recipe.places import why_no_gpu
from trl_ablate.run.termination import Termination

GPU = "what no CPU can show, part by part, in ten minutes"


def add_modes(parser: Parser) -> None:
    modes = parser.add_subparsers(title="modes", metavar="MODE", required=True)
    texts = {name: mode.text for name, mode in MODES.items()}
    for name, text in (texts | {"gpu": GPU}).items():
        mode = modes.add_parser(
            name, help=text, description=f"Measure {text}.",
            usage=f"trl-ablate bench {name} [options]",
        )  # fmt: skip
        output = Path(f"bench-{name}.json")
        mode.add_argument("--output", type=Path, default=output, help=f"JSON; default: {output}")
        mode.set_defaults(parser=mode, mode=name)
        for add in OF_GPU if name == "gpu" else options_of(MODES[name].options):
            add(mode)


def options_of(kind: type) -> Iterator[Option]:
    yield from map(option_of, fields(kind))
    if "cap" in {each.name for each in fields(kind)}:
        yield option("--preset", choices=PRESETS, help="other defaults for the sizes")


def option_of(each: Field) -> Option:
    """The option of a field, without its default. Counts are at least 1, but for a seed."""
    given: dict[str, Any] = {"help": each.metadata["help"], "default": argparse.SUPPRESS}
    kind = next((one for one in get_args(each.type) if one is not NoneType), each.type)
    if kind is bool:
        given["action"] = "store_true"
    elif get_origin(each.type) is Literal:
        given["choices"] = get_args(each.type)
    else:
        given["type"] = at_least(1) if kind is int and each.name != "seed" else kind
        given |= {"nargs": "+"} if get_origin(each.type) is list else {}
    return option(f"--{each.name}", **given)


def asked(options: argparse.Namespace) -> Any:
    """The options of a mode: those that are given, or else the preset's, or else the defaults."""
    given, kind = vars(options), MODES[options.mode].options
    given = {**PRESETS.get(given.get("preset") or "", {}), **given}
    names = {each.name for each in fields(kind)}
    return kind(**{name: value for name, value in given.items() if name in names})


@command(add_modes, stopped="only finished parts of `bench gpu` are kept")
def main(options: argparse.Namespace) -> int:
    check_writable("--output", options.output)
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    warnings.filterwarnings("ignore")
    if options.mode == "gpu":
        return run_gpu(options)
    from trl_ablate.bench.timing import publish

    load, _, _ = os.getloadavg()
    result = resolve_name(f"trl_ablate.{MODES[options.mode].measure}")(asked(options))
    if result is not None:
        title, rows, facts = result
        publish(title, rows, facts | {"load of the machine before": load}, options.output)
    return DONE


OF_GPU = (
    option(
        "--parts",
        nargs="+",
        choices=PARTS,
        metavar="PART",
        default=list(PARTS),
        help=f"of {', '.join(PARTS)}",
    ),  # fmt: skip
    option("--budget", type=at_least(1), default=600, metavar="SECONDS", help="default: 600"),
    option("--device", choices=("cuda", "cpu"), default="cuda"),
    flag("--toy", "a miniature model and few rollouts"),
    flag("--resume", "keep the finished parts in --output; run the others"),
)


def run_gpu(options: argparse.Namespace) -> int:
    Termination().listen()  # SIGTERM ends the part, too, which has a session of its own
    check_gpu(options)
    setup = Setup(options.device, options.toy)
    results = (Results.continued if options.resume else Results)(options.output, setup)
    given = [word for word in options.words if word != "--resume"]
    again = shlex.join(["trl-ablate", "bench", *given, "--resume"])
    try:
        parts.run(options.parts, results, options.budget, tell=console.print)
    except KeyboardInterrupt:
        console.print(f"continue with: {again}")
        raise
    console.print(f"written to {results.file} and {results.page}")
    if all(results.status(name) in FINISHED for name in results.parts):
        return DONE
    console.print(f"repeat what is not ok with: {again}")
    return FAILED


def check_gpu(options: argparse.Namespace) -> None:
    if options.output.suffix == ".md":
        raise ConfigurationError(
            f"--output {options.output} is the name of the page beside the results; give a name "
            "that ends in .json"
        )
    if options.device == "cpu" and not options.toy:
        raise ConfigurationError(
            "a model of 1.5 B parameters takes hours on a CPU; add --toy to --device cpu"
        )
    if options.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise ConfigurationError(
                f"{why_no_gpu()}; run this on a machine with one, or give --device cpu --toy to "
                "try the same code at toy size"
            )
