"""Evaluate a saved model.

CHECKPOINT is a model's folder, a run's directory (its best model, or else its last), a Hub id, or
miniature. Prompt template, dataset and machine are those of its run, or of the recipe; every
setting of a recipe can be given as --key value and overrides the recipe.

examples:
  trl-ablate evaluate runs/std_dev_off-seed0 --samples 4 --output found.json --completions
  trl-ablate evaluate Qwen/Qwen2.5-Math-1.5B --dataset math --samples 8 --temperature 0.6
  trl-ablate evaluate miniature --profile miniature --eval_size 64
"""

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from trl_ablate.cli import terminal
from trl_ablate.cli.imports import to_keep
from trl_ablate.cli.parsing import check_writable, command, flag, group, option
from trl_ablate.cli.terminal import console
from trl_ablate.errors import ConfigurationError
from trl_ablate.estimates import MAIN, pass_rates
from trl_ablate.metrics import stderr_of
from trl_ablate.run.json_files import write_json, write_jsonl

SETTINGS = ("dataset", "num_generations_eval", "eval_temperature", "eval_top_p")
"""What short options set."""


@command(
    option(
        "checkpoint", metavar="CHECKPOINT", help="a model's folder, a run's, a Hub id, or miniature"
    ),
    group(
        "what to evaluate on",
        option("--dataset", help="math, gsm8k, miniature, a Hub id, or a path"),
        option("--samples", dest=SETTINGS[1], metavar="N", help="completions per question"),
        option(
            "--temperature", dest=SETTINGS[2], metavar="T",
            help="0 is greedy; default: as in training",
        ),
        option("--top_p", dest=SETTINGS[3], metavar="P", help="default: as in training"),
    ),
    group(
        "whose settings to use",
        option("--recipe", help="path or shipped name; default: the run's recipe, or grpo"),
        option(
            "--profile", default="auto",
            help="of the recipe, as for `train`; default: auto",
        ),
    ),
    group(
        "what to write",
        option("--output", type=Path, help="write the numbers to this JSON file"),
        flag("--completions", "write every completion next to it, as JSONL"),
        option(
            "--per_question", type=Path,
            help="write the pass rate of each question to this JSONL file",
        ),
    ),
    settings="CHECKPOINT [options] [--key value ...]",
)  # fmt: skip
def main(options: argparse.Namespace, words: list[str]) -> None:
    check_output(options)
    for setting in SETTINGS:
        if (given := vars(options)[setting]) is not None:
            words += [f"--{setting}", given]
    with to_keep():
        from trl_ablate.training.evaluating import describe, evaluate, find_checkpoint, to_evaluate
        from trl_ablate.training.machine import check_device

    checkpoint = find_checkpoint(options.checkpoint)
    with tempfile.TemporaryDirectory() as scratch:
        resolved = to_evaluate(
            checkpoint, words, recipe=options.recipe, profile=options.profile, scratch=scratch
        )
        check_device(resolved)
        if resolved.config.process_index == 0:
            terminal.show_recipe(resolved, everything=False)
        found = evaluate(resolved)
    if resolved.config.process_index != 0:
        return
    report = describe(options.checkpoint, resolved, found)
    console.print(table(report["sets"], title=f"{checkpoint.model} on {resolved.task.dataset}"))
    if options.output:
        write_json(options.output, report)
        console.print(f"written: {options.output}")
    if options.completions:
        write_completions(completions_file(options.output), found)
    if options.per_question:
        rates = pass_rates(found[MAIN].rows, report["samples"])
        write_jsonl(options.per_question, rates)
        console.print(f"written: {options.per_question}")


def check_output(options: argparse.Namespace) -> None:
    if options.completions and not options.output:
        raise ConfigurationError("--completions writes a file next to --output; add --output FILE")
    rates: Path | None = options.per_question
    beside = completions_file(options.output) if options.completions else None
    others = {"--output": options.output, "--completions": beside}
    for name, file in {**others, "--per_question": rates}.items():
        check_writable(name, file)
    if rates and rates.resolve() in [file.resolve() for file in others.values() if file]:
        raise ConfigurationError(
            f"--per_question is {rates}, which another option writes, too; give it a file of its "
            "own"
        )


def completions_file(output: Path) -> Path:
    return output.with_suffix(".completions.jsonl")


def table(sets: Mapping[str, Mapping[str, Any]], title: str) -> Table:
    """The means of every set, also those of the groups of `eval_by`, such as reward/level=3."""
    errors = [metric for one in sets.values() for metric in one["standard_errors"]]
    means = [metric for one in sets.values() for metric in one["metrics"]]
    metrics = dict.fromkeys([*errors, *(name for name in means if name.startswith("reward/"))])
    rows = [(metric, *(shown(one, metric) for one in sets.values())) for metric in metrics]
    header = ["", *(f"{name}\n{one['questions']} questions" for name, one in sets.items())]
    return terminal.table(title, rows, header, numbers_from=1)


def shown(one: Mapping[str, Any], metric: str) -> str:
    """A mean and its standard error; empty text if the set does not have the metric."""
    means, errors = one["metrics"], one["standard_errors"]
    if metric not in means:
        return ""
    error = errors[metric] if metric in errors else means[stderr_of(metric)]
    return f"{means[metric]:.3f} ± {error:.3f}"


def write_completions(file: Path, found: Mapping[str, Any]) -> None:
    from trl_ablate.run.masking import Masker

    masker = Masker(hide_home=False)
    rows = ({"set": key or "main", **row} for key, one in found.items() for row in one.rows)
    write_jsonl(file, (masker.value(row) for row in rows))
    console.print(f"written: {file}")
