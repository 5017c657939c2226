"""What users depend on: the import paths of public names, and the content of their checkpoints."""

import inspect
from importlib import import_module
from pathlib import Path

import pytest
import torch

import trl_ablate
from trl_ablate import AblationConfig

DATA = Path(__file__).resolve().parents[1] / "data"

PUBLIC = {
    "trl_ablate": "AblationConfig AblationTrainer ConfigurationError GuardCallback TaskArguments "
                  "load_recipe",
    "trl_ablate.advantages": "compute_advantages weighted_reward",
    "trl_ablate.config": "AblationConfig",
    "trl_ablate.errors": "ConfigurationError",
    "trl_ablate.hub": "push_run",
    "trl_ablate.losses": "importance_ratio loss_denominator",
    "trl_ablate.miniature": "build problems tokenizer",
    "trl_ablate.rewards": "MathGrader build_rewards score",
    "trl_ablate.task": "TaskArguments",
    "trl_ablate.trainer": "AblationTrainer",
}  # fmt: skip


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_keep_their_path_and_are_described(module):
    names = PUBLIC[module].split()
    assert all(inspect.getdoc(getattr(import_module(module), name)) for name in names)
    assert module != "trl_ablate" or names == trl_ablate.__all__


def test_settings_of_a_checkpoint_of_0_1_can_be_read():
    """`training_args.bin` names its class by module: `torch.save(AblationConfig(...))`, made when
    the modules still lay flat, with the switches below."""
    config = torch.load(DATA / "training_args.bin", weights_only=False)
    assert type(config) is AblationConfig
    assert config.output_dir == "runs/std_dev_off-seed0"
    assert (config.scale_rewards, config.baseline) == ("none", "leave_one_out")
    assert (config.length_norm, config.loss_type) == ("constant", "dr_grpo")
    assert (config.stop, config.grpo_steps, config.max_steps) == (["</answer>"], 8, 16)
