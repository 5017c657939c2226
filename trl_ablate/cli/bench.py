"""`trl-ablate bench MODE`: compares this package with stock TRL.

Every mode prints a table and writes JSON.
"""

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

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

MODEL = {
    "model_shape": ("miniature", "with random weights: miniature, qwen2.5-math-1.5b"),
    "model_name_or_path": (str, "a model instead of a shape: folder or Hub id"),
}
MODEL_SHAPES = ("miniature", "qwen2.5-math-1.5b")
STEPS = {"steps": (3, "counted steps per round")}
ROUNDS = {"rounds": (3, "alternating rounds")}
SEED = {"seed": (0, "of the random numbers")}
SIGMA = {"sigma": (0.8, "spread of the lengths: standard deviation of their logarithm")}

PRESETS: dict[str, dict[str, Any]] = {
    "short_answers": {
        "rows": 32, "microbatch": 8, "group": 8, "idle": 0.5, "prompt_length": 60,
        "mean_length": 42.0, "cap": 48,
    },
    "chain_of_thought": {
        "rows": 16, "microbatch": 4, "group": 8, "idle": 0.5, "prompt_length": 250,
        "mean_length": 343.0, "cap": 1024,
    },
    "long_tails": {
        "rows": 32, "microbatch": 4, "group": 8, "idle": 0.5, "prompt_length": 120,
        "mean_length": 128.0, "cap": 2048, "sigma": 1.6,
    },
}  # fmt: skip
"""Name -> other defaults, for the modes that have these options."""

Options = dict[str, tuple[Any, str]]
"""Option -> its default, or its type if it has none, and its help."""

MODES: dict[str, tuple[str, str, Options]] = {
    "train": ("bench.train_time", "the training phase, with replayed rollouts", {
        **MODEL,
        "bf16": (False, "compute in bf16, also on a CPU"),
        "vocabulary": (int, "of the shape; default: the tokenizer's, or 151936"),
        "rows": (64, "completions per step"),
        "microbatch": (4, "rows of a microbatch"),
        "group": (8, "rows of one prompt"),
        "idle": (0.0, "share of groups of equal rewards"),
        "prompt_length": (96, "tokens of a prompt"),
        "mean_length": (343.0, "mean completion length"),
        "cap": (1024, "longest completion"),
        **SIGMA,
        "uniform": (False, "every completion of mean length"),
        "lengths": (Path, "recorded lengths: a JSON list or rollouts JSONL"),
        "corrected": (False, "as with vLLM: correct the engine's mismatch"),
        "only": (False, "without stock TRL"),
        **STEPS, **ROUNDS, **SEED,
    }),
    "eval": ("bench.eval_time", "evaluation of the miniature", {
        "prompts": (1024, "questions"),
        "batches": ([8, 64], "of stock TRL"),
        "rounds": (2, "alternating rounds"),
    }),
    "reward": ("bench.reward_time", "grading, against one process that calls math-verify", {
        "answers": (Path, "JSONL with a gold `answer` a line"),
        "count": (256, "answers per batch"),
        "rounds": (5, "alternating rounds"),
        "workers": (2, "processes of ours"),
    }),
    "rollout": (
        "bench.rollout_time", "generation by transformers, with given lengths", {
            **MODEL,
            "rows": (64, "completions per batch"),
            "group": (1, "rows of one prompt, and so of one length"),
            "prompt_length": (18, "tokens of a prompt"),
            "mean_length": (19.0, "mean completion length"),
            "cap": (48, "longest completion"),
            **SIGMA,
            "uniform": (False, "every completion of mean length"),
            **ROUNDS, **SEED,
        },
    ),
    "step": ("bench.step_time", "whole GRPO steps, with generation", {
        **MODEL,
        "world": ("chains", "of the miniature, and the questions"),
        "rows": (128, "completions per step"),
        "microbatch": (64, "rows of a microbatch"),
        "group": (8, "rows of one prompt"),
        "idle": (float, "share of groups of equal rewards; default: as graded"),
        "cap": (60, "longest completion"),
        "steps": (5, "counted steps per round"),
        **ROUNDS,
    }),
    "scale": (
        "bench.scale_time", "cost of a token against rollout batch, length and processes", {
            "rows": ([64, 128, 256, 512, 1024], "completions per step"),
            "mean_lengths": ([128.0, 64.0, 256.0, 512.0], "mean completion lengths"),
            "processes": ([1, 2], "numbers of processes"),
            "steps": (2, "counted steps per round"),
            "rounds": (3, "over all points"),
        },
    ),
    "xray": ("xray.costing", "an arm of an X-ray against a training phase", {
        "recipe": ("grpo", "of the arm"),
        "profile": ("miniature", "of the recipe"),
        "rows": (128, "completions per batch"),
        "batches": (4, "counted, per round"),
        **ROUNDS,
    }),
}  # fmt: skip
"""Mode -> the module whose `bench` measures it, what it measures, and its options."""


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
        for option, (default, explained) in options.items():
            add_option(mode, option, default, explained)
        if "cap" in options:
            mode.add_argument("--preset", choices=PRESETS, help="other defaults for the sizes")
    bench_gpu.add(add("gpu", "what no CPU can show, part by part, in ten minutes"))
    found, unknown = parser.parse_known_args(argv)
    found.parser.refuse(unknown)
    if preset := PRESETS.get(vars(found).get("preset") or ""):
        options = MODES[found.mode][2]
        found.parser.set_defaults(**{name: preset[name] for name in preset if name in options})
        found = parser.parse_args(argv)
    return found


def add_option(parser: Parser, name: str, default: Any, text: str) -> None:
    """Counts are at least 1, but for a seed; False makes a flag, a list takes several values."""
    given: dict[str, Any] = {"help": text}
    if default is False:
        given["action"] = "store_true"
    elif isinstance(default, type):
        given["type"] = at_least_one if default is int else default
    else:
        one = default[0] if isinstance(default, list) else default
        given |= {"type": at_least_one if type(one) is int and name != "seed" else type(one)}
        given |= {"default": default, **({"nargs": "+"} if isinstance(default, list) else {})}
    if name == "model_shape":
        given["choices"] = MODEL_SHAPES
    parser.add_argument(f"--{name}", **given)


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

    module, _, names = MODES[options.mode]
    given = {name: vars(options)[name] for name in names}
    load, _, _ = os.getloadavg()
    result = import_module(f"trl_ablate.{module}").bench(**given)
    if result is not None:
        title, rows, facts = result
        publish(title, rows, facts | {"load of the machine before": load}, options.output)
    return DONE
