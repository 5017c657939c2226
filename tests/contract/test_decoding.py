"""Decoding without ended rows gives the tokens of transformers' `generate`, and takes its draws."""

import inspect
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.profiler import ProfilerActivity, profile
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    DynamicCache,
    GenerationConfig,
    LogitsProcessor,
)

from tests.contract.alike import weights
from trl_ablate.trainer import ablation, short_forward
from trl_ablate.trainer.decoding import (
    decode,
    made_of_uniform_draws,
    repeats,
    without_ended_rows,
)
from trl_ablate.trainer.short_forward import (
    CACHE,
    Packed,
    ShortForward,
    may_be_short,
    packed_weights,
)
from trl_ablate.trainer.temporary import replaced

EOS, PAD = 1, 0
CAST = "aten::_to_copy"
SHAPE = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "vocab_size": 12, "max_position_embeddings": 128,
    "pad_token_id": PAD, "eos_token_id": EOS, "bos_token_id": 2,
}  # fmt: skip
ARCHITECTURES = {
    "qwen2": {},
    "llama": {},
    "gemma3_text": {"sliding_window": 6, "head_dim": 8},
    "mixtral": {"num_local_experts": 2, "sliding_window": 5},
    "falcon_h1": {"mamba_d_ssm": 16, "mamba_n_heads": 2, "mamba_d_head": 8, "mamba_d_state": 4},
}


def model_of(architecture: str = "qwen2", **changes):
    torch.manual_seed(0)
    shape = SHAPE | ARCHITECTURES[architecture] | changes
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(architecture, **shape)).eval()
    with torch.no_grad():
        for one in model.parameters():
            one.mul_(3 if one.dim() > 1 else 1)  # so that the next token is not a coin toss
    return model


def prompts(groups: int = 4, times: int = 3) -> dict:
    """Prompts of several lengths, padded left, each `times` in a row."""
    words = (torch.arange(groups)[:, None] + torch.arange(5)) % 9 + 3
    words[torch.arange(5) < torch.arange(groups)[:, None]] = PAD
    rows = words.repeat_interleave(times, dim=0)
    return {"input_ids": rows, "attention_mask": (rows != PAD).long()}


def config(**changes) -> GenerationConfig:
    settings = {"max_new_tokens": 24, "pad_token_id": PAD, "eos_token_id": EOS, "do_sample": True}
    return GenerationConfig(**settings | {"top_k": 0} | changes)


def both(model, inputs: dict, settings: GenerationConfig, **arguments):
    """The tokens of `generate` and of `decode`, and the next draw after each."""
    found = []
    for custom in ({}, {"custom_generate": decode}):
        torch.manual_seed(5)
        ids = model.generate(**inputs, generation_config=settings, **arguments, **custom)
        found.append((ids, torch.rand(3)))
    return found


def alike(model, inputs: dict, settings: GenerationConfig, **arguments) -> torch.Tensor:
    """The tokens of `decode`, which are those of `generate`, with the same draws."""
    (theirs, their_draw), (ours, our_draw) = both(model, inputs, settings, **arguments)
    assert torch.equal(ours, theirs)
    assert torch.equal(our_draw, their_draw)
    return ours


@pytest.mark.sample(5)
@pytest.mark.parametrize("least", [1, short_forward.LEAST], ids=["packed", "plain"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"do_sample": False},
        {"temperature": 0.5, "top_k": 6, "top_p": 0.9, "min_p": 0.02, "min_new_tokens": 3},
        {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3},
        {"max_new_tokens": 1},
    ],
    ids=str,
)
def test_the_tokens_and_the_draws_are_those_of_generate(architecture, settings, least, monkeypatch):
    monkeypatch.setattr(short_forward, "LEAST", least)
    alike(model_of(architecture), prompts(), config(**settings))
    assert made_of_uniform_draws()


def test_packed_weights_last_for_one_generation(monkeypatch):
    """Each packs the weights that the model has then, adapters' included, and leaves no trace."""
    monkeypatch.setattr(short_forward, "LEAST", 1)
    base = model_of("llama")
    linear = sum(type(one) is torch.nn.Linear for one in base.modules())
    model: Any = get_peft_model(base, LoraConfig(r=2, init_lora_weights=False))
    adapters = sum(type(one) is torch.nn.Linear for one in model.modules()) - linear
    used = []
    product = Packed.__call__
    monkeypatch.setattr(Packed, "__call__", lambda self, x: used.append(self) or product(self, x))
    for _ in range(2):
        alike(model, prompts(), config())
        assert len(set(map(id, used))) == linear + adapters and adapters == 8
        assert not any("forward" in vars(one) for one in model.modules())
        used.clear()
        with torch.no_grad():
            for one in model.parameters():
                one.mul_(1.1)


