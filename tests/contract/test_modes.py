"""Memory savings that work on a CPU: 8-bit AdamW, gradient checkpointing, 4-bit weights."""

import torch
from peft import LoraConfig
from transformers import BitsAndBytesConfig


def weights(trainer):
    return torch.cat([p.detach().flatten().float() for p in trainer.model.parameters()])


def test_8_bit_adamw_learns(make_trainer):
    trainer = make_trainer(optim="adamw_bnb_8bit")
    before = weights(trainer).clone()
    trainer.train()
    assert not torch.equal(weights(trainer), before)
    assert type(trainer.optimizer.optimizer).__module__.startswith("bitsandbytes")
    assert trainer.optimizer.optimizer.args.optim_bits == 8


def test_gradient_checkpointing_has_the_same_gradient(make_trainer):
    settings = {"optim": "sgd", "learning_rate": 1.0, "max_steps": 1}
    plain = make_trainer(**settings)
    before = weights(plain).clone()
    plain.train()
    saving = make_trainer(**settings, gradient_checkpointing=True)
    saving.train()
    assert saving.model.is_gradient_checkpointing
    moved = (weights(plain) - before).abs().max()
    assert moved > 1e-3
    assert (weights(saving) - weights(plain)).abs().max() < 1e-6 * max(1.0, moved)


def test_an_adapter_over_4_bit_weights_learns(make_trainer):
    quantised = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    adapter = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])
    trainer = make_trainer(extras={"quantization_config": quantised, "peft_config": adapter})
    frozen = [p for p in trainer.model.parameters() if p.dtype == torch.uint8]
    assert frozen
    before = [p.detach().clone() for p in trainer.model.parameters() if p.requires_grad]
    trainer.train()
    after = [p.detach() for p in trainer.model.parameters() if p.requires_grad]
    assert any(not torch.equal(a, b) for a, b in zip(after, before, strict=True))
