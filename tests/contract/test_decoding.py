"""Decoding without ended rows gives the tokens of transformers' `generate`, and takes its draws."""

import inspect
from contextlib import nullcontext
from functools import partial
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    GenerationConfig,
    LogitsProcessor,
)

from tests.contract.alike import weights
from trl_ablate.trainer import ablation, decoding, graph_forward, prefill, short_forward
from trl_ablate.trainer.decoding import (
    decode,
    made_of_uniform_draws,
    repeats,
    without_ended_rows,
)
from trl_ablate.trainer.short_forward import Packed, ShortForward, packed_weights

EOS, PAD = 1, 0
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
AS_DECODE: dict[str, Any] = {"custom_generate": decode}


def model_of(architecture: str = "qwen2", **changes):
    torch.manual_seed(0)
    shape = SHAPE | ARCHITECTURES[architecture] | changes
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(architecture, **shape)).eval()
    with torch.no_grad():
        for one in model.parameters():
            one.mul_(3 if one.dim() > 1 else 1)  # so that the next token is not a coin toss
    return model


def prompts(times: int = 3) -> dict:
    """Four prompts of several lengths, padded left, each `times` in a row."""
    words = (torch.arange(4)[:, None] + torch.arange(5)) % 9 + 3
    words[torch.arange(5) < torch.arange(4)[:, None]] = PAD
    rows = words.repeat_interleave(times, dim=0)
    return {"input_ids": rows, "attention_mask": (rows != PAD).long()}


def config(**changes) -> GenerationConfig:
    settings = {"max_new_tokens": 24, "pad_token_id": PAD, "eos_token_id": EOS, "do_sample": True}
    return GenerationConfig(**settings | {"top_k": 0} | changes)


def alike(model, inputs: dict | None = None, **settings) -> torch.Tensor:
    """The tokens of `decode`, which are those of `generate`, with the same draws."""
    found = []
    for custom in ({}, AS_DECODE):
        torch.manual_seed(5)
        given = {**(inputs or prompts()), **custom}
        ids = model.generate(**given, generation_config=config(**settings))
        found.append((ids, torch.rand(3)))
    for theirs, ours in zip(*found, strict=True):
        assert torch.equal(ours, theirs)
    return found[1][0]


@pytest.fixture
def short(monkeypatch) -> list[int]:
    """Rows of each forward pass of `ShortForward`."""
    seen: list[int] = []
    logits = ShortForward.logits
    monkeypatch.setattr(
        ShortForward, "logits", lambda self, ids: seen.append(len(ids)) or logits(self, ids)
    )
    return seen


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
    alike(model_of(architecture), **settings)
    assert made_of_uniform_draws()


def test_frequencies_that_follow_from_the_longest_row_are_left_to_transformers(monkeypatch):
    monkeypatch.setattr(decoding, "ForwardPass", None)
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    alike(model_of("llama", rope_parameters=rope, max_position_embeddings=8))


def test_as_many_rows_as_positions_have_parts():
    """Qwen2-VL's positions are `(4, N, L)`; four rows of them are not those of the batch."""
    text = SHAPE | {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2]}}
    sees = {"depth": 1, "embed_dim": 16, "hidden_size": 16, "num_heads": 2}
    model = AutoModelForImageTextToText.from_config(
        AutoConfig.for_model("qwen2_vl", text_config=text, vision_config=sees)
    )
    alike(model.eval(), prompts(1))


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
        alike(model)
        assert len(set(map(id, used))) == linear + adapters and adapters == 8
        assert not any("forward" in vars(one) for one in model.modules())
        used.clear()
        with torch.no_grad():
            for one in model.parameters():
                one.mul_(1.1)


BF16 = short_forward.has_bf16_products()
of_bf16 = pytest.mark.skipif(not BF16, reason="this processor has no products in bfloat16")


