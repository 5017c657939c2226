"""A training resumed from a checkpoint of a random step ends as the one that wrote it.

Random valid settings and real generation; weights must be bit-equal, and all logged rows equal
except times. `TRL_ABLATE_CONFIGS=200` tests 200 cases; the number of a case determines
its settings.
"""

import gc
import json
import os
import random
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, TrainerCallback

from tests.contract.alike import draw_settings
from tests.support.rows import without_times
from trl_ablate.config import SURROGATE_LOSS_TYPES
from trl_ablate.trainer.ablation import AblationTrainer
from trl_ablate.trainer.carried import counts_the_steps_of_this_call
from trl_ablate.training.callbacks import Preemption

CONFIGS = range(int(os.environ.get("TRL_ABLATE_CONFIGS", "24")))


def reward(completions, **kwargs):
    """A reward that differs within every group."""
    return [sum(map(ord, text)) % 7 / 3 for text in completions]


class SaveAt(TrainerCallback):
    """Saves after a given optimizer step."""

    def __init__(self, step: int):
        self._step = step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_save = state.global_step == self._step


@dataclass(frozen=True)
class Case:
    """A training, and the step after which it saves."""

    settings: dict[str, Any]
    questions: int
    save: int
    adapter: str = "none"
    """Or a `new` one, or the `same` that was trained before: TRL keeps a copy as the reference."""
    stream: bool = False
    """Whether the questions come as a stream."""


def drawn(number: int) -> Case:
    """The case with this number."""
    one = random.Random(number)
    settings = {**draw_settings(one), **batch_settings(one)}
    per_rollout = settings.pop("questions_per_rollout")
    adapter = one.choice(["none", "none", "none", "none", "new", "same"])
    surrogates = [None, "probability"]
    if settings["off_policy_mask_threshold"] is None:
        surrogates.append("one_sided")
    samplers = [
        *[{}] * 2,
        {"rollout_staleness": one.choice([1, 3])},
        {"sampler_dtype": one.choice(["bfloat16", "int8"])},
        {"top_p": 0.8, "correct_truncation": True},
    ]
    settings |= {
        "seed": number,
        "max_completion_length": one.choice([3, 8]),
        "logging_first_step": one.random() < 0.3,
        "lr_scheduler_type": one.choice(["linear", "cosine", "constant"]),
        "trim_microbatches": one.random() < 0.7,
        "regroup_by_length": one.random() < 0.7,
        "cast_lm_head_to_fp32": adapter == "none" and one.random() < 0.3,
        "hard_group_exponent": one.choice([0.0, 0.5]),
        "sampler_gap_limit": one.choice([None, 0.01]),
        "covariance_kl": one.choice([0.0, 0.5]),
        "baseline": one.choice(["group_mean", "group_token_mean", "best_of_others"]),
        "dataloader_num_workers": int(one.random() < 0.1),
        **one.choice(samplers),
    }
    if settings["loss_type"] in SURROGATE_LOSS_TYPES:
        settings["surrogate"] = one.choice(surrogates)
    if settings["beta"] and adapter == "none" and one.random() < 0.5:
        settings |= {"sync_ref_model": True, "ref_model_sync_steps": 2}
    if one.random() < 0.3:
        settings |= {"eval_strategy": "steps", "eval_steps": 1}
    asked = one.randint(per_rollout, 4 * per_rollout + 2)
    return Case(settings, asked, one.randint(1, settings["max_steps"] - 1), adapter)


def batch_settings(one: random.Random) -> dict[str, Any]:
    """Numbers of rows, accumulation, iterations and steps that satisfy TRL's divisibility rules."""
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


@pytest.fixture(scope="module")
def trained_adapter(tiny_model, tmp_path_factory) -> Path:
    from peft import LoraConfig, get_peft_model

    folder = tmp_path_factory.mktemp("adapter")
    torch.manual_seed(1)
    base = AutoModelForCausalLM.from_pretrained(tiny_model)
    get_peft_model(base, LoraConfig(r=4, init_lora_weights=False)).save_pretrained(folder)
    return folder


@pytest.fixture
def train(make_trainer, trained_adapter, tmp_path):
    """`train(case)`: the trainer after its training; `resumed=True`: from its checkpoint."""
    from peft import LoraConfig, PeftModel

    def train(case: Case, resumed: bool = False):
        def build(model, train_dataset, **arguments):
            if case.adapter == "same":
                base = AutoModelForCausalLM.from_pretrained(model)
                model = PeftModel.from_pretrained(base, trained_adapter, is_trainable=True)
            asked = [f"User: {a}+{a}=?\nAssistant: <think>" for a in range(case.questions)]
            dataset: Any = Dataset.from_dict({"prompt": asked})
            dataset = dataset.to_iterable_dataset() if case.stream else dataset
            return AblationTrainer(model, train_dataset=dataset, **arguments)

        new = {"peft_config": LoraConfig(r=4)} if case.adapter == "new" else {}
        settings = {"max_completion_length": 4, **case.settings}
        trainer = make_trainer(build, reward=reward, extras=new, **settings)
        if not resumed:
            trainer.add_callback(SaveAt(case.save))
        checkpoint = str(tmp_path / "run" / f"checkpoint-{case.save}")
        trainer.train(resume_from_checkpoint=checkpoint if resumed else None)
        return trainer

    return train


