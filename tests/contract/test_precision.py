"""Weights and optimizer states in few bits learn; the precision of the smallest GPU's profile loses
no small updates."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import FullyShardedDataParallelPlugin
from peft import LoraConfig
from transformers import BitsAndBytesConfig
from trl import GRPOTrainer

from tests.support.tiny_models import save_tiny_qwen2
from trl_ablate import AblationTrainer, load_recipe
from trl_ablate.recipe.agreement import TYPICAL_WEIGHT, smallest_learning_rate
from trl_ablate.recipe.places import SHIPPED


@pytest.fixture
def tiny_model(tmp_path) -> str:
    """For `make_trainer`, in place of the one that all tests share: weights as large as a language
    model's, in tensors that 8-bit Adam takes (4096 elements and more)."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_key_value_heads": 2}
    return save_tiny_qwen2(tmp_path / "wide", **sizes, initializer_range=TYPICAL_WEIGHT)


@pytest.mark.parametrize("of_profile", [True, False], ids=["of the profile", "bfloat16"])
def test_one_small_step_moves_most_weights_of_the_profile_and_few_in_bfloat16(
    make_trainer, of_profile
):
    """Of matrices, with the optimizer in eight bits that the profile of the smallest GPU has."""
    profile = load_recipe(SHIPPED / "grpo.yaml", "rtx4090")
    dtype = profile.model.dtype if of_profile else "bfloat16"
    precision = {"bf16": profile.config.bf16, "optim": profile.config.optim}
    trainer = make_trainer(
        model_init_kwargs={"dtype": dtype}, **precision, learning_rate=1e-6, max_steps=1
    )
    matrices = [one for one in trainer.model.parameters() if one.dim() == 2]
    before = [one.detach().clone() for one in matrices]
    trainer.train()
    assert {one.dtype for one in matrices} == {getattr(torch, dtype)}
    states = [trainer.optimizer.state[one]["state1"].dtype for one in matrices]
    assert torch.uint8 in states
    moved = sum((a != b).sum().item() for a, b in zip(matrices, before, strict=True))
    share = moved / sum(one.numel() for one in matrices)
    assert share > 0.9 if of_profile else share < 0.1


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_rule_separates_most_weights_from_few(dtype):
    """For normally distributed weights of typical size, an update of a quarter of the limit changes
    fewer than half of them, and an update of four times the limit more than half."""
    drawn = TYPICAL_WEIGHT * torch.randn(50_000, generator=torch.Generator().manual_seed(0))
    weights, limit = drawn.to(getattr(torch, dtype)), smallest_learning_rate(dtype)
    few, most = (
        ((weights.float() + rate).to(weights.dtype) != weights).float().mean()
        for rate in (limit / 4, limit * 4)
    )
    assert few < 0.5 < most
    assert smallest_learning_rate("float32") == 0


def test_an_adapter_over_4_bit_weights_learns(make_trainer):
    quantised = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    adapter = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])
    trainer = make_trainer(extras={"quantization_config": quantised, "peft_config": adapter})
    assert any(one.dtype == torch.uint8 for one in trainer.model.parameters())
    learning = [one for one in trainer.model.parameters() if one.requires_grad]
    before = [one.detach().clone() for one in learning]
    trainer.train()
    assert any(not torch.equal(a, b) for a, b in zip(learning, before, strict=True))


def test_fsdp_2_rounds_no_log_probabilities(monkeypatch):
    """They are what the forward pass returns, and a ratio of 1.0001 would be 1 in bfloat16."""
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
    plugin.set_mixed_precision("bf16")
    assert plugin.mixed_precision_policy.output_dtype is torch.bfloat16
    trainer: Any = AblationTrainer.__new__(AblationTrainer)
    trainer.is_fsdp_enabled = True
    trainer.accelerator = SimpleNamespace(state=SimpleNamespace(fsdp_plugin=plugin))
    monkeypatch.setattr(GRPOTrainer, "create_accelerator_and_postprocess", lambda self: None)
    trainer.create_accelerator_and_postprocess()
    policy = plugin.mixed_precision_policy
    assert (policy.param_dtype, policy.output_dtype) == (torch.bfloat16, None)
