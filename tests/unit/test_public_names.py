"""What users depend on: the import paths of public names, and the content of their checkpoints."""

import importlib
import inspect
from pathlib import Path

import pytest
import torch

import trl_ablate
from trl_ablate import AblationConfig

DATA = Path(__file__).resolve().parents[1] / "data"

PUBLIC = {
    "trl_ablate": (
        *("AblationConfig", "AblationTrainer", "ConfigurationError", "TaskArguments"),
        *("GuardCallback", "load_recipe"),
    ),
    "trl_ablate.advantages": ("compute_advantages", "weighted_reward"),
    "trl_ablate.config": ("AblationConfig",),
    "trl_ablate.errors": ("ConfigurationError",),
    "trl_ablate.hub": ("push_run",),
    "trl_ablate.losses": ("importance_ratio", "loss_denominator"),
    "trl_ablate.miniature": ("build", "problems", "tokenizer"),
    "trl_ablate.rewards": ("MathGrader", "build_rewards", "score"),
    "trl_ablate.task": ("TaskArguments",),
    "trl_ablate.trainer": ("AblationTrainer",),
}


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, names in PUBLIC.items() for name in names]
)
def test_a_public_name_keeps_its_path_and_is_described(module, name):
    found = getattr(importlib.import_module(module), name)
    assert inspect.getdoc(found)
    if module == "trl_ablate":  # the name is that of its own module, not of a copy
        assert {*trl_ablate.__all__} == {*PUBLIC[module]}
        assert found is getattr(importlib.import_module(found.__module__), name)


def test_settings_of_a_checkpoint_of_0_1_can_be_read():
    """`training_args.bin` names its class by module: `torch.save(AblationConfig(...))`, made when
    the modules still lay flat, with the switches below."""
    config = torch.load(DATA / "training_args.bin", weights_only=False)
    assert type(config) is AblationConfig
    assert config.output_dir == "runs/std_dev_off-seed0"
    assert (config.scale_rewards, config.baseline) == ("none", "leave_one_out")
    assert (config.length_norm, config.loss_type) == ("constant", "dr_grpo")
    assert (config.stop, config.grpo_steps, config.max_steps) == (["</answer>"], 8, 16)
    assert config.optimizer_steps_per_rollout == 2
