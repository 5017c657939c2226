"""Logged metrics of the loss: independent of regrouping; which tokens count as clipped."""

import random

import pytest
import torch
from trl import GRPOConfig, GRPOTrainer

AS_DRAWN = {"trim_microbatches": False, "regroup_by_length": False}
OFF_POLICY = {"num_iterations": 3, "learning_rate": 1.0, "optim": "sgd", "max_steps": 6}
LOSS_METRICS = ("kl", "entropy", "clip_ratio/", "cispo_clip_ratio", "vespo/")


def rollouts_of_unequal_length(prompts, trainer):
    """One to twelve tokens per completion, the same for every trainer."""
    rows = [random.Random(f"{i}-{prompt}") for i, prompt in enumerate(prompts)]
    ids = [[row.randint(5, 200) for _ in range(row.choice([1, 2, 3, 12]))] for row in rows]
    return {
        "prompt_ids": [trainer.processing_class(text=prompt)["input_ids"] for prompt in prompts],
        "completion_ids": ids,
        "logprobs": [[-5.0] * len(row) for row in ids],
    }


def training(make_trainer, *stock, **settings):
    """The logged rows of a training."""
    trainer = make_trainer(
        *stock,
        extras={"rollout_func": rollouts_of_unequal_length},
        **{**OFF_POLICY, **settings},
    )
    trainer.train()
    return [row for row in trainer.state.log_history if "loss" in row]


@pytest.mark.sample(3)
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
    trainer = make_trainer(
        extras={"rollout_func": rollouts_of_unequal_length}, epsilon=0.01, **OFF_POLICY
    )
    trainer.epsilon_low = trainer.epsilon_high = 1e6
    trainer.train()
    logged = [row for row in trainer.state.log_history if "loss" in row]
    assert all(row["clip_fraction"] == row["clip_ratio/region_mean"] == 0.0 for row in logged)


def test_the_clip_fraction_of_cispo_is_trls(make_trainer):
    """With one microbatch per step, TRL's mean over microbatches is the mean over tokens."""
    rows = training(
        make_trainer, loss_type="cispo", epsilon_high=1.002, gradient_accumulation_steps=1,
        per_device_train_batch_size=8,
    )  # fmt: skip
    assert max(row["cispo_clip_ratio"] for row in rows) > 0.1
    for row in rows:
        assert row["clip_fraction"] == pytest.approx(row["cispo_clip_ratio"], abs=1e-7)


@pytest.mark.parametrize("loss_type", ["sapo", "vespo"])
def test_soft_losses_change_no_gradient_on_policy_and_most_off_policy(make_trainer, loss_type):
    on_policy, *later = training(
        make_trainer, loss_type=loss_type, learning_rate=10.0, max_grad_norm=1e9, epsilon=1e6
    )
    assert on_policy["clip_fraction"] == 0.0
    assert later[0]["clip_fraction"] > 0.1


def test_a_cap_on_the_ratio_counts_as_clipping(make_trainer):
    """Far outside of the clip range, only `delta` changes the gradient of a negative advantage."""
    settings = {"loss_type": "grpo", "epsilon": 1e6, "learning_rate": 10.0, "max_grad_norm": 1e9}
    free = training(make_trainer, **settings)
    capped = training(make_trainer, **settings, delta=1.01)
    assert all(row["clip_fraction"] == 0.0 for row in free)
    assert 0.05 < capped[1]["clip_fraction"] < 0.6


def moved(trainer):
    before = torch.cat([p.detach().flatten().clone() for p in trainer.model.parameters()])
    trainer.train()
    after = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
    return after - before


@pytest.mark.parametrize(("rollout", "step"), [(4, 3), (3, 2), (4, 6), (2, 4)])
def test_regrouping_keeps_the_gradient_where_rollouts_and_steps_do_not_divide(
    make_trainer, rollout, step
):
    settings = {
        "steps_per_generation": rollout,
        "gradient_accumulation_steps": step,
        "num_iterations": 3,
        "optim": "sgd",
        "learning_rate": 1.0,
        "loss_type": "grpo",
        "max_steps": 3,
        "extras": {"rollout_func": rollouts_of_unequal_length},
    }
    plain = moved(make_trainer(**settings, **AS_DRAWN))
    shipped = moved(make_trainer(**settings))
    assert plain.abs().max() > 1e-3
    assert (shipped - plain).abs().max() < 2e-6


def test_what_counts_in_whole_steps_is_refused_where_there_are_none(make_trainer):
    from trl_ablate import ConfigurationError

    uneven = {"steps_per_generation": 4, "gradient_accumulation_steps": 3}
    with pytest.raises(ConfigurationError, match="grpo_steps 2 needs whole optimizer steps"):
        make_trainer(**uneven, grpo_steps=2, max_steps=-1)
    with pytest.raises(ConfigurationError, match="grpo_steps 3 does not fill its last"):
        make_trainer(
            steps_per_generation=2, gradient_accumulation_steps=4, grpo_steps=3, max_steps=-1
        )
    taken = make_trainer(
        steps_per_generation=2, gradient_accumulation_steps=4, grpo_steps=4, max_steps=-1
    )
    assert taken.args.max_steps == 2


def widths_of_a_training(make_trainer, **settings):
    """The widths of the model's inputs during training."""
    widths: list[int] = []
    trainer = make_trainer(
        extras={"rollout_func": rollouts_of_unequal_length}, max_completion_length=12, **settings
    )

    def note(module, args, kwargs):
        widths.append(kwargs["input_ids"].shape[1])

    trainer.model.register_forward_pre_hook(note, with_kwargs=True)
    trainer.train()
    return widths


def test_trimmed_widths_are_multiples_where_padding_is(make_trainer):
    widths = widths_of_a_training(make_trainer, pad_to_multiple_of=8)
    assert all(width % 8 == 0 for width in widths)
    assert len(set(widths_of_a_training(make_trainer))) > len(set(widths))


def test_compiled_models_see_few_widths(make_trainer):
    config = make_trainer(torch_compile=False).args
    assert config.trimmed_to_multiple_of == 1
    config.torch_compile = True
    assert config.trimmed_to_multiple_of == 64
    config.pad_to_multiple_of = 16
    assert config.trimmed_to_multiple_of == 16


def test_a_compiled_model_trains_as_one_that_is_not(make_trainer):
    """Twice in a row, so that what generation changes in the model is undone in between."""
    settings = {"max_steps": 2, "stop": ["9"], "use_cpu": True}
    plain = make_trainer(**settings)
    loss = plain.train().training_loss
    compiled = make_trainer(**settings, torch_compile=True, torch_compile_backend="eager")
    assert compiled.train().training_loss == pytest.approx(loss, abs=1e-6)
    weights = dict(plain.model.named_parameters())
    assert set(weights) == set(dict(compiled.model.named_parameters()))
    for name, value in compiled.model.named_parameters():
        torch.testing.assert_close(value, weights[name], rtol=1e-4, atol=1e-6)
    assert "generate" not in vars(compiled.model)


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