def rows(trainer: AblationTrainer) -> list[str]:
    """The logged rows without times, as text, so that NaN equals NaN."""
    logged = [without_times(row) for row in trainer.state.log_history]
    if counts_the_steps_of_this_call(trainer):
        assert logged.pop().keys() >= {"train_loss"}  # `check` looks at it
    return [json.dumps(row, sort_keys=True) for row in logged]


@pytest.fixture
def check(train):
    """`check(case)`: the resumed training logs the same rows and ends with the same weights."""

    def check(case: Case) -> None:
        whole, resumed = train(case), train(case, resumed=True)
        assert resumed.state.global_step == whole.state.global_step == whole.state.max_steps
        assert rows(resumed) == rows(whole)
        if counts_the_steps_of_this_call(resumed) and resumed.args.logging_steps == 1:
            losses = [row["loss"] for row in whole.state.log_history if "loss" in row]
            mean = sum(losses[case.save :]) / len(losses[case.save :])
            found = resumed.state.log_history[-1]["train_loss"]
            assert found == pytest.approx(mean, rel=1e-4, abs=1e-9)
        assert repr(resumed.latest_rollouts()) == repr(whole.latest_rollouts())
        weights = dict(whole.model.named_parameters())
        assert all(value.equal(weights[name]) for name, value in resumed.model.named_parameters())
        del whole, resumed
        gc.collect()

    return check


OFF_POLICY = {"steps_per_generation": 2, "num_iterations": 2, "gradient_accumulation_steps": 1}
RESAMPLED = {"group_filter": "resample", "max_resample_rounds": 1, "reward_noise": 0.5}
STALE = {"rollout_staleness": 1, "sampler_dtype": "int8"}
NAMED = {
    "in the third epoch": Case({"max_steps": 9}, questions=6, save=7),
    "stale rollouts, between two of their microbatches": Case(
        {"max_steps": 9, **OFF_POLICY, **STALE}, questions=8, save=5
    ),
    "resampled groups": Case({"max_steps": 9, **OFF_POLICY, **RESAMPLED}, questions=12, save=6),
    "three epochs": Case({"max_steps": -1, "num_train_epochs": 3}, questions=7, save=5),
    "a stream, in its first pass": Case({"max_steps": 5}, questions=12, save=3, stream=True),
}
"""What the random cases do not draw, or rarely."""


@pytest.mark.sample(1)
@pytest.mark.parametrize("case", NAMED.values(), ids=NAMED)
def test_where_stock_goes_on_differently(check, case):
    check(case)


@pytest.mark.sample(2)
@pytest.mark.parametrize("number", CONFIGS)
def test_stopped_and_resumed(check, number):
    check(drawn(number))


class StopAt(TrainerCallback):
    """SIGTERM in the course of a given optimizer step."""

    def __init__(self, step: int, termination: Any):
        self._step, self._termination = step, termination

    def on_step_begin(self, args, state, control, **kwargs):
        self._termination.came = state.global_step == self._step - 1


@pytest.mark.parametrize("stopped", [None, 2, 3])
@pytest.mark.parametrize("save", ["steps", "epoch"])
def test_the_row_and_the_evaluation_of_an_epoch_are_written_once(make_trainer, stopped, save):
    """A checkpoint at an epoch's end has them; one in its middle leaves them to the resumed run."""
    settings = dict(
        reward=reward, max_steps=-1, num_train_epochs=2, eval_strategy="epoch", save_steps=3,
        logging_strategy="epoch", save_strategy=save, max_completion_length=4,
    )  # fmt: skip

    def built():
        trainer = make_trainer(**settings)
        trainer.train_dataset = trainer.train_dataset.select(range(6))  # two a step
        return trainer

    def logged(trainer) -> list[str]:
        return [
            row for row in rows(trainer) if "train_runtime" not in row and "train_loss" not in row
        ]

    whole = built()
    whole.train()
    trainer = built()
    if stopped:
        termination: Any = SimpleNamespace(came=False, listen=lambda: None)
        trainer.add_callback(StopAt(stopped, termination))
        trainer.add_callback(Preemption(termination))
        trainer.train()
        assert trainer.state.global_step == stopped
    trainer = built()
    trainer.train(resume_from_checkpoint=f"{trainer.args.output_dir}/checkpoint-{stopped or 3}")
    assert logged(trainer) == logged(whole) and len(logged(whole)) == 4


@pytest.mark.parametrize("stream", [False, True])
def test_what_a_resumed_training_warns_of(train, caplog, monkeypatch, stream):
    """Of a stream in its second pass, and of nothing else, such as tied weights."""
    warned = []
    monkeypatch.setattr("transformers.trainer.logger.warning", warned.append)
    case = Case({"max_steps": 4}, questions=4, save=3, stream=stream)
    assert train(case).model.all_tied_weights_keys
    train(case, resumed=True)
    assert ("resuming is exact only in the first epoch" in caplog.text) is stream
    assert not warned
