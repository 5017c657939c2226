"""`trl-ablate bench MODE`: compares this package with stock TRL.

Every mode prints a table and writes JSON.
"""

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import MISSING, Field, fields
from importlib import import_module
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from trl_ablate.bench.modes import MODES, PRESETS
from trl_ablate.cli import bench_gpu
from trl_ablate.cli.ending import DONE, exit_code_of
from trl_ablate.cli.parsing import Parser, at_least_one
from trl_ablate.errors import ConfigurationError

DESCRIPTION = "Measure this package against stock TRL. Every mode prints a table and writes JSON."

EXAMPLES = (
    "trl-ablate bench train",
    "trl-ablate bench step --rows 256 --output step.json",
    "trl-ablate bench train --preset short_answers --model_name_or_path Qwen/Qwen2.5-0.5B",
    "torchrun --nproc-per-node 2 -m trl_ablate bench train --only",
    "trl-ablate bench gpu",
)


def main(argv: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else list(argv)
    stopped = "finished parts are kept" if words[:1] == ["gpu"] else "nothing was written"
    return exit_code_of(lambda: run(parse(words)), stopped=stopped)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(EXAMPLES, prog="trl-ablate bench", description=DESCRIPTION)
    modes = parser.add_subparsers(title="modes", metavar="MODE", required=True)

    def add(name: str, text: str) -> Parser:
        mode = modes.add_parser(
            name, help=text, description=f"Measure {text}.",
            usage=f"trl-ablate bench {name} [options]",
        )  # fmt: skip
        output = Path(f"bench-{name}.json")
        mode.add_argument("--output", type=Path, default=output, help=f"JSON; default: {output}")
        mode.set_defaults(parser=mode, mode=name)
        return mode

    for name, (_, text, options) in MODES.items():
        mode = add(name, text)
        for each in fields(options):
            add_option(mode, each)
        if "cap" in names_of(options):
            mode.add_argument("--preset", choices=PRESETS, help="other defaults for the sizes")
    bench_gpu.add(add("gpu", "what no CPU can show, part by part, in ten minutes"))
    found, unknown = parser.parse_known_args(argv)
    found.parser.refuse(unknown)
    if preset := PRESETS.get(vars(found).get("preset") or ""):
        names = names_of(MODES[found.mode].options)
        found.parser.set_defaults(**{name: preset[name] for name in preset if name in names})
        found = parser.parse_args(argv)
    return found


def names_of(options: type) -> list[str]:
    return [each.name for each in fields(options)]


def add_option(parser: Parser, each: Field) -> None:
    """Counts are at least 1, but for a seed."""
    made = each.default_factory
    default = each.default if made is MISSING else made()
    given: dict[str, Any] = {"help": each.metadata["help"], "default": default}
    kind = next((one for one in get_args(each.type) if one is not NoneType), each.type)
    if kind is bool:
        given["action"] = "store_true"
    elif get_origin(each.type) is Literal:
        given["choices"] = get_args(each.type)
    else:
        given["type"] = at_least_one if kind is int and each.name != "seed" else kind
        given |= {"nargs": "+"} if isinstance(default, list) else {}
    parser.add_argument(f"--{each.name}", **given)


def run(options: argparse.Namespace) -> int:
    if not options.output.parent.is_dir():
        raise ConfigurationError(
            f"the folder of --output {options.output} does not exist; create it, or give another"
        )
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    warnings.filterwarnings("ignore")
    if options.mode == "gpu":
        return bench_gpu.run(options)
    from trl_ablate.bench.timing import publish

    module, _, asked = MODES[options.mode]
    given = asked(**{name: vars(options)[name] for name in names_of(asked)})
    load, _, _ = os.getloadavg()
    result = import_module(f"trl_ablate.{module}").bench(given)
    if result is not None:
        title, rows, facts = result
        publish(title, rows, facts | {"load of the machine before": load}, options.output)
    return DONE
