"""`trl-ablate bench gpu`: its options, and what it prints. No torch."""

import argparse
import shlex

from trl_ablate.bench.gpu import part_runs
from trl_ablate.bench.gpu.part_runs import Results
from trl_ablate.bench.gpu.parts import PARTS, Setup, page
from trl_ablate.cli.ending import DONE, FAILED
from trl_ablate.cli.parsing import at_least_one
from trl_ablate.cli.terminal import console
from trl_ablate.errors import ConfigurationError
from trl_ablate.run.json_files import read_object


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--parts", nargs="+", metavar="PART", default=list(PARTS), help=f"of {', '.join(PARTS)}"
    )
    parser.add_argument(
        "--budget", type=at_least_one, default=600, metavar="SECONDS", help="default: 600"
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--toy", action="store_true", help="a miniature model and few rollouts")
    parser.add_argument(
        "--resume", action="store_true", help="keep the finished parts in --output; run the others"
    )


def run(options: argparse.Namespace) -> int:
    if wrong := [name for name in options.parts if name not in PARTS]:
        raise ConfigurationError(f"'{wrong[0]}' is not a part of bench gpu; use {', '.join(PARTS)}")
    setup = Setup(options.device, options.toy)
    if setup.device == "cpu" and not setup.toy:
        raise ConfigurationError(
            "a model of 1.5 B parameters takes hours on a CPU; add --toy to --device cpu"
        )
    if setup.device == "cuda":
        check_card()
    results = (Results.continued if options.resume else Results)(options.output, setup)
    try:
        part_runs.run(options.parts, results, options.budget, tell=console.print)
    except KeyboardInterrupt:
        console.print(f"continue with: {command(options)}")
        raise
    report(options, results)
    return DONE if results.all_well else FAILED


def check_card() -> None:
    import torch

    if not torch.cuda.is_available():
        raise ConfigurationError(
            "torch finds no GPU here; run this on a machine with one, or give --device cpu --toy "
            "to try the same code at toy size"
        )


def report(options: argparse.Namespace, results: Results) -> None:
    """Write the page beside the JSON, and print its first table."""
    if not results.file.exists():
        return
    text = page(read_object(results.file))
    beside = options.output.with_suffix(".md")
    beside.write_text(text, encoding="utf-8")
    console.print(f"written to {options.output} and {beside}")
    if not results.all_well:
        console.print(f"repeat what is not ok with: {command(options)}")


def command(options: argparse.Namespace) -> str:
    """The command that continues this run."""
    words = ["trl-ablate", "bench", "gpu", "--resume", "--output", str(options.output)]
    words += ["--device", options.device] if options.device != "cuda" else []
    words += ["--toy"] if options.toy else []
    words += ["--budget", str(options.budget)] if options.budget != 600 else []
    words += ["--parts", *options.parts] if options.parts != list(PARTS) else []
    return shlex.join(words)