@pytest.mark.parametrize(
    ("autocast", "change", "is_packed"),
    [
        (None, None, True),
        (torch.bfloat16, None, True),
        (torch.float16, None, False),
        (None, torch.nn.Module.bfloat16, short_forward.has_bf16_products()),
        (None, torch.nn.Module.double, False),
        (None, lambda one: setattr(one, "forward", torch.zeros_like), False),
        (None, lambda one: torch.nn.utils.parametrizations.weight_norm(one), False),
        (None, lambda one: one.to("meta"), False),
    ],
)
def test_a_product_of_packed_weights_is_that_of_the_layer(autocast, change, is_packed):
    """Where it is used; with autocast, in its type."""
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(384, 512), torch.randn(3, 2, 384)
    if change is not None:
        change(layer)
    if autocast == torch.bfloat16 and not short_forward.has_bf16_products():
        pytest.skip("this processor has no products in bfloat16")
    model = torch.nn.ModuleList([layer])
    with torch.no_grad(), torch.autocast("cpu", autocast, enabled=autocast is not None):
        expected = layer(x.to(layer.weight.dtype)) if is_packed else None
        with packed_weights(model, 6):
            assert isinstance(vars(layer).get("forward"), Packed) == is_packed
            if is_packed:
                found = layer(x.to(layer.weight.dtype))
                assert found.dtype == expected.dtype
                torch.testing.assert_close(found, expected)
    with packed_weights(model, 6):  # with gradient
        assert not isinstance(vars(layer).get("forward"), Packed)


@pytest.mark.parametrize("times", [1, 3])
def test_rows_that_have_ended_leave_and_a_prompt_is_read_once(times):
    model, inputs, seen = model_of(), prompts(groups=4, times=times), []
    model.register_forward_pre_hook(
        lambda _, __, given: seen.append(len(given["input_ids"])), with_kwargs=True
    )
    (ids, _), _ = both(model, inputs, config())
    ids = ids[:, 5:]
    seen = seen[ids.size(1) :]  # of `decode`
    lengths = torch.tensor([one.index(EOS) + 1 if EOS in one else 24 for one in ids.tolist()])
    assert seen[0] == 4
    assert seen[1:] == sorted(seen[1:], reverse=True)
    assert len(seen) == lengths.max() and seen[-1] < 4 * times
    for step, rows in enumerate(seen[1:], start=1):
        going = int((lengths > step).sum())
        assert going <= rows <= going / (1 - 0.125) + 1


def short_passes(model, inputs: dict, settings: GenerationConfig) -> list[int]:
    """Rows of each forward pass of `ShortForward`."""
    seen = []
    logits = ShortForward.logits

    def counted(self, ids_ML):
        seen.append(len(ids_ML))
        return logits(self, ids_ML)

    with replaced(ShortForward, logits=counted):
        alike(model, inputs, settings)
    return seen


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("architecture", ["qwen2", "llama"])
def test_known_models_have_a_short_forward_pass(architecture, heads):
    """With padding, without, and after the rows with padding have left; past the cache's room."""
    model = model_of(architecture, num_key_value_heads=heads)
    unending = config(max_new_tokens=80, suppress_tokens=[EOS])
    assert short_passes(model, prompts(), unending) == [12] * 79
    assert min(short_passes(model, prompts(), config())) < 6
    even = {name: value[:3] for name, value in prompts().items()}
    assert short_passes(model, even, config())


def model_inputs(model) -> dict:
    """Those of the pass after the prompts."""
    mask = prompts()["attention_mask"]
    return {
        "attention_mask": mask,
        "position_ids": (mask.cumsum(-1) - 1).clamp(min=0),
        "use_cache": True,
        "logits_to_keep": 1,
        CACHE: DynamicCache(config=model.config),
    }


def hooked(model):
    model.model.norm.register_forward_hook(lambda module, given, found: found * 1.5)


def patched(model):
    model.model.layers[0].mlp.forward = torch.zeros_like


def subclassed(model):
    model.model.norm.__class__ = type("Norm", (type(model.model.norm),), {})


def dropping(model):
    model.config.attention_dropout = 0.5
    model.train()


@pytest.mark.parametrize(
    ("changes", "change"),
    [
        ({}, hooked),
        ({}, patched),
        ({}, subclassed),
        ({}, dropping),
        ({}, torch.nn.Module.bfloat16),
        ({"attn_implementation": "eager"}, None),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}, None),
        ({"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}, None),
    ],
    ids=["hook", "patch", "class", "dropout", "bf16", "eager", "rope", "sliding window"],
)
def test_other_models_have_no_short_forward_pass(changes, change):
    model = model_of(**changes)
    assert may_be_short(model_of(), model_inputs(model_of()))
    if change is not None:
        change(model)
    assert not may_be_short(model, model_inputs(model))


def test_a_short_pass_that_differs_from_the_models_is_not_used():
    """The model's forward pass is changed where the parts of the model do not show it."""
    model = model_of()
    forward = type(model).forward

    def doubled(self, *args, **keywords):
        found = forward(self, *args, **keywords)
        found.logits = found.logits * 2
        return found

    doubled.__signature__ = inspect.signature(forward)
    with replaced(type(model), forward=doubled):
        assert len(short_passes(model, prompts(), config())) == 1


