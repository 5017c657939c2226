"""What is measured on: random models, and random rollouts with the lengths of a real run.

The cost of the training phase depends only on the lengths of the completions. They are drawn from a
log-normal distribution (the shape of length distributions in published runs) or read from a file.
"""

import json
import math
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from datasets import Dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from trl_ablate import miniature
from trl_ablate.bench.modes import OfLengths, OfModel
from trl_ablate.data.row_files import read_file
from trl_ablate.errors import ConfigurationError
from trl_ablate.run.failures import one_sentence

Value = TypeVar("Value")

SHAPES: dict[str, dict[str, int]] = {
    "miniature": {
        "hidden_size": 128, "intermediate_size": 384,
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    },
    "qwen2.5-math-1.5b": {
        "vocab_size": 151936, "hidden_size": 1536, "intermediate_size": 8960,
        "num_hidden_layers": 28, "num_attention_heads": 12, "num_key_value_heads": 2,
    },
}  # fmt: skip
"""Qwen2 shapes for measuring the training phase, with random weights."""


def random_model(
    shape: str, tokenizer: PreTrainedTokenizerBase, vocabulary: int | None = None
) -> PreTrainedModel:
    """A Qwen2 of this shape with random weights; None: its own vocabulary, or the tokenizer's."""
    if vocabulary is not None and vocabulary < len(tokenizer):
        raise ConfigurationError(
            f"--vocabulary is {vocabulary}; give at least the {len(tokenizer)} of the tokenizer"
        )
    words = {} if vocabulary is None else {"vocab_size": vocabulary}
    sizes: dict[str, Any] = {"vocab_size": len(tokenizer), **SHAPES[shape], **words}
    return Qwen2ForCausalLM(
        Qwen2Config(
            **sizes,
            max_position_embeddings=4096,
            tie_word_embeddings=True,
            eos_token_id=cast(int, tokenizer.eos_token_id),
            pad_token_id=cast(int, tokenizer.pad_token_id),
        )
    )


def model_and_tokenizer(
    asked: OfModel, vocabulary: int | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model with its weights, in float32 as a trainer loads it, or a random one of the shape;
    and its tokenizer."""
    name = asked.model_name_or_path
    if name is None:
        tokenizer = miniature.tokenizer()
        return random_model(asked.model_shape, tokenizer, vocabulary), tokenizer
    return loaded(AutoModelForCausalLM, name, dtype="float32"), tokenizer_of(name)


def tokenizer_of(name: str) -> PreTrainedTokenizerBase:
    return loaded(AutoTokenizer, name, padding_side="left")


def loaded(kind: Any, name: str, **how: Any) -> Any:
    with one_sentence(f"model '{name}'", "give --model_name_or_path a folder or a Hub id"):
        return kind.from_pretrained(name, **how)


def lengths(asked: OfLengths) -> list[int]:
    """Log-normal lengths whose mean after capping is `mean_length`, each from 1 to `cap`.

    The cap lowers the mean, so the location of the distribution is found by bisection.
    """
    cap, rows = asked.cap, range(asked.rows)
    if asked.mean_length > cap:
        raise ConfigurationError(
            f"--mean_length {asked.mean_length:g} is above --cap {cap}; change one of them"
        )
    if asked.uniform:
        return [round(asked.mean_length)] * asked.rows
    spread = [math.exp(random.Random(f"{asked.seed}-{i}").gauss(0, asked.sigma)) for i in rows]
    low, high = 0.0, cap / min(spread)
    for _ in range(60):
        middle = (low + high) / 2
        capped = [min(cap, max(1.0, middle * factor)) for factor in spread]
        low, high = (middle, high) if sum(capped) < asked.mean_length * len(rows) else (low, middle)
    return [round(min(cap, max(1.0, low * factor))) for factor in spread]


def recorded_lengths(path: Path) -> list[int]:
    """Lengths from a JSON list, or from JSONL rollouts with a `length`."""
    with suppress(ValueError, RecursionError):  # several lines, or a defect that has a line
        found = json.loads(path.read_bytes())
        if isinstance(found, list) and found and all(type(length) is int for length in found):
            return found
    return recorded(path, "length", int)


def recorded(file: Path, name: str, kind: type[Value]) -> list[Value]:
    """The value `name` of every object in a file of JSON or JSONL."""
    found: list[Value] = []
    for row in read_file(file):
        value = row.values.get(name)
        if not isinstance(value, kind):
            wrong = row.defect or f"its `{name}` is {value!r:.80}"
            raise ConfigurationError(
                f"{row.place}: {wrong}; give an object with a `{name}` ({kind.__name__}) a line"
            )
        found.append(value)
    if not found:
        raise ConfigurationError(f"{file} is empty; give an object with a `{name}` a line")
    return found


@dataclass(eq=False)
class Replay:
    """A `rollout_func` that gives the same random completions to every trainer.

    Each process takes its own part of `lengths_N`. A prompt stands in `group` rows in succession.
    The engine's log-probabilities are a constant, which costs as much time as real values.
    """

    lengths_N: Sequence[int]
    vocabulary: int
    prompt_length: int
    group: int = 1
    calls: int = 0

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        self.calls += 1
        rank, rows = trainer.accelerator.process_index, range(len(prompts))
        numbers, first = random.Random(f"{self.calls}-{rank}"), rank * len(prompts)
        lengths = [self.lengths_N[(first + row) % len(self.lengths_N)] for row in rows]
        different = [self._tokens(numbers, self.prompt_length) for _ in rows[:: self.group]]
        return {
            "prompt_ids": [different[row // self.group] for row in rows],
            "completion_ids": [self._tokens(numbers, length) for length in lengths],
            "logprobs": [[-6.0] * length for length in lengths],
        }

    def _tokens(self, numbers: random.Random, count: int) -> list[int]:
        return [numbers.randrange(10, self.vocabulary) for _ in range(count)]


class NoEngine:
    """Replaces vLLM in trainers with replayed rollouts."""

    vllm_client: Any

    def __init__(self, **settings: Any):
        self.vllm_client = self

    def sync_weights(self) -> None:
        """Do nothing: there is no engine."""

    def get_server_info(self) -> dict[str, Any]:
        return {"model_config": {"logprobs_mode": "processed_logprobs"}}


def prompts(count: int) -> Dataset:
    """`count` different prompts; their text does not matter, as `Replay` replaces it."""
    return Dataset.from_dict({"prompt": [f"prompt {i}" for i in range(count)]})


def length_reward(
    completion_ids: list[list[int]], group: int = 1, idle: float = 0.0, **kwargs: Any
) -> list[float]:
    """A reward that differs within each group, but for a share of idle groups, and costs almost no
    time."""
    groups = len(completion_ids) // group
    return [
        float(sum(ids) % 7) * (row // group >= round(idle * groups))
        for row, ids in enumerate(completion_ids)
    ]
