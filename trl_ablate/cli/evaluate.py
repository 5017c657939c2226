"""`trl-ablate evaluate CHECKPOINT`: a saved model on a dataset, with standard errors."""

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from trl_ablate.cli.ending import DONE
from trl_ablate.cli.imports import to_keep
from trl_ablate.cli.parsing import Command, Parser
from trl_ablate.cli.terminal import console
from trl_ablate.errors import ConfigurationError
from trl_ablate.estimates import MAIN, pass_rates
from trl_ablate.metrics import stderr_of
from trl_ablate.run.json_files import append_jsonl, write_json, write_jsonl

DESCRIPTION = """\
Evaluate a saved model.

CHECKPOINT is a model's folder, a run's directory (its best model, or else its last), a Hub id, or
miniature. Prompt template, dataset and machine are those of its run, or of the recipe; every
setting of a recipe can be given as --key value and overrides the recipe."""

EXAMPLES = (
    "trl-ablate evaluate runs/std_dev_off-seed0 --samples 4 --output found.json --completions",
    "trl-ablate evaluate Qwen/Qwen2.5-Math-1.5B --dataset math --samples 8 --temperature 0.6",
    "trl-ablate evaluate miniature --profile miniature --eval_size 64",
)

SETTINGS = {
    "dataset": "dataset",
    "samples": "num_generations_eval",
    "temperature": "eval_temperature",
    "top_p": "eval_top_p",
}
"""Short options of the command line, and the settings that they set."""


def add_options(parser: Parser) -> None:
    parser.add_argument(
        "checkpoint", metavar="CHECKPOINT", help="a model's folder, a run's, a Hub id, or miniature"
    )
    how = parser.add_argument_group("what to evaluate on")
    how.add_argument("--dataset", help="math, gsm8k, miniature, a Hub id, or a path")
    how.add_argument("--samples", help="completions per question")
    how.add_argument("--temperature", help="0 is greedy; default: as in training")
    how.add_argument("--top_p", help="default: as in training")
    where = parser.add_argument_group("whose settings to use")
    where.add_argument("--recipe", help="path or shipped name; default: the run's recipe, or grpo")
    where.add_argument(
        "--profile", default="auto", help="of the recipe: h100, rtx4090, miniature, auto, a path"
    )
    out = parser.add_argument_group("what to write")
    out.add_argument("--output", type=Path, help="write the numbers to this JSON file")
    out.add_argument(
        "--completions", action="store_true", help="write every completion next to it, as JSONL"
    )
    out.add_argument(
        "--per_question", type=Path, help="write the pass rate of each question to this JSONL file"
    )


def run(options: argparse.Namespace, words: list[str]) -> int:
    check_output(options)
    for short, setting in SETTINGS.items():
        if (given := vars(options)[short]) is not None:
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
        found = evaluate(resolved)
    if resolved.config.process_index != 0:
        return DONE
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
    return DONE


def check_output(options: argparse.Namespace) -> None:
    """Refuse an output that cannot be written, before a model is loaded."""
    if options.completions and not options.output:
        raise ConfigurationError("--completions writes a file next to --output; add --output FILE")
    for name in ("output", "per_question"):
        file: Path | None = vars(options)[name]
        if file and not file.parent.is_dir():
            raise ConfigurationError(
                f"the folder of --{name} {file} does not exist; create it, or give another"
            )
        if file and file.is_dir():
            raise ConfigurationError(f"--{name} {file} is a folder; give a file in it")


def table(sets: Mapping[str, Mapping[str, Any]], title: str) -> Table:
    made = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    made.add_column("", overflow="fold")
    for name, one in sets.items():
        made.add_column(f"{name}\n{one['questions']} questions", justify="right", overflow="fold")
    metrics = dict.fromkeys(metric for one in sets.values() for metric in one["standard_errors"])
    for metric in metrics:
        made.add_row(metric, *(shown(one, metric) for one in sets.values()))
    for group in groups(sets):
        made.add_row(Text(group), *(shown_group(one, group) for one in sets.values()))
    return made


def groups(sets: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The mean rewards of the groups of `eval_by`, such as reward/level=3, of any set."""
    names = [metric for one in sets.values() for metric in one["metrics"]]
    return list(dict.fromkeys(name for name in names if name.startswith("reward/")))


def shown_group(one: Mapping[str, Any], metric: str) -> str:
    """The mean reward of a group and its standard error; empty if the set lacks the group."""
    if metric not in one["metrics"]:
        return ""
    error = one["metrics"][stderr_of(metric)]
    return f"{one['metrics'][metric]:.3f} ± {error:.3f}"


def shown(one: Mapping[str, Any], metric: str) -> str:
    """A mean and its standard error; empty text if the set does not have the metric."""
    if metric not in one["metrics"]:
        return ""
    return f"{one['metrics'][metric]:.3f} ± {one['standard_errors'][metric]:.3f}"


def completions_file(output: Path) -> Path:
    return output.with_suffix(".completions.jsonl")


def write_completions(file: Path, found: Mapping[str, Any]) -> None:
    from trl_ablate.run.masking import Masker

    masker = Masker(hide_home=False)
    file.unlink(missing_ok=True)
    for key, one in found.items():
        for row in one.rows:
            append_jsonl(file, masker.value({"set": key or "main", **row}))
    console.print(f"written: {file}")


main = Command(
    "evaluate",
    DESCRIPTION,
    EXAMPLES,
    add_options,
    run,
    settings="CHECKPOINT [options] [--key value ...]",
)
