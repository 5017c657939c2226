"""Rollouts that nobody had to generate: random tokens in the lengths of a real run.

What the training phase costs depends on the lengths of the completions alone, so they are drawn
from a log-normal distribution (the shape of length distributions in published runs) or taken from
a file.
"""

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM

SIGMA = 0.8
"""Spread of the log of the length."""

SHAPES: dict[str, dict[str, int | bool]] = {
    "miniature": {
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
    "qwen2.5-math-1.5b": {
        "vocab_size": 151936,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
}
"""Qwen2 shapes that a training phase is measured on, with random weights."""


def random_model(shape: str, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """A Qwen2 of that shape."""
    settings = {"vocab_size": len(tokenizer), "max_position_embeddings": 4096, **SHAPES[shape]}
    return Qwen2ForCausalLM(
        Qwen2Config(
            **settings,
            eos_token_id=cast(int, tokenizer.eos_token_id),
            pad_token_id=cast(int, tokenizer.pad_token_id),
        )
    )


def lengths(count: int, mean: float, cap: int, seed: int) -> list[int]:
    """Log-normal lengths whose mean after capping is `mean`, each from 1 to `cap`.

    The location is found by bisection, as the cap takes from the mean what it cuts off.
    """
    normals = [random.Random(f"{seed}-{i}").gauss(0, SIGMA) for i in range(count)]
    low, high = 0.0, float(cap)
    for _ in range(60):
        middle = (low + high) / 2
        capped = [min(cap, max(1.0, middle * math.exp(z))) for z in normals]
        low, high = (middle, high) if sum(capped) / count < mean else (low, middle)
    return [round(min(cap, max(1.0, low * math.exp(z)))) for z in normals]


def recorded_lengths(path: Path) -> list[int]:
    """Lengths from a JSON list, or from JSONL rollouts with a `length`."""
    text = path.read_text(encoding="utf-8")
    if text.lstrip().startswith("["):
        return json.loads(text)
    return [json.loads(line)["length"] for line in text.splitlines()]


class Replay:
    """A `rollout_func` that hands out the same random completions to every trainer.

    Every process takes its own part of `lengths_N`. The log-probabilities that an engine would
    report are the same number everywhere: they cost what real ones cost.
    """

    def __init__(self, lengths_N: Sequence[int], vocabulary: int, prompt_length: int):
        self._lengths = lengths_N
        self._vocabulary = vocabulary
        self._prompt_length = prompt_length
        self._calls = 0

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        self._calls += 1
        rank = trainer.accelerator.process_index
        numbers = random.Random(f"{self._calls}-{rank}")
        first = rank * len(prompts)
        lengths = [self._lengths[(first + i) % len(self._lengths)] for i in range(len(prompts))]
        return {
            "prompt_ids": [self._tokens(numbers, self._prompt_length) for _ in prompts],
            "completion_ids": [self._tokens(numbers, length) for length in lengths],
            "logprobs": [[-6.0] * length for length in lengths],
        }

    def _tokens(self, numbers: random.Random, count: int) -> list[int]:
        return [numbers.randrange(10, self._vocabulary) for _ in range(count)]


class NoEngine:
    """Stands where vLLM would, for trainers whose rollouts are replayed."""

    vllm_client: Any

    def __init__(self, **settings: Any):
        self.vllm_client = self

    def sync_weights(self) -> None:
        """There is nothing to sync."""

    def get_server_info(self) -> dict[str, Any]:
        return {"model_config": {"logprobs_mode": "processed_logprobs"}}


def prompts(count: int) -> Dataset:
    """As many different prompts; what they say is replaced by the replay."""
    return Dataset.from_dict({"prompt": [f"prompt {i}" for i in range(count)]})


def length_reward(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
    """A reward that differs within every group and costs nothing."""
    return [float(sum(ids) % 7) for ids in completion_ids]
