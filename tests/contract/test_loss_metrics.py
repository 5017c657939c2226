"""Logged metrics of the loss: independent of regrouping; which tokens count as clipped."""

from unittest.mock import Mock

import pytest
import torch
from trl import GRPOConfig, GRPOTrainer

from tests.contract.alike import unequal
from tests.contract.formulas import amid_a_step, nearby
from trl_ablate.trainer.batching import DRAWN

OFF_POLICY = {"num_iterations": 3, "learning_rate": 1.0, "optim": "sgd", "max_steps": 6}
LOSS_METRICS = ("kl", "entropy", "clip_ratio/", "cispo_clip_ratio", "vespo/")


def training(make_trainer, *stock, **settings):
    """The logged rows of a training."""
    trainer = make_trainer(
        *stock,
        extras={"rollout_func": unequal},
        **{**OFF_POLICY, **settings},
    )
    trainer.train()
    return [row for row in trainer.state.log_history if "loss" in row]


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "settings",
    [
        {"loss_type": "grpo", "beta": 0.2, "epsilon": 0.01},
        {"loss_type": "dapo", "beta": 0.2, "use_bias_correction_kl": True, "epsilon": 0.01},
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.01},
        {"loss_type": "dr_grpo", "delta": 1.01, "epsilon": 0.005},
        {"loss_type": "cispo", "epsilon_high": 1.01},
        {"loss_type": "vespo"},
        {"loss_type": "sapo"},
    ],
    ids=lambda settings: settings["loss_type"],
)
def test_regrouping_changes_no_metric_of_the_loss(make_trainer, settings):
    settings |= {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    stock = training(make_trainer, GRPOTrainer, GRPOConfig, **settings)
    ours = training(make_trainer, **settings)
    names = [name for name in stock[0] if name.startswith(LOSS_METRICS)]
    assert "entropy" in names
    for row, expected in zip(ours, stock, strict=True):
        assert row.get("padding/fraction", 0.0) <= 0.9 * row.get("padding/fraction_drawn", 0.0)
        for name in names:
            assert row[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-6), name
    clipped = [row.get("clip_ratio/region_mean", 1.0) for row in stock]
    assert max(clipped) > 0.05


def test_a_clip_range_that_is_changed_on_the_trainer_is_the_one_logged(make_trainer):
    """As a callback may do in the middle of a training; TRL's loss reads it there."""
    settings = {"epsilon": 0.01, "beta": 0.2, **OFF_POLICY}
    trainer = make_trainer(extras={"rollout_func": unequal}, **settings)
    trainer.epsilon_low = trainer.epsilon_high = 1e6
    trainer.beta = 0.0
    trainer.train()
    logged = [row for row in trainer.state.log_history if "loss" in row]
    assert not [name for row in logged for name in row if name == "kl"]
    assert all(row["clip_fraction"] == row["clip_ratio/region_mean"] == 0.0 for row in logged)


@pytest.mark.parametrize(
    "settings",
    [{"loss_type": "grpo"}, {"loss_type": "cispo", "epsilon_high": 1.01}, {"loss_type": "vespo"}],
    ids=str,
)
def test_regrouping_changes_no_metric_of_rejected_completions(make_trainer, batch, settings):
    found = []
    for drawn in ({}, {DRAWN: torch.zeros(4, dtype=torch.long)}):
        trainer = make_trainer(sampler_dtype="int8", sampler_gap_limit=0.1, epsilon=0.01,
                               vllm_importance_sampling_correction=False, **settings)  # fmt: skip
        amid_a_step(trainer)
        old, sampling = (nearby(trainer.model, batch, 0.3, seed) for seed in (7, 8))
        inputs = {"old_per_token_logps": old, "sampling_per_token_logps": sampling}
        loss_pass = Mock(wraps=trainer.mismatch.record)
        trainer.mismatch.record = loss_pass
        trainer._compute_loss(trainer.model, {**batch, **inputs, **drawn})
        kept = loss_pass.call_args.args[0].kept_N1
        found.append(dict(trainer._metrics["train"]))
    assert 0 < kept.sum() < 4
    assert found[0] == {name: pytest.approx(value, rel=1e-5) for name, value in found[1].items()}


def test_the_clip_fraction_of_cispo_is_trls(make_trainer):
    """With one microbatch per step, TRL's mean over microbatches is the mean over tokens."""
    rows = training(
        make_trainer, loss_type="cispo", epsilon_high=1.002, gradient_accumulation_steps=1,
        per_device_train_batch_size=8,
    )  # fmt: skip
    assert max(row["cispo_clip_ratio"] for row in rows) > 0.1
    for row in rows:
        assert row["clip_fraction"] == pytest.approx(row["cispo_clip_ratio"], abs=1e-7)


@pytest.mark.parametrize(
    ("settings", "least", "most"),
    [
        ({"loss_type": "sapo"}, 0.1, 1),
        ({"loss_type": "vespo"}, 0.1, 1),
        # far outside of the clip range, only delta changes the gradient of a negative advantage
        ({"loss_type": "grpo"}, 0, 0),
        ({"loss_type": "grpo", "delta": 1.01}, 0.05, 0.6),
    ],
    ids=str,
)
def test_what_counts_as_clipped_off_policy(make_trainer, settings, least, most):
    """And nothing on-policy."""
    settings |= {"learning_rate": 10.0, "max_grad_norm": 1e9, "epsilon": 1e6}
    on_policy, off_policy, *_ = training(make_trainer, **settings)
    assert on_policy["clip_fraction"] == 0.0
    assert least <= off_policy["clip_fraction"] <= most


def test_sums_stay_off_devices_without_float64(make_trainer, monkeypatch):
    """As on Apple's GPUs: the sums are never moved to the device."""
    from accelerate import Accelerator

    trainer = make_trainer(max_steps=1)
    trainer.train()
    trainer.ratio_sums.add("train", torch.tensor([3.0, 1.0, 4.0]))
    monkeypatch.setattr(Accelerator, "device", torch.device("mps"))
    trainer.log({})
    logged = trainer.state.log_history[-1]
    assert (logged["mean_ratio"], logged["clip_fraction"]) == (0.75, 0.25)
