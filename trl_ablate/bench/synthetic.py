"""What is measured on: random models, and random rollouts with the lengths of a real run.

The cost of the training phase depends only on the lengths of the completions. They are drawn from a
log-normal distribution (the shape of length distributions in published runs) or read from a file.
"""

import json
import math
import random
from collections.abc import Sequence
from contextlib import suppress
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
from trl_ablate.bench.modes import OfLengths
from trl_ablate.data.row_files import read_file
from trl_ablate.errors import ConfigurationError

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
    sizes: dict[str, Any] = {"vocab_size": len(tokenizer), **SHAPES[shape]}
    if vocabulary is not None:
        sizes["vocab_size"] = vocabulary
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
    shape: str, name: str | None, vocabulary: int | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model of this name with its weights, in float32 as a trainer loads it; None: a random
    model of the shape. And its tokenizer."""
    if name is None:
        tokenizer = miniature.tokenizer()
        return random_model(shape, tokenizer, vocabulary), tokenizer
    model = AutoModelForCausalLM.from_pretrained(name, dtype="float32")
    return model, AutoTokenizer.from_pretrained(name, padding_side="left")


def lengths_of(asked: OfLengths) -> list[int]:
    if asked.uniform:
        return [round(asked.mean_length)] * asked.rows
    return lengths(asked.rows, asked.mean_length, asked.cap, asked.seed, asked.sigma)


def lengths(count: int, mean: float, cap: int, seed: int, sigma: float = 0.8) -> list[int]:
    """Log-normal lengths whose mean after capping is `mean`, each from 1 to `cap`.

    The cap lowers the mean, so the location of the distribution is found by bisection.
    `sigma`: the standard deviation of the logarithm of a length.
    """
    normals = [random.Random(f"{seed}-{i}").gauss(0, sigma) for i in range(count)]
    low, high = 0.0, float(cap)
    for _ in range(60):
        middle = (low + high) / 2
        capped = [min(cap, max(1.0, middle * math.exp(z))) for z in normals]
        low, high = (middle, high) if sum(capped) / count < mean else (low, middle)
    return [round(min(cap, max(1.0, low * math.exp(z)))) for z in normals]


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


class Replay:
    """A `rollout_func` that gives the same random completions to every trainer.

    Each process takes its own part of `lengths_N`. A prompt stands in `group` rows in succession.
    The engine's log-probabilities are a constant, which costs as much time as real values.
    """

    def __init__(
        self, lengths_N: Sequence[int], vocabulary: int, prompt_length: int, group: int = 1
    ):
        self._lengths = lengths_N
        self._group = group
        self._vocabulary = vocabulary
        self._prompt_length = prompt_length
        self._calls = 0

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        self._calls += 1
        rank = trainer.accelerator.process_index
        numbers = random.Random(f"{self._calls}-{rank}")
        first = rank * len(prompts)
        lengths = [self._lengths[(first + i) % len(self._lengths)] for i in range(len(prompts))]
        different = [self._tokens(numbers, self._prompt_length) for _ in prompts[:: self._group]]
        return {
            "prompt_ids": [different[row // self._group] for row in range(len(prompts))],
            "completion_ids": [self._tokens(numbers, length) for length in lengths],
            "logprobs": [[-6.0] * length for length in lengths],
        }

    def _tokens(self, numbers: random.Random, count: int) -> list[int]:
        return [numbers.randrange(10, self._vocabulary) for _ in range(count)]


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
