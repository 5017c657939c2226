"""Many kinds of models and adapters, with ours and with stock, as in TRL's own tests."""

import json
import shutil

import pytest
import torch
from datasets import Dataset
from peft import (
    LoraConfig,
    PeftModel,
    PrefixTuningConfig,
    PromptTuningConfig,
    TaskType,
    get_peft_model,
)
from transformers import AutoModelForCausalLM

from tests.contract.alike import refused_alike, tokenizer_of, train_both_ways
from tests.contract.test_architectures import saved, small_model
from tests.support.differential import PROMPTS, Script

SLOW = pytest.mark.slow


def unequal(prompts, trainer):
    """Completions of unequal length, which need padding."""
    script = Script(trainer.processing_class.eos_token_id, 8, tool=False)
    return script.rollout_func(prompts, trainer)


@pytest.fixture
def unequally(both):
    """`both`, with prompts and completions of unequal length."""
    data = Dataset.from_dict({"prompt": PROMPTS[:16]})
    return lambda **arguments: both(rollout_func=unequal, train_dataset=data, **arguments)


@pytest.mark.parametrize(
    ("model_type", "settings"),
    [
        pytest.param("cohere2", {}, marks=SLOW),
        pytest.param("glm4_moe", {}, marks=SLOW),
        pytest.param("gpt_oss", {}, marks=SLOW),
        pytest.param("qwen3_moe", {}, marks=SLOW),
        ("qwen3_moe", {"router_aux_loss_coef": 0.1, "beta": 0.1}),
        pytest.param("gemma2", {"beta": 0.1}, marks=SLOW),
        pytest.param("gemma3_text", {}, marks=SLOW),
        pytest.param("llama", {}, marks=SLOW),
        pytest.param("gpt2", {"num_iterations": 2}, marks=SLOW),
    ],
    ids=lambda value: value if isinstance(value, str) else ",".join(value),
)
def test_architectures(unequally, tiny_model, tmp_path, model_type, settings):
    folder = saved(small_model(model_type), tiny_model, tmp_path / "model")
    train_both_ways(unequally(model=folder), **settings, learning_rate=0.05)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("peft_config", "settings"),
    [
        (LoraConfig(r=4, target_modules=["q_proj", "v_proj"]), {"num_iterations": 2}),
        (LoraConfig(r=4, target_modules=["q_proj", "v_proj"]), {"beta": 0.1}),
        (LoraConfig(r=4, target_modules=["q_proj", "v_proj"], use_dora=True), {}),
        (LoraConfig(target_modules=["q_proj"], modules_to_save=["embed_tokens"]),
         {"gradient_checkpointing": True}),
        (LoraConfig(target_modules=["q_proj"], modules_to_save=["lm_head"]), {}),
        (LoraConfig(target_modules="all-linear"), {"gradient_checkpointing": True}),
    ],
    ids=["off-policy", "reference", "dora", "embeddings", "head", "all-linear"],
)  # fmt: skip
def test_adapters(unequally, peft_config, settings):
    train_both_ways(unequally(peft_config=peft_config), **settings)


def test_an_adapter_that_was_trained_before(unequally, tiny_model, tmp_path):
    torch.manual_seed(2)
    base = AutoModelForCausalLM.from_pretrained(tiny_model)
    get_peft_model(base, LoraConfig(r=4)).save_pretrained(tmp_path / "adapter")

    def load():
        model = AutoModelForCausalLM.from_pretrained(tiny_model)
        return PeftModel.from_pretrained(model, str(tmp_path / "adapter"), is_trainable=True)

    train_both_ways(unequally(load=load), beta=0.1)