@pytest.mark.parametrize(
    ("autocast", "change", "is_packed"),
    [
        (None, torch.nn.Module.float, True),
        pytest.param(torch.bfloat16, torch.nn.Module.float, True, marks=of_bf16),
        (torch.float16, torch.nn.Module.float, False),
        (None, torch.nn.Module.bfloat16, BF16),
        (None, torch.nn.Module.double, False),
        (None, lambda one: setattr(one, "forward", torch.zeros_like), False),
        (None, torch.nn.utils.parametrizations.weight_norm, False),
        (None, lambda one: one.to("meta"), False),
    ],
)
def test_a_product_of_packed_weights_is_that_of_the_layer(autocast, change, is_packed):
    """Where it is used; with autocast, in its type."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(384, 512)
    change(layer)
    model = torch.nn.ModuleList([layer])
    with torch.no_grad(), torch.autocast("cpu", autocast, enabled=autocast is not None):
        with packed_weights(model, 6):
            assert isinstance(vars(layer).get("forward"), Packed) == is_packed
            x = torch.randn(3, 2, 384).to(layer.weight.dtype)
            found = layer(x) if is_packed else None
        if is_packed:
            torch.testing.assert_close(found, layer(x))
    with packed_weights(model, 6):  # with gradient
        assert not isinstance(vars(layer).get("forward"), Packed)


@pytest.mark.parametrize("times", [1, 3])
def test_rows_that_have_ended_leave_and_a_prompt_is_read_once(times):
    model, seen = model_of(), []
    model.register_forward_pre_hook(
        lambda _, __, given: seen.append(len(given["input_ids"])), with_kwargs=True
    )
    ids = alike(model, prompts(times))[:, 5:]
    seen = seen[ids.size(1) :]  # of `decode`
    lengths = torch.tensor([one.index(EOS) + 1 if EOS in one else 24 for one in ids.tolist()])
    assert seen[0] == 4
    assert seen[1:] == sorted(seen[1:], reverse=True)
    assert len(seen) == lengths.max() and seen[-1] < 4 * times
    for step, rows in enumerate(seen[1:], start=1):
        going = int((lengths > step).sum())
        assert going <= rows <= going / (1 - 0.125) + 1


@pytest.mark.parametrize(("architecture", "heads"), [("qwen2", 1), ("llama", 2)])
def test_known_models_have_a_short_forward_pass(short, architecture, heads):
    """With padding, without, and after the rows with padding have left; past the cache's room."""
    model = model_of(architecture, num_key_value_heads=heads)
    alike(model, max_new_tokens=80, suppress_tokens=[EOS])
    assert short == [12] * 79
    short.clear()
    alike(model)
    assert min(short) < 6
    short.clear()
    alike(model, {name: value[:3] for name, value in prompts().items()})
    assert short


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize(
    ("beginning", "lengths", "passes"),
    [
        (6, [2, 5, 1, 9, 2], [(1, 6), (2, 2), (2, 5), (1, 9)]),
        (0, [2, 5, 2, 9, 3], [(2, 2), (2, 5), (1, 9)]),
        (5, [1, 1, 1], [(1, 5), (2, 1), (1, 1)]),
        (0, [7, 7, 7], []),
        (1, [9], []),
    ],
)
def test_prompts_are_read_apart(monkeypatch, beginning, lengths, passes, times):
    """The common beginning once, and the rest of two prompts together, where that saves enough."""
    seen, forward = [], prefill._forward
    monkeypatch.setattr(prefill, "ROWS", 2)
    monkeypatch.setattr(
        prefill,
        "_forward",
        lambda model, ids, *rest: seen.append(ids.shape) or forward(model, ids, *rest),
    )
    longest = beginning + max(lengths)
    rows = torch.full((len(lengths), longest), PAD)
    for row, own in enumerate(lengths):
        rows[row, longest - own - beginning : longest - own] = torch.arange(beginning) % 7 + 3
        rows[row, longest - own :] = (torch.arange(own) + row) % 9 + 3
    rows = rows.repeat_interleave(times, dim=0)
    alike(model_of("llama"), {"input_ids": rows, "attention_mask": (rows != PAD).long()})
    assert seen == passes


def subclassed(model):
    model.model.norm.__class__ = type("Norm", (type(model.model.norm),), {})


