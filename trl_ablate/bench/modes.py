"""Which modes has `trl-ablate bench`, and with which options? They are the fields of the mode's
class. No torch."""

from dataclasses import dataclass, field, fields
from math import inf
from pathlib import Path
from typing import Any, Literal, NamedTuple

from trl_ablate.errors import ConfigurationError


def option(default: Any, text: str, *limits: float) -> Any:
    """A list is copied. None: not given. `limits`: the lowest and the highest value."""
    given: Any = {"default": default}
    if isinstance(default, list):
        given = {"default_factory": default.copy}
    return field(**given, metadata={"help": text, "limits": limits})


@dataclass(kw_only=True)
class Limited:
    """Numbers are within the limits of their options, however they are given."""

    def __post_init__(self) -> None:
        for each in fields(self):
            given = getattr(self, each.name)
            if not each.metadata.get("limits") or given is None:
                continue
            low, high = each.metadata["limits"]
            for value in given if isinstance(given, list) else [given]:
                if not low <= value <= high:
                    raise ConfigurationError(
                        f"--{each.name} is {value:g}; give {low:g} to {high:g}"
                    )


@dataclass(kw_only=True)
class OfModel(Limited):
    model_shape: Literal["miniature", "qwen2.5-math-1.5b"] = option(
        "miniature", "with random weights: miniature, qwen2.5-math-1.5b"
    )
    model_name_or_path: str | None = option(None, "a model instead of a shape: folder or Hub id")

    @property
    def model(self) -> str:
        return self.model_name_or_path or self.model_shape


@dataclass(kw_only=True)
class OfLengths(Limited):
    rows: int = option(64, "completions per step")
    mean_length: float = option(343.0, "mean completion length", 1, inf)
    cap: int = option(1024, "longest completion")
    sigma: float = option(
        0.8, "spread of the lengths: standard deviation of their logarithm", 0, 10
    )
    uniform: bool = option(False, "every completion of mean length")
    seed: int = option(0, "of the random numbers")


@dataclass(kw_only=True)
class Training(Limited):
    """The size of a training step. In each round every trainer takes one more, which is not
    counted."""

    microbatch: int = option(4, "rows of a microbatch")
    group: int = option(8, "rows of one prompt")
    idle: float = option(0.0, "share of groups of equal rewards", 0, 1)
    prompt_length: int = option(96, "tokens of a prompt")
    corrected: bool = option(False, "as with vLLM: correct the engine's mismatch")
    bf16: bool = option(False, "compute in bf16, also on a CPU")
    steps: int = option(3, "counted steps per round")
    rounds: int = option(3, "alternating rounds")


@dataclass(kw_only=True)
class Train(Training, OfLengths, OfModel):
    vocabulary: int | None = option(None, "of the shape; default: the tokenizer's, or 151936")
    lengths: Path | None = option(None, "recorded lengths: a JSON list or rollouts JSONL")
    only: bool = option(False, "without stock TRL")


@dataclass(kw_only=True)
class Evaluation:
    prompts: int = option(1024, "questions")
    batches: list[int] = option([8, 64], "of stock TRL")
    rounds: int = option(2, "alternating rounds")


@dataclass(kw_only=True)
class Grading:
    answers: Path | None = option(None, "JSONL with a gold `answer` a line")
    count: int = option(256, "answers per batch")
    rounds: int = option(5, "alternating rounds")
    workers: int = option(2, "processes of ours")


@dataclass(kw_only=True)
class Rollout(OfLengths, OfModel):
    rows: int = option(64, "completions per batch")
    group: int = option(1, "rows of one prompt, and so of one length")
    prompt_length: int = option(18, "tokens of a prompt")
    mean_length: float = option(19.0, "mean completion length", 1, inf)
    cap: int = option(48, "longest completion")
    rounds: int = option(3, "alternating rounds")


@dataclass(kw_only=True)
class Step(OfModel):
    """The size of a whole step. In each round both trainers take one more, which is not counted."""

    world: str = option("chains", "of the miniature, and the questions")
    rows: int = option(128, "completions per step")
    microbatch: int = option(64, "rows of a microbatch")
    group: int = option(8, "rows of one prompt")
    idle: float | None = option(None, "share of groups of equal rewards; default: as graded", 0, 1)
    cap: int = option(60, "longest completion")
    steps: int = option(5, "counted steps per round")
    rounds: int = option(3, "alternating rounds")


@dataclass(kw_only=True)
class Scale(Limited):
    rows: list[int] = option([64, 128, 256, 512, 1024], "completions per step")
    mean_lengths: list[float] = option(
        [128.0, 64.0, 256.0, 512.0], "mean completion lengths", 1, 1e9
    )
    processes: list[int] = option([1, 2], "numbers of processes")
    steps: int = option(2, "counted steps per round")
    rounds: int = option(3, "over all points")


@dataclass(kw_only=True)
class OfXray:
    recipe: str = option("grpo", "of the arm")
    profile: str = option("miniature", "of the recipe")
    rows: int = option(128, "completions per batch")
    batches: int = option(4, "counted, per round")
    rounds: int = option(3, "alternating rounds")


def check_rows(rows: int, *, group: int, microbatch: int = 1, processes: int = 1) -> None:
    """Refuse rows that are no whole number of groups, and of microbatches in each process."""
    several = " times processes" * (processes > 1)
    for name, size in {f"microbatch{several}": microbatch * processes, "group": group}.items():
        if rows % size:
            raise ConfigurationError(
                f"--rows {rows} is no multiple of --{name} {size}; change one of them"
            )


class Mode(NamedTuple):
    measure: str
    """The function that measures it, with an instance of `options`."""
    text: str
    options: type


MODES = {
    "train": Mode("bench.train_time:bench", "the training phase, with replayed rollouts", Train),
    "eval": Mode("bench.step_time:bench_evaluation", "evaluation of the miniature", Evaluation),
    "reward": Mode(
        "bench.reward_time:bench", "grading, against one process that calls math-verify", Grading
    ),
    "rollout": Mode(
        "bench.rollout_time:bench", "generation by transformers, with given lengths", Rollout
    ),
    "step": Mode("bench.step_time:bench", "whole GRPO steps, with generation", Step),
    "scale": Mode(
        "bench.train_time:bench_scale",
        "cost of a token against rollout batch, length and processes",
        Scale,
    ),
    "xray": Mode("xray.costing:bench", "an arm of an X-ray against a training phase", OfXray),
}

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
