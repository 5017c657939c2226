"""Train with stock `GRPOTrainer` and with `AblationTrainer`, for tests that compare the two."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from tests.support.rows import without_times
from tests.support.trainers import PROMPTS, SMALL, digits
from trl_ablate import AblationConfig, AblationTrainer

ROWS = [{"prompt": prompt, "answer": a} for a, prompt in enumerate(PROMPTS, start=11)]


@dataclass
class Both:
    """Builds both kinds of trainer on the CPU, with rollout batches of two groups of four."""

    model: str
    folder: Path
    arguments: dict[str, Any] = field(default_factory=dict)

    def stock(self, **overrides) -> GRPOTrainer:
        return self._build(GRPOTrainer, GRPOConfig, overrides)

    def ours(self, **overrides) -> AblationTrainer:
        as_drawn = {"trim_microbatches": False, "regroup_by_length": False}
        return self._build(AblationTrainer, AblationConfig, {**as_drawn, **overrides})

    def one_shot(self, **overrides) -> AblationTrainer:
        """With the evaluation that the recipes choose."""
        return self.ours(evaluation="one_shot", **overrides)

    def _build(self, trainer: Any, config: Any, overrides: dict[str, Any]):
        settings = {
            "output_dir": str(self.folder / trainer.__name__),
            **SMALL,
            "per_device_eval_batch_size": 64,
            "num_generations_eval": 2,
            "max_completion_length": 8,
            "max_steps": 2,
            **overrides,
        }
        arguments = {
            "model": self.model,
            "reward_funcs": digits,
            "train_dataset": Dataset.from_list(ROWS),
            "eval_dataset": Dataset.from_list(ROWS[:5]),
            **self.arguments,
        }
        if load := arguments.pop("load", None):
            arguments["model"] = load()
        tokenizer = arguments.pop("tokenizer", lambda: tokenizer_of(self.model))
        rewards = arguments["reward_funcs"]
        if isinstance(rewards, list):
            arguments["reward_funcs"] = list(rewards)  # TRL adds the tools of an environment to it
        made = {"processing_class": tokenizer(), **arguments}
        return trainer(args=config(**settings), **made)


def tokenizer_of(model: str, chat_template: str | None = None) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
    tokenizer.chat_template = chat_template or tokenizer.chat_template
    return tokenizer


def weights(trainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


def logged(trainer) -> list[dict[str, float]]:
    return [row for row in trainer.state.log_history if "train_runtime" not in row]


def train_alike(pair: Both, **settings) -> tuple[AblationTrainer, GRPOTrainer]:
    """Train one of each; check that weights are bit-equal and stock's metrics have equal values."""
    ours = pair.ours(**settings)
    before = weights(ours).clone()
    ours.train()
    stock = pair.stock(**settings)  # built here, as building seeds the generators
    stock.train()
    assert torch.equal(weights(ours), weights(stock))
    assert not torch.equal(weights(ours), before)
    assert len(logged(ours)) == len(logged(stock))
    for mine, theirs in zip(logged(ours), logged(stock), strict=True):
        assert set(theirs) <= set(mine)
        check_alike(mine, theirs)
    return ours, stock


SGD = {"optim": "sgd", "learning_rate": 0.3}
"""An optimizer whose step is as exact as the gradient: Adam takes full steps on rounding errors."""


def train_both_ways(pair: Both, **settings) -> tuple[AblationTrainer, GRPOTrainer]:
    """`train_alike`; then train with trimming and regrouping, as by default: the weights may
    differ only by rounding."""
    settings = {**SGD, **settings}
    ours, stock = train_alike(pair, **settings)
    shipped = pair.ours(trim_microbatches=True, regroup_by_length=True, **settings)
    shipped.train()
    torch.testing.assert_close(weights(shipped), weights(stock), atol=1e-5, rtol=0)
    return ours, stock


def check_alike(mine: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Check that all numbers of `theirs` are in `mine`, except times and float32 rounding."""
    for name, value in without_times(theirs).items():
        if isinstance(value, float):
            value = pytest.approx(value, rel=1e-5, abs=1e-7, nan_ok=True)
        assert mine[name] == value, name


def refused_alike(pair, said: str, *, training: bool = False, **settings) -> None:
    """Check that stock and ours raise the same error, when built or in training."""
    errors = []
    for kind in ("stock", "ours"):
        build = getattr(pair, kind)
        with pytest.raises((ValueError, TypeError, NotImplementedError), match=said) as raised:
            build(**settings).train() if training else build(**settings)
        errors.append((type(raised.value), str(raised.value)))
    assert errors[0] == errors[1]