@pytest.mark.parametrize(
    ("settings", "change"),
    [
        ({}, lambda one: one.model.norm.register_forward_hook(lambda *_: None)),
        ({}, lambda one: setattr(one.model.layers[0].mlp, "forward", torch.zeros_like)),
        ({}, subclassed),
        ({"attention_dropout": 0.5}, torch.nn.Module.train),
        ({}, torch.nn.Module.bfloat16),
        ({"attn_implementation": "eager"}, None),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}, None),
        ({"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}, None),
    ],
    ids=["hook", "patch", "class", "dropout", "bf16", "eager", "rope", "sliding window"],
)
def test_other_models_have_no_short_forward_pass(short, settings, change):
    model = model_of(**settings)
    if change is not None:
        change(model)
    model.generate(**prompts(), generation_config=config(), **AS_DECODE)
    assert not short


def test_a_short_pass_that_differs_from_the_models_is_not_used(short, monkeypatch):
    """The model's forward pass is changed where the parts of the model do not show it."""
    model = model_of()
    forward = type(model).forward

    def doubled(self, *args, **keywords):
        found = forward(self, *args, **keywords)
        found.logits = found.logits * 2
        return found

    doubled.__signature__ = inspect.signature(forward)
    monkeypatch.setattr(type(model), "forward", doubled)
    with pytest.warns(UserWarning, match="decoding is slower"):
        alike(model)
    assert len(short) == 1


@pytest.fixture
def passes(monkeypatch) -> Mock:
    """Decoding as on a GPU; called with what is recorded. Nothing is: that needs a GPU."""
    monkeypatch.setattr(graph_forward, "DEVICE", "cpu")
    monkeypatch.setattr(decoding, "may_be_short", lambda *_: False)
    recorded = Mock(side_effect=lambda run: run)
    monkeypatch.setattr(graph_forward, "recorded", recorded)
    return recorded


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("architecture", ["qwen2", "llama"])
def test_a_recorded_pass_computes_what_the_model_computes(passes, architecture, mixed):
    """With padding, and after the rows with padding have left; without; in autocast."""
    model = model_of(architecture)
    with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        alike(model)
        alike(model, max_new_tokens=80, suppress_tokens=[EOS])
        alike(model, {name: value[:3] for name, value in prompts().items()}, temperature=0.5)
    assert passes.call_count == 3


@pytest.mark.parametrize(
    ("architecture", "settings", "hook", "cells"),
    [
        ("qwen2", {}, False, 12 * (5 + 24)),
        ("qwen2", {}, False, 12 * (5 + 24) - 1),
        ("qwen2", {}, True, 2**16),
        ("qwen2", {"attn_implementation": "eager"}, False, 2**16),
        ("falcon_h1", {}, False, 2**16),
        ("mixtral", {}, False, 2**16),
        ("gemma3_text", {}, False, 2**16),
    ],
)
def test_which_models_and_caches_are_recorded(
    passes, monkeypatch, architecture, settings, hook, cells
):
    monkeypatch.setattr(graph_forward, "CELLS", cells)
    model = model_of(architecture, **settings)
    if hook:
        model.model.norm.register_forward_hook(lambda *_: None)
    alike(model)
    assert passes.called == (cells == 12 * (5 + 24))


def test_a_pass_that_cannot_be_recorded_is_made_again_and_again(passes):
    passes.side_effect = RuntimeError("operation not permitted when stream is capturing")
    with pytest.warns(UserWarning, match="decoding is slower: operation not permitted"):
        alike(model_of())


