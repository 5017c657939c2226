"""Train with stock `GRPOTrainer` and with `AblationTrainer`, for tests that compare the two.

Run as a program, it reads one request per line and answers each with one line, so that two
processes (`Pair`) can train many configurations after one start.
"""

import json
import os
import random
import subprocess
import sys
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
from tests.support.two_processes import environment, free_port
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
    """Builds both kinds of trainer on the CPU, with rollout batches of two groups of four."""

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

    def each(self, **overrides) -> list[Any]:
        """Ours, then stock."""
        return [self.ours(**overrides), self.stock(**overrides)]

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
    assert len(logged(ours)) == len(logged(stock))
    for mine, theirs in zip(logged(ours), logged(stock), strict=True):
        assert set(theirs) <= set(mine)
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
        errors.append((type(raised.value), str(raised.value)))
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
    entropy = [
        *[{}] * 3,
        {"entropy_coef": 0.01},
        {
            "use_adaptive_entropy": True,
            "entropy_coef": 0.01,
            "entropy_target": one.choice([1.0, 4.0, 5.2]),
            "entropy_coef_delta": 0.005,
        },
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
    found = {
        name: one.detach().flatten().tolist()
        for name, one in trainer.model.named_parameters()
        if one.requires_grad
    }
    rows = [without_times(row) for row in logged(trainer)]
    return {"weights": found, "rows": rows, "steps": trainer.state.global_step}


class Pair:
    """Two processes that train together, one configuration after another."""

    def __init__(self, model: str):
        port = free_port()
        self._model = model
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.contract.alike"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=Path(__file__).resolve().parents[2],
                env={**os.environ, **environment(rank, port)},
            )
            for rank in (0, 1)
        ]

    def measure(self, kind: str, configuration: dict[str, Any]) -> dict[str, Any]:
        """The answer of the first process; an error of either process is raised here."""
        request = json.dumps([self._model, kind, configuration])
        for process in self._processes:
            process.stdin.write(request + "\n")
            process.stdin.flush()
        answers = [json.loads(process.stdout.readline()) for process in self._processes]
        for answer in answers:
            if "error" in answer:
                raise RuntimeError(answer["error"])
        return answers[0]

    def close(self) -> None:
        for process in self._processes:
            process.stdin.close()
            process.wait(timeout=60)


def serve() -> None:
    """Answer requests until the input ends; nothing else may be printed."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            answer = measure(*json.loads(line))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve()