@pytest.mark.parametrize(
    "peft_config",
    [
        PromptTuningConfig(task_type=TaskType.CAUSAL_LM, num_virtual_tokens=8),
        PrefixTuningConfig(task_type=TaskType.CAUSAL_LM, num_virtual_tokens=4),
    ],
    ids=["prompt", "prefix"],
)
def test_virtual_tokens(unequally, tiny_model, tmp_path, peft_config, caplog):
    """Padding separates them from the prompt, so its width changes the result."""
    folder = saved(small_model("llama"), tiny_model, tmp_path / "model")
    train_both_ways(unequally(model=folder, peft_config=peft_config), beta=0.1)
    assert "keep TRL's padding: the padding separates the adapter's virtual tokens" in caplog.text


@SLOW
def test_an_adapter_that_was_put_on_by_hand(unequally, tiny_model):
    def load():
        torch.manual_seed(4)
        model = AutoModelForCausalLM.from_pretrained(tiny_model)
        return get_peft_model(model, LoraConfig(target_modules=["q_proj", "v_proj"]))

    train_both_ways(unequally(load=load))


@SLOW
def test_an_adapter_on_the_parameters_of_experts(unequally, tiny_model, tmp_path):
    folder = saved(small_model("gpt_oss"), tiny_model, tmp_path / "model")
    experts = ["mlp.experts.down_proj", "mlp.experts.gate_up_proj"]

    def load():
        torch.manual_seed(4)
        model = AutoModelForCausalLM.from_pretrained(folder)
        return get_peft_model(model, LoraConfig(target_parameters=experts))

    ours, _ = train_both_ways(unequally(load=load), beta=0.1, learning_rate=0.05)
    assert "ref" in ours.model.peft_config


def test_an_adapter_on_the_head_is_refused(both):
    head = LoraConfig(target_modules=["q_proj", "lm_head"], ensure_weight_tying=True)
    refused_alike(both(peft_config=head), "lm_head")


def test_an_adapter_keeps_the_base(unequally):
    trainer = unequally(peft_config=LoraConfig(target_modules=["q_proj"])).ours()
    before = {name: one.clone() for name, one in trainer.model.named_parameters()}
    trainer.train()
    for name, one in trainer.model.named_parameters():
        assert torch.equal(one, before[name]) == ("lora_" not in name)


def test_a_tokenizer_without_a_padding_token(unequally, tiny_model):
    def bare():
        tokenizer = tokenizer_of(tiny_model)
        tokenizer.pad_token = None
        return tokenizer

    ours, stock = train_both_ways(unequally(tokenizer=bare))
    assert ours.processing_class.pad_token == stock.processing_class.pad_token is not None


def test_a_model_with_two_tokens_that_end(unequally, tiny_model):
    """Its generation config has an end-of-turn token besides the tokenizer's end of text."""

    def load():
        model = AutoModelForCausalLM.from_pretrained(tiny_model)
        model.generation_config.eos_token_id = [model.config.eos_token_id, 7]
        return model

    ours, stock = train_both_ways(unequally(load=load), mask_truncated_completions=True)
    assert ours.eos_token_ids == stock.eos_token_ids
    assert 7 in ours.eos_token_ids


CUSTOM = """
from transformers import Qwen2Config, Qwen2ForCausalLM


class OwnConfig(Qwen2Config):
    model_type = "own"


class OwnForCausalLM(Qwen2ForCausalLM):
    config_class = OwnConfig
"""


@SLOW
def test_a_model_with_code_of_its_own(unequally, tiny_model, tmp_path):
    folder = tmp_path / "own"
    shutil.copytree(tiny_model, folder)
    (folder / "own.py").write_text(CUSTOM)
    config = json.loads((folder / "config.json").read_text())
    code = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"}
    config |= {"model_type": "own", "architectures": ["OwnForCausalLM"], "auto_map": code}
    (folder / "config.json").write_text(json.dumps(config))
    pair = unequally(model=str(folder), tokenizer=lambda: tokenizer_of(tiny_model))
    refused_alike(pair, "custom code")
    ours, _ = train_both_ways(pair, trust_remote_code=True)
    assert type(ours.model).__name__ == "OwnForCausalLM"
