"""Train with stock `GRPOTrainer` and with `AblationTrainer`, for tests that compare the two."""

import os
import random
import re
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
UNEVEN = [f"User: {a}+{a * a}=?\nAssistant:{' <think>' * (a % 3)}" for a in range(1, 40)]
"""Prompts of unequal length."""
AS_DRAWN = {"trim_microbatches": False, "regroup_by_length": False}
PLAIN = {**AS_DRAWN, "reuse_forward": False}
"""Without the speed-ups that sum in another order than TRL."""
SGD = {"optim": "sgd", "learning_rate": 0.3}
"""An optimizer whose step is as exact as the gradient: Adam takes full steps on rounding errors."""
EXACT = {"rel": 0.0, "abs": 0.0}
ROUNDED = {"rel": 1e-5, "abs": 1e-7}
REGROUPED = {"rel": 1e-4, "abs": 2e-6}
"""Absolute: a KL of two policies that are the same is rounding."""


@dataclass
class Both:
    """Builds both kinds of trainer on the CPU, with rollout batches of two groups of four.

    Of the arguments, `load` and `tokenizer` are functions of the model's folder, and `subclass` is
    one of the kind of trainer.
    """

    model: str
    folder: Path
    arguments: dict[str, Any] = field(default_factory=dict)

    def stock(self, **settings) -> GRPOTrainer:
        return self._build(GRPOTrainer, GRPOConfig, settings)

    def ours(self, **settings) -> AblationTrainer:
        """With all speed-ups."""
        return self._build(AblationTrainer, AblationConfig, settings)

    def one_shot(self, **settings) -> AblationTrainer:
        """With the evaluation that the recipes choose."""
        return self.ours(**{**PLAIN, "evaluation": "one_shot", **settings})

    def _build(self, trainer: Any, config: Any, given: dict[str, Any]):
        settings = {
            "output_dir": str(self.folder / trainer.__name__),
            **SMALL,
            "per_device_eval_batch_size": 64,
            "num_generations_eval": 2,
            "max_completion_length": 8,
            "max_steps": 2,
            **given,
        }
        arguments = {
            "model": self.model,
            "reward_funcs": digits,
            "train_dataset": Dataset.from_list(ROWS),
            "eval_dataset": Dataset.from_list(ROWS[:5]),
            **self.arguments,
        }
        folder = arguments["model"]
        arguments["model"] = arguments.pop("load", str)(folder)
        tokenizer = arguments.pop("tokenizer", tokenizer_of)(folder)
        kind = arguments.pop("subclass", lambda kind: kind)(trainer)
        return kind(args=config(**settings), processing_class=tokenizer, **arguments)


def tokenizer_of(model: str, chat_template: str | None = None) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
    tokenizer.chat_template = chat_template or tokenizer.chat_template
    return tokenizer


def weights(trainer, model: str = "model") -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in getattr(trainer, model).parameters()])


def logged(trainer) -> list[dict[str, float]]:
    return [row for row in trainer.state.log_history if "train_runtime" not in row]


def train_alike(pair: Both, moves: bool = True, **settings) -> tuple[AblationTrainer, GRPOTrainer]:
    """Train one of each; check that weights and all that stock logs are bit-equal."""
    ours = pair.ours(**PLAIN, **settings)
    before = weights(ours).clone()
    ours.train()
    stock = pair.stock(**settings)  # built here, as building seeds the generators
    stock.train()
    assert torch.equal(weights(ours), weights(stock))
    assert not moves or not torch.equal(weights(ours), before)
    check_logged(ours, stock, EXACT)
    return ours, stock


def train_both_ways(
    pair: Both, moves: bool = True, **settings
) -> tuple[AblationTrainer, GRPOTrainer]:
    """`train_alike`; then train with our speed-ups, as by default: weights and rows may differ only
    by rounding."""
    settings = {**SGD, **settings}
    ours, stock = train_alike(pair, moves, **settings)
    shipped = pair.ours(**settings)
    shipped.train()
    torch.testing.assert_close(weights(shipped), weights(stock), atol=1e-5, rtol=0)
    check_logged(shipped, stock, REGROUPED)
    return ours, stock


def of_a_loss(name: str) -> bool:
    """Whether stock logs this of a forward pass in an evaluation, and ours in one shot does not."""
    return bool(re.fullmatch(r"eval_(\w+_)?(loss|entropy|kl|clip_ratio/\w+)", name))


def evaluate_alike(pair: Both, data: Any = None, **settings) -> dict[str, Any]:
    """Evaluate with stock and ours: the same names and numbers; in one shot, those that need no
    loss, which are returned, in one batch and in several, over which stock averages."""
    theirs = pair.stock(**settings).evaluate(data)
    theirs.pop("eval_model_preparation_time", None)
    check_alike(pair.ours(**PLAIN, **settings).evaluate(data), theirs)
    theirs = {name: value for name, value in theirs.items() if not of_a_loss(name)}
    whole = pair.one_shot(**settings)
    mine = whole.evaluate(data)
    assert not any(map(of_a_loss, mine))
    check_alike(mine, theirs)
    assert whole.state.log_history[-1].items() >= mine.items()
    parts = pair.one_shot(**settings, per_device_eval_batch_size=4).evaluate(data)
    check_alike(parts, {name: mine[name] for name in theirs if name != "eval_num_tokens"})
    return mine


