"""Errors in a model's folder give one sentence, before anything is built from it."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForMaskedLM, GPT2Config, Qwen2Config, Qwen2ForCausalLM

from tests.support.tiny_models import save_tiny_qwen2
from trl_ablate import miniature
from trl_ablate.errors import ConfigurationError
from trl_ablate.recipe.places import SHIPPED
from trl_ablate.recipe.resolving import load_recipe
from trl_ablate.training.lifecycle import fingerprint
from trl_ablate.training.models import (
    check_finite,
    check_model,
    checked_tokenizer,
    context_of,
    load_tokenizer,
)

UP, EMBEDDING = "model.layers.1.mlp.up_proj.weight", "model.embed_tokens.weight"


def recipe(**settings):
    return load_recipe(SHIPPED / "grpo.yaml", "miniature", settings)


@pytest.fixture
def folder(tmp_path) -> Path:
    """A model of two layers, of which one may lack its tensors."""
    return Path(save_tiny_qwen2(tmp_path / "model", num_hidden_layers=2))


def with_tensors(folder: Path, change: Callable[[dict], object]) -> None:
    """Write the weights again, changed."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def with_config(folder: Path, file: str = "config.json", **changes) -> None:
    config = json.loads((folder / file).read_text()) | changes
    (folder / file).write_text(json.dumps(config))


def with_index(folder: Path, shard: str) -> None:
    """An index that names all tensors, and one shard."""
    names = list(load_file(folder / "model.safetensors"))
    with_tensors(folder, lambda tensors: tensors.pop(UP))
    (folder / "model.safetensors").rename(folder / "one.safetensors")
    index = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(names, shard)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def with_fewer_tokens(folder: Path) -> None:
    fewer = Qwen2Config.from_pretrained(folder).vocab_size - 5
    Qwen2ForCausalLM(Qwen2Config.from_pretrained(folder, vocab_size=fewer)).save_pretrained(folder)


def as_bert(folder: Path) -> None:
    tiny = BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=99)
    BertForMaskedLM(tiny).save_pretrained(folder)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no tokenizer": (lambda f: (f / "tokenizer_config.json").unlink(), "no tokenizer_config.json;"),
    "no end": (lambda f: with_config(f, "tokenizer_config.json", eos_token=None), "no eos_token,"),
    "no vocabulary": (lambda f: (f / "tokenizer.json").unlink(), "does not know '1'"),
    "config": (lambda f: (f / "config.json").write_text("{"), "model .* could not be loaded"),
    "cut off": (lambda f: os.truncate(f / "model.safetensors", 999), "not be loaded .Error"),
    "pickled": (lambda f: (f / "model.safetensors").rename(f / "x.bin"), "pickled ones are"),
    "no such shard": (lambda f: with_index(f, "00001.safetensors"), "00001"),
    "not in the shard": (lambda f: with_index(f, "one.safetensors"), f"lacks 1 of its .*{UP}"),
    "no tensor": (lambda f: with_tensors(f, lambda t: t.pop(UP)), f"lacks 1 .*{UP}.*random"),
    "another shape": (
        lambda f: with_tensors(f, lambda t: t.update({UP: torch.zeros(3, 16)})),
        rf"{UP} .* \[3, 16\], .* \[32, 16\]",
    ),
    "another vocab_size": (lambda f: with_config(f, vocab_size=1000), r"embed_.* wants \[1000"),
    "fewer tokens": (with_fewer_tokens, "tokens up to 296, .* of 292 tokens"),
    "generates nothing": (as_bert, "BertForMaskedLM, which generates no text"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_one_sentence(folder, name):
    damage, sentence = DAMAGES[name]
    damage(folder)
    with pytest.raises(ConfigurationError, match=sentence) as raised:
        checked_tokenizer(str(folder), recipe())
    assert "\n" not in str(raised.value)


FP32_HEAD = {"use_peft": True, "cast_lm_head_to_fp32": True}


@pytest.mark.parametrize(
    ("tied", "settings", "said"),
    [
        (True, {"use_peft": True, "lora_target_modules": ["x"]}, "adapter could not .* x not foun"),
        (True, {"model_init_kwargs": {"x": 1}}, "model_init_kwargs does not suit .* argument 'x'"),
        (True, {"router_aux_loss_coef": 0.1}, "router_aux_loss_coef is 0.1, but .* has no experts"),
        (True, FP32_HEAD, "shares the head's weights with its embedding"),
        (False, FP32_HEAD, "lacks 1 .*lm_head"),
    ],
)
def test_settings_that_the_model_has_nothing_for_are_refused(folder, tied, settings, said):
    with_config(folder, tie_word_embeddings=tied)
    with pytest.raises(ConfigurationError, match=said):
        check_model(str(folder), recipe(**settings))


def test_a_context_is_known_under_any_name(tmp_path):
    GPT2Config(n_positions=64).save_pretrained(tmp_path)
    assert context_of(str(tmp_path), recipe()) == 64


def test_whole_models_are_let_through(folder):
    """With tied weights once or twice, tensors that the architecture does not use, an adapter."""
    more = {"more": torch.zeros(1)}
    for change in (
        lambda tensors: tensors.update({"lm_head.weight": tensors[EMBEDDING].clone(), **more}),
        lambda tensors: tensors.pop("lm_head.weight"),
    ):
        with_tensors(folder, change)
        check_model(str(folder), recipe())
    check_model(str(folder), recipe(use_peft=True))
    assert len(load_tokenizer(str(folder), recipe())) == len(miniature.tokenizer("sums"))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_numbers_are_refused(folder, value):
    model = Qwen2ForCausalLM.from_pretrained(folder)
    check_finite(model, "it")
    model.model.layers[1].mlp.up_proj.weight.data[3, 2] = value
    with pytest.raises(ConfigurationError, match=f"it has weights that are no numbers .*{UP}"):
        check_finite(model, "it")


def test_a_chat_template_replaces_the_tokenizers(tiny_model, tmp_path):
    def tokenizer(file) -> Any:
        return load_tokenizer(tiny_model, recipe(chat_template=str(file)))

    file = tmp_path / "chat.jinja"
    content = "{% generation %}{{ m.content }}{% endgeneration %}"  # a tag of transformers
    file.write_text(f"{{% for m in messages %}}<{{{{ m.role }}}}>{content}{{% endfor %}}")
    question = [{"role": "user", "content": "1+1?"}]
    assert tokenizer(file).apply_chat_template(question, tokenize=False) == "<user>1+1?"
    file.write_text("{% for %}")
    with pytest.raises(ConfigurationError, match="chat template .* is not a Jinja template"):
        tokenizer(file)
    with pytest.raises(ConfigurationError, match="no chat template .*gone.jinja"):
        tokenizer("gone.jinja")


def test_a_fingerprint_is_of_the_weights_and_not_of_an_adapter(folder):
    one, other = (Qwen2ForCausalLM.from_pretrained(folder) for _ in range(2))
    known = fingerprint(one)
    assert known == fingerprint(other)
    torch.nn.init.normal_(other.model.layers[1].mlp.down_proj.weight)
    assert fingerprint(other) not in (known, None)
    adapted = get_peft_model(one, LoraConfig(r=2, target_modules=["q_proj"]))
    assert fingerprint(adapted) == known
    with torch.device("meta"):
        assert fingerprint(Qwen2ForCausalLM(one.config)) is None
