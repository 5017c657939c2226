"""Settings and rewards for X-rays of a tiny model with random weights."""

from pathlib import Path
from typing import Any

from tests.support.trainers import digits  # noqa: F401

HERE = Path(__file__).resolve()


def small_xray(model: str, reward: str = "digits", **changes: Any) -> dict[str, Any]:
    """Settings of all arms: two groups of four on two-digit sums, rewarded by `reward` below."""
    return {
        "profile": "miniature",
        "model_name_or_path": model,
        "reward_funcs": [f"{HERE}:{reward}"],
        "generation_batch_size": 16,
        "optimizer_batch_size": 16,
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 12,
        "stop": list("0123456789abcdefghij"),  # completions of all lengths
        "min_tokens": 0,
        "train_size": 64,
        "eval_strategy": "no",
        "grader_workers": 1,
        "learning_rate_scale": 1000.0,
        "report_to": "none",
        "log_memory": False,
        **changes,
    }


def alternating(completions, **kwargs):
    """The same rewards in every group: equal stds."""
    return [float(row % 2) for row in range(len(completions))]
