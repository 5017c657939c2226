"""Train with stock `GRPOTrainer` and with `AblationTrainer`, for tests that compare the two."""

import json
import os
import random
import re
import tempfile
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from tests.support.rows import without_times
from tests.support.trainers import PROMPTS, SMALL, digits
from trl_ablate import AblationConfig, AblationTrainer

ROWS = [{"prompt": prompt, "answer": a} for a, prompt in enumerate(PROMPTS, start=11)]
UNEVEN = [f"User: {a}+{a * a}=?\nAssistant:{' <think>' * (a % 3)}" for a in range(1, 40)]
"""Prompts of unequal length."""
AS_DRAWN = {"trim_microbatches": False, "regroup_by_length": False}
SHIPPED = {"trim_microbatches": True, "regroup_by_length": True}
SGD = {"optim": "sgd", "learning_rate": 0.3}
"""An optimizer whose step is as exact as the gradient: Adam takes full steps on rounding errors."""


@dataclass
class Both:
    """Builds both kinds of trainer on the CPU, with rollout batches of two groups of four.

    Of the arguments, `load` and `tokenizer` are functions of the model's folder.
    """

    model: str
    folder: Path
    arguments: dict[str, Any] = field(default_factory=dict)

    def stock(self, **overrides) -> GRPOTrainer:
        return self._build(GRPOTrainer, GRPOConfig, overrides)

    def ours(self, **overrides) -> AblationTrainer:
        return self._build(AblationTrainer, AblationConfig, {**AS_DRAWN, **overrides})

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
        folder = arguments["model"]
        if load := arguments.pop("load", None):
            arguments["model"] = load(folder)
        made = {"processing_class": arguments.pop("tokenizer", tokenizer_of)(folder), **arguments}
        return trainer(args=config(**settings), **made)


def tokenizer_of(model: str, chat_template: str | None = None) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
    tokenizer.chat_template = chat_template or tokenizer.chat_template
    return tokenizer


def weights(trainer, model: str = "model") -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in getattr(trainer, model).parameters()])


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
    for mine, theirs in zip(logged(ours), logged(stock), strict=True):
        check_alike(mine, theirs)
    return ours, stock


def train_both_ways(pair: Both, **settings) -> tuple[AblationTrainer, GRPOTrainer]:
    """`train_alike`; then train with trimming and regrouping, as by default: the weights may
    differ only by rounding."""
    settings = {**SGD, **settings}
    ours, stock = train_alike(pair, **settings)
    shipped = pair.ours(**SHIPPED, **settings)
    shipped.train()
    torch.testing.assert_close(weights(shipped), weights(stock), atol=1e-5, rtol=0)
    return ours, stock


def of_a_loss(name: str) -> bool:
    """Whether stock logs this of a forward pass in an evaluation, and ours in one shot does not."""
    return bool(re.fullmatch(r"eval_(\w+_)?(loss|entropy|kl|clip_ratio/\w+)", name))


def evaluate_alike(pair: Both, data: Any = None, **settings) -> dict[str, Any]:
    """Evaluate with stock and ours: the same names and numbers; in one shot, those that need no
    loss, which are returned, in one batch and in several, over which stock averages."""
    theirs = pair.stock(**settings).evaluate(data)
    theirs.pop("eval_model_preparation_time", None)
    check_alike(pair.ours(**settings).evaluate(data), theirs)
    if isinstance(data, dict):
        theirs = {}  # of several sets, it logs most metrics by the name of one
    theirs = {name: value for name, value in theirs.items() if not of_a_loss(name)}
    whole = pair.one_shot(**settings)
    mine = whole.evaluate(data)
    assert not any(map(of_a_loss, mine))
    check_alike(mine, theirs)
    assert whole.state.log_history[-1].items() >= mine.items()
    parts = pair.one_shot(**settings, per_device_eval_batch_size=4).evaluate(data)
    check_alike(parts, {name: mine[name] for name in theirs if name != "eval_num_tokens"})
    return mine