def test_graphs_are_recorded_in_one_stream_and_one_pool(monkeypatch):
    """Memory of another would stay reserved: 0.1 to 0.3 GiB for each generation."""
    cuda, graphs = MagicMock(), [Mock(), Mock()]
    cuda.CUDAGraph.side_effect = graphs
    monkeypatch.setattr(torch, "cuda", cuda)
    graph_forward.recordings.cache_clear()
    run = Mock()
    assert graph_forward.recorded(run) is graphs[0].replay
    run.side_effect = ValueError
    with pytest.raises(ValueError):
        graph_forward.recorded(run)
    graphs[0].capture_begin.assert_called_once_with(capture_error_mode="thread_local")
    pool = graphs[0].pool()
    graphs[1].capture_begin.assert_called_once_with(pool, capture_error_mode="thread_local")
    assert cuda.Stream.call_count == 1 and graphs[1].capture_end.called
    graph_forward.recordings.cache_clear()


class Sum(LogitsProcessor):
    """Looks at the whole batch."""

    def __call__(self, input_ids, scores):
        return scores + scores.mean(dim=0, keepdim=True)


@pytest.mark.parametrize(
    ("here", "architecture", "settings", "processors"),
    [
        (True, "qwen2", {}, []),
        (False, "qwen2", {}, [Sum()]),
        (False, "qwen2", {"cache_implementation": "static"}, []),
        (False, "qwen2", {"num_beams": 2}, []),
        (False, "qwen2", {"return_dict_in_generate": True}, []),
        (False, "qwen2", {"prefill_chunk_size": 2}, []),
        (False, "qwen2", {"use_cache": False}, []),
        (False, "qwen2", {"max_time": 60.0}, []),
        (False, "falcon_h1", {}, []),  # another cache
    ],
)
def test_only_what_is_by_row_is_decoded_here(monkeypatch, here, architecture, settings, processors):
    """The rest by transformers."""
    model, rows = model_of(architecture), Mock(wraps=decoding.Rows)
    monkeypatch.setattr(decoding, "Rows", rows)
    found = []
    for around in (nullcontext(), without_ended_rows(model, nullcontext, config(**settings))):
        torch.manual_seed(5)
        given = {"generation_config": config(**settings), "logits_processor": processors}
        with around:
            found.append(model.generate(**prompts(), **given)[0])  # the first row, or all sequences
    assert torch.equal(*found)
    assert rows.called == here


def test_probabilities_that_are_not_numbers_raise_what_torch_raises():
    model = model_of()
    with torch.no_grad():
        model.get_output_embeddings().weight.fill_(torch.nan)
    for custom in ({}, AS_DECODE):
        with pytest.raises(RuntimeError, match="probability tensor contains either `inf`, `nan`"):
            model.generate(**prompts(), generation_config=config(), **custom)


def test_how_often_a_prompt_is_repeated():
    rows = torch.tensor([[1, 2], [1, 2], [3, 2], [3, 2]])
    ones = torch.ones_like(rows)
    assert repeats(rows, ones) == 2
    assert repeats(rows[:3], ones[:3]) == 1  # twice and once
    assert repeats(rows[:2], ones[:2]) == 2
    assert repeats(rows, torch.tensor([[1, 1], [0, 1], [1, 1], [1, 1]])) == 1
    assert repeats(rows[[0, 2, 0, 2]], ones) == 1


def test_a_training_is_the_same_with_and_without(make_trainer, monkeypatch):
    used = Mock(wraps=without_ended_rows)
    monkeypatch.setattr(ablation, "without_ended_rows", used)
    found = []
    for drop in (False, True):
        trainer = make_trainer(drop_ended_rows=drop, stop=["1", "2"], min_tokens=4, temperature=0.7,
                               rollout_staleness=1, max_completion_length=20, max_steps=2,
                               eval_strategy="steps", eval_steps=1)  # fmt: skip
        trainer.train()
        rewards = [row.get("eval_reward") for row in trainer.state.log_history]
        found.append((weights(trainer).tolist(), rewards))
        assert used.called == drop
    assert found[0] == found[1]


def test_mixed_precision_has_one_context_which_casts_each_weight_once():
    """Every forward pass has a context of its own; without one around them, each token would cast
    every weight."""
    mixed = partial(torch.autocast, "cpu", dtype=torch.bfloat16)
    model = model_of()
    with without_ended_rows(model, mixed, config()):
        assert torch.is_autocast_enabled("cpu")
    with mixed():
        alike(model)