class Sum(LogitsProcessor):
    """Looks at the whole batch."""

    def __call__(self, input_ids, scores):
        return scores + scores.mean(dim=0, keepdim=True)


@pytest.mark.parametrize(
    ("architecture", "settings", "arguments"),
    [
        ("qwen2", {}, {"logits_processor": [Sum()]}),
        ("qwen2", {"prefill_chunk_size": 2}, {}),
        ("qwen2", {"use_cache": False}, {}),
        ("qwen2", {"max_time": 60.0}, {}),
        ("falcon_h1", {}, {}),
    ],
    ids=["batch processor", "chunks", "no cache", "time", "other cache"],
)
def test_what_is_not_by_row_is_decoded_by_transformers(architecture, settings, arguments):
    model = model_of(architecture)
    called = []
    sample = model._sample
    model._sample = lambda *args, **given: (called.append(1), sample(*args, **given))[1]
    alike(model, prompts(), config(**settings), **arguments)
    assert called == [1]


@pytest.mark.parametrize(
    "settings",
    [{"cache_implementation": "static"}, {"num_beams": 2}, {"return_dict_in_generate": True}],
    ids=str,
)
def test_other_ways_of_generating_are_left_alone(settings, make_trainer):
    trainer = make_trainer(max_steps=1)
    generate = trainer.model.generate
    with without_ended_rows(trainer.model, trainer.accelerator, config(**settings)):
        assert trainer.model.generate == generate
    with without_ended_rows(trainer.model, trainer.accelerator, config()):
        assert trainer.model.generate != generate


def test_probabilities_that_are_not_numbers_raise_what_torch_raises():
    model = model_of()
    with torch.no_grad():
        model.get_output_embeddings().weight.fill_(torch.nan)
    for custom in ({}, {"custom_generate": decode}):
        with pytest.raises(RuntimeError, match="probability tensor contains either `inf`, `nan`"):
            model.generate(**prompts(), generation_config=config(), **custom)


def test_how_often_a_prompt_is_repeated():
    rows = torch.tensor([[1, 2], [1, 2], [3, 2], [3, 2]])
    ones = torch.ones_like(rows)
    assert repeats(rows, ones) == 2
    assert repeats(rows[:3], ones[:3]) == 1  # twice and once
    assert repeats(rows[:1], ones[:1]) == 1
    assert repeats(rows[:2], ones[:2]) == 2
    assert repeats(rows, torch.tensor([[1, 1], [0, 1], [1, 1], [1, 1]])) == 1
    assert repeats(rows[[0, 2, 0, 2]], ones) == 1


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "settings",
    [{"stop": ["1", "2"], "min_tokens": 4, "temperature": 0.7}, {"rollout_staleness": 1}],
    ids=str,
)
def test_a_training_is_the_same_with_and_without(make_trainer, settings):
    found = []
    for drop in (True, False):
        trainer = make_trainer(drop_ended_rows=drop, max_completion_length=20, max_steps=2,
                               eval_strategy="steps", eval_steps=1, **settings)  # fmt: skip
        trainer.train()
        rewards = [row.get("eval_reward") for row in trainer.state.log_history]
        found.append((weights(trainer).tolist(), rewards))
    assert found[0] == found[1]


@pytest.mark.parametrize("drop", [True, False])
def test_a_training_drops_ended_rows_if_it_is_to(make_trainer, monkeypatch, drop):
    used = []
    monkeypatch.setattr(
        ablation, "without_ended_rows", lambda *given: used.append(1) or without_ended_rows(*given)
    )
    make_trainer(drop_ended_rows=drop, max_steps=1).train()
    assert bool(used) == drop


@pytest.mark.slow
def test_mixed_precision_casts_each_weight_once_and_gives_the_same_tokens():
    """Every forward pass has a context of its own; without one around them, each token would cast
    every weight."""
    model, found, casts = model_of(), [], []
    mixed = partial(torch.autocast, "cpu", dtype=torch.bfloat16)
    accelerator: Any = SimpleNamespace(unwrap_model=lambda one, **_: one, autocast=mixed)

    class Mixed(type(model)):
        def forward(self, *args, **keywords):
            with mixed():
                return super().forward(*args, **keywords)

    model.__class__ = Mixed
    for around in (nullcontext(), without_ended_rows(model, accelerator, config())):
        torch.manual_seed(0)
        recorded = profile(activities=[ProfilerActivity.CPU])
        with recorded, torch.no_grad(), around:
            found.append(model.generate(**prompts(), generation_config=config()))
        casts.append(sum(one.count for one in recorded.key_averages() if one.key == CAST))
    assert torch.equal(*found)
    weights = sum(isinstance(one, torch.nn.Linear) for one in model.modules())
    assert casts[0] - casts[1] > 20 * weights