def check_alike(mine: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Check that all numbers of `theirs` are in `mine`, except times and float32 rounding."""
    for name, value in without_times(theirs).items():
        if isinstance(value, float):
            value = pytest.approx(value, rel=1e-5, abs=1e-7, nan_ok=True)
        assert mine[name] == value, name


def refused_alike(pair: Both, said: str, **settings) -> None:
    """Check that stock and ours raise the same error, when built or in training."""
    errors = []
    for build in (pair.stock, pair.ours):
        with pytest.raises((ValueError, TypeError, NotImplementedError), match=said) as raised:
            build(**settings).train()
        errors.append(repr(raised.value))
    assert errors[0] == errors[1]


class Script:
    """Returns rollouts instead of generating them: as an engine, or as a `rollout_func`.

    A completion depends on its row and the number of the call alone. Seven in ten end in the
    end-of-sequence token, one in five has the full length `cap`. With a `tool`, two of its tokens
    are the tool's.
    """

    def __init__(self, eos: int, cap: int, tool: bool = False):
        self._eos, self._cap, self._tool = eos, cap, tool
        self._calls = 0

    def rollouts(self, count: int) -> dict[str, list]:
        drawn = zip(*map(self._completion, range(count)), strict=True)
        self._calls += 1
        return dict(zip(("completion_ids", "logprobs", "env_mask"), map(list, drawn), strict=True))

    def _completion(self, row: int) -> tuple[list, list, list]:
        row += int(os.environ.get("RANK", "0")) * 1000
        draw = random.Random(f"{self._calls}-{row}")
        length = self._cap if draw.random() < 0.2 else draw.randint(1, self._cap)
        ended = draw.random() < 0.7
        ids = [draw.randint(5, 200) for _ in range(length - ended)] + [self._eos] * ended
        logps = [-5.3 + draw.gauss(0, 0.3) for _ in range(length)]
        first = draw.randint(1, length)
        own = [int(not self._tool or t < first or t > first + 1) for t in range(length)]
        return ids, logps, own

    def rollout_func(self, prompts: list, trainer: Any) -> dict[str, list]:
        prompt_ids = [trainer.processing_class(text=prompt)["input_ids"] for prompt in prompts]
        return {"prompt_ids": prompt_ids, **self.rollouts(len(prompts))}

    # The methods that TRL calls on an engine

    def generate(self, prompts, images, num_generations, profiler):
        drawn = self.rollouts(len(prompts))
        logprobs = [[[logp] for logp in row] for row in drawn["logprobs"]]
        return prompts, drawn["completion_ids"], logprobs, None

    def sync_weights(self) -> None:
        pass


def unequal(prompts, trainer):
    """A `rollout_func` whose completions are of unequal length, the same in every call."""
    script = Script(trainer.processing_class.eos_token_id, trainer.max_completion_length)
    return script.rollout_func(prompts, trainer)


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


def sometimes(completions, **kwargs):
    """Leaves every fourth kind of text ungraded."""
    kinds = [sum(map(ord, text)) % 8 for text in completions]
    return [None if kind in (3, 6) else kind / 7 for kind in kinds]


def measure(model: str, kind: str, configuration: dict[str, Any]) -> dict[str, Any]:
    """Train `configuration` by `stock` TRL, by ours with rows `plain` as TRL pads and deals them,
    or as `shipped`; its weights and logged rows."""
    warnings.simplefilter("ignore")
    settings = {"lr_scheduler_type": "constant", "max_completion_length": 14, **configuration}
    questions, rewards, rollouts, lora, tool = (
        settings.pop(key) for key in ("questions", "rewards", "rollouts", "lora", "tool")
    )
    script = Script(tokenizer_of(model).eos_token_id, settings["max_completion_length"], tool)
    arguments = {
        "reward_funcs": [digits, sometimes][:rewards],
        "train_dataset": Dataset.from_dict({"prompt": UNEVEN[:questions]}),
        "eval_dataset": None,
        "rollout_func": script.rollout_func if rollouts == "function" else None,
        "peft_config": LoraConfig(r=4, target_modules=["q_proj", "v_proj"]) if lora else None,
    }
    engine = patch("trl.trainer.grpo_trainer.VLLMGeneration", lambda **_: script)
    with tempfile.TemporaryDirectory() as folder, engine:
        pair = Both(model, Path(folder), arguments)
        if kind == "stock":
            trainer = pair.stock(**settings)
        elif kind == "plain":  # without speed-ups, as each of them sums in another order than TRL
            trainer = pair.ours(reuse_forward=False, **settings)
        else:
            trainer = pair.ours(**SHIPPED, **settings)
        trainer.train()
    rows = [without_times(row) for row in logged(trainer)]
    learned = torch.cat([p.flatten() for p in trainer.model.parameters() if p.requires_grad])
    return {"weights": learned.tolist(), "rows": rows, "steps": trainer.state.global_step}


def measure_all(requests: list[tuple], answers: str) -> None:
    """Measure one after another, as one of two processes; the first writes what it found."""
    found = [measure(*request) for request in requests]
    if os.environ["RANK"] == "0":
        Path(answers).write_text(json.dumps(found))
