"""A training that was stopped at a random step and resumed is the training that was not.

Random settings from the legal space, real generation, weights compared to the bit and every logged
row but for its times. `TRL_ABLATE_CONFIGS=200` draws more of them, `TRL_ABLATE_FIRST=50` begins
with a later one; each is a function of its number.
"""

import gc
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from transformers import TrainerCallback

from trl_ablate.trainer import AblationTrainer

FIRST = int(os.environ.get("TRL_ABLATE_FIRST", "0"))
CONFIGS = range(FIRST, FIRST + int(os.environ.get("TRL_ABLATE_CONFIGS", "6")))
MORE = range(6, 46)
TIMES = (
    "time/",
    "memory/",
    "step_time",
    "train_runtime",
    "train_samples_per_second",
    "train_steps_per_second",
)


def reward(completions, **kwargs):
    """One that differs within every group."""
    return [sum(map(ord, text)) % 7 / 3 for text in completions]


class StopAt(TrainerCallback):
    """Saves and stops behind one optimizer step, wherever that falls."""

    def __init__(self, step: int):
        self._step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self._step:
            control.should_save = control.should_training_stop = True
        return control


def drawn(number: int) -> tuple[dict[str, Any], int, bool, int]:
    """Settings, questions, whether with an adapter, and the step to stop behind."""
    one = random.Random(number)
    batches = batch_settings(one)
    per_rollout = batches.pop("questions_per_rollout")
    questions = one.randint(per_rollout, 4 * per_rollout + 2)
    adapter = one.random() < 0.25
    settings = {
        **batches,
        "max_completion_length": one.choice([3, 8]),
        "logging_steps": one.randint(1, 4),
        "logging_first_step": one.random() < 0.3,
        "loss_type": one.choice(
            ["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo"]
        ),
        "importance_sampling_level": one.choice(["token", "sequence"]),
        "beta": one.choice([0.0, 0.1]),
        "scale_rewards": one.choice(["group", "batch", "none"]),
        "lr_scheduler_type": one.choice(["linear", "cosine", "constant"]),
        "optim": one.choice(["adamw_torch", "sgd"]),
        "shuffle_dataset": one.random() < 0.8,
        "mask_truncated_completions": one.random() < 0.3,
        "trim_microbatches": one.random() < 0.7,
        "regroup_by_length": one.random() < 0.7,
        "seed": number,
        **one.choice(
            [
                {},
                {"entropy_coef": 0.01},
                {
                    "use_adaptive_entropy": True,
                    "entropy_target": one.choice([1.0, 4.0, 5.2]),
                    "entropy_coef_delta": 0.005,
                },
                {"top_entropy_quantile": 0.5},
            ]
        ),
    }
    if settings["beta"] and not adapter and one.random() < 0.5:
        settings |= {"sync_ref_model": True, "ref_model_sync_steps": 2}
    if one.random() < 0.3:
        settings |= {"eval_strategy": "steps", "eval_steps": 1}
    if one.random() < 0.1:
        settings["dataloader_num_workers"] = 1
    return settings, questions, adapter, one.randint(1, settings["max_steps"] - 1)


def batch_settings(one: random.Random) -> dict[str, Any]:
    """Rows, accumulation, iterations and steps that divide as they have to."""
    while True:
        rows, generations = one.choice([2, 4]), one.choice([2, 4])
        per_generation, iterations = one.randint(1, 4), one.randint(1, 3)
        accumulated = one.randint(1, 6)
        microbatches = per_generation * iterations
        if (rows * per_generation) % generations == 0 and (
            microbatches % accumulated == 0 or accumulated % microbatches == 0
        ):
            break
    return {
        "per_device_train_batch_size": rows,
        "num_generations": generations,
        "steps_per_generation": per_generation,
        "num_iterations": iterations,
        "gradient_accumulation_steps": accumulated,
        "max_steps": one.randint(3, 12),
        "questions_per_rollout": rows * per_generation // generations,
    }


@pytest.fixture
def trained(tiny_model, make_trainer, tmp_path):
    """`trained(settings, questions, adapter, folder, ...)`: the trainer behind its training."""

    def train(settings, questions: int, adapter: bool, folder: str, stop=None, resume=None):
        from peft import LoraConfig

        prompts = [f"User: {a}+{a + 3}=?\nAssistant: <think>" for a in range(11, 11 + questions)]
        trainer: AblationTrainer = make_trainer(
            reward=reward,
            extras={"peft_config": LoraConfig(r=4, init_lora_weights=False)} if adapter else {},
            output_dir=str(tmp_path / folder),
            **settings,
        )
        trainer.train_dataset = Dataset.from_dict({"prompt": prompts})
        if stop:
            trainer.add_callback(StopAt(stop))
        trainer.train(resume_from_checkpoint=resume and str(resume))
        return trainer

    return train


def rows(trainer: AblationTrainer) -> list[str]:
    """What was logged, times aside; as text, in which a NaN equals a NaN."""
    return [
        json.dumps({k: v for k, v in row.items() if not k.startswith(TIMES)}, sort_keys=True)
        for row in trainer.state.log_history
    ]


def check(trained, number: int, tmp_path: Path) -> None:
    settings, questions, adapter, stop = drawn(number)
    whole = trained(settings, questions, adapter, "whole")
    assert trained(settings, questions, adapter, "run", stop).state.global_step == stop
    checkpoint = tmp_path / "run" / f"checkpoint-{stop}"
    resumed = trained(settings, questions, adapter, "run", resume=checkpoint)
    assert resumed.state.global_step == whole.state.global_step == settings["max_steps"]
    assert rows(resumed) == rows(whole)
    weights = dict(whole.model.named_parameters())
    assert all(value.equal(weights[name]) for name, value in resumed.model.named_parameters())
    del whole, resumed
    gc.collect()


@pytest.mark.parametrize("number", CONFIGS)
def test_stopped_and_resumed(trained, number, tmp_path):
    check(trained, number, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("number", MORE)
def test_more_of_them(trained, number, tmp_path):
    check(trained, number, tmp_path)