def check_logged(ours, stock, tolerance: dict[str, float]) -> None:
    for mine, theirs in zip(logged(ours), logged(stock), strict=True):
        check_alike(mine, theirs, tolerance)


def check_alike(mine: dict[str, Any], theirs: dict[str, Any], tolerance=ROUNDED) -> None:
    """Check that all numbers of `theirs` are in `mine`, except times."""
    for name, value in without_times(theirs).items():
        if isinstance(value, float):
            value = pytest.approx(value, nan_ok=True, **tolerance)
        assert mine[name] == value, (name, mine[name], value)


def refused_alike(pair: Both, said: str, **settings) -> None:
    """Check that stock and ours raise the same error, when built or in training."""
    errors = []
    for build in (pair.stock, pair.ours):
        with pytest.raises((ValueError, TypeError, NotImplementedError), match=said) as raised:
            build(**settings).train()
        errors.append(repr(raised.value))
    assert errors[0] == errors[1]


@dataclass
class Script:
    """Returns rollouts instead of generating them: as an engine, or as a `rollout_func`.

    A completion depends on its prompt, how often that was asked for before, and the number of the
    call. Seven in ten end in the end-of-sequence token, one in five has the full length `cap`. With
    a `tool`, two of its tokens are the tool's.
    """

    eos: int
    cap: int
    tool: bool = False
    calls: int = 0

    def rollouts(self, prompts: list) -> dict[str, list]:
        asked = [prompts[:place].count(prompt) for place, prompt in enumerate(prompts)]
        drawn = zip(*map(self._completion, prompts, asked), strict=True)
        self.calls += 1
        return dict(zip(("completion_ids", "logprobs", "env_mask"), map(list, drawn), strict=True))

    def _completion(self, prompt: Any, asked: int) -> tuple[list, list, list]:
        draw = random.Random(f"{prompt}-{asked}-{self.calls}-{os.environ.get('RANK')}")
        length = self.cap if draw.random() < 0.2 else draw.randint(1, self.cap)
        ended = draw.random() < 0.7
        ids = [draw.randint(5, 200) for _ in range(length - ended)] + [self.eos] * ended
        logps = [-5.3 + draw.gauss(0, 0.3) for _ in range(length)]
        first = draw.randint(1, length)
        own = [int(not self.tool or t < first or t > first + 1) for t in range(length)]
        return ids, logps, own

    # The methods that TRL calls on an engine

    def generate(self, prompts, images, num_generations, profiler):
        drawn = self.rollouts(prompts)
        logprobs = [[[logp] for logp in row] for row in drawn["logprobs"]]
        return prompts, drawn["completion_ids"], logprobs, None

    def sync_weights(self) -> None:
        pass


def unequal(prompts, trainer, tool: bool = False, calls: int = 0):
    """A `rollout_func` whose completions are of unequal length, the same in every call."""
    tokenizer = trainer.processing_class
    script = Script(tokenizer.eos_token_id, trainer.max_completion_length, tool, calls)
    prompt_ids = [tokenizer(text=prompt)["input_ids"] for prompt in prompts]
    return {"prompt_ids": prompt_ids, **script.rollouts(prompts)}


MODES = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")


def draw_settings(one: random.Random) -> dict[str, Any]:
    """Random settings of TRL's loss and logging that go together."""
    loss_type = one.choice(["grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo"])
    adaptive = {"use_adaptive_entropy": True, "entropy_target": one.choice([1.0, 4.0, 5.2])}
    entropy = [
        *[{}] * 3,
        {"entropy_coef": 0.01},
        {"entropy_coef": 0.01, "entropy_coef_delta": 0.005, **adaptive},
        {"top_entropy_quantile": 0.5},
    ]
    return {
        "loss_type": loss_type,
        "num_iterations": one.randint(1, 3),
        "gradient_accumulation_steps": one.randint(1, 6),
        "logging_steps": one.randint(1, 3),
        "importance_sampling_level": one.choice(["token", "token", "sequence"]),
        "vllm_importance_sampling_mode": one.choice(MODES[:2] if loss_type == "vespo" else MODES),
        "beta": one.choice([0.0, 0.1]),
        "scale_rewards": one.choice(["group", "batch", "none"]),
        "mask_truncated_completions": one.random() < 0.4,
        "off_policy_mask_threshold": one.choice([None, None, 0.01]),
        "shuffle_dataset": one.random() < 0.7,
        "optim": one.choice(["sgd", "adamw_torch"]),
        **one.choice(entropy),
    }
