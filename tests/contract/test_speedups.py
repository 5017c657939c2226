"""Our speed-ups change no training: trimmed, regrouped, split and packed rows, prompts computed
once, rows without a backward pass. Which models they are exact for is in `test_architectures`."""

from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from peft import LoraConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from trl.kernels import chunked_logprob
from trl.kernels.chunked_logprob import ChunkedLogProbFunction
from trl.trainer import utils as trl_utils

from tests.contract.alike import AS_DRAWN, weights
from tests.contract.test_architectures import of_sharing, rows_of_three_prompts, small_model
from trl_ablate import ConfigurationError
from trl_ablate.trainer import forward_passes
from trl_ablate.trainer.architectures import check_packs
from trl_ablate.trainer.shared_prompts import computed_tokens

VARIED = {"stop": ["1", "2", "a", "e"], "max_completion_length": 40,
          "gradient_accumulation_steps": 4}  # fmt: skip
"""Makes the random model end its completions at different lengths."""
PLAIN_SGD = {"optim": "sgd", "learning_rate": 1.0, "max_steps": 2, "max_grad_norm": 1e9}
PLAIN = {"share_prompts": False, "skip_idle_rows": False}
SPEEDUPS = {
    "trimmed": (AS_DRAWN, {}),
    "split": (AS_DRAWN, {"share_prompts": False}),
    "packed": ({"padding_free": False, **PLAIN}, {"padding_free": True, **PLAIN}),
    "shared": (PLAIN, {"share_prompts": True, "skip_idle_rows": True}),
}
"""Settings without and with one."""
KL_TWICE = {"num_iterations": 2, "beta": 0.1}
LORA = {"peft_config": LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)}
CASES = [
    *(("trimmed", settings) for settings in [
        {"length_norm": "constant"},
        {"length_norm": "microbatch"},
        {"length_norm": "prompt", "kl_estimator": "k2", **KL_TWICE},
        {"surrogate": "geometric", "num_iterations": 2, "epsilon": 0.01},
        {"surrogate": "probability", "num_iterations": 2, "epsilon": 1e-4},
        {"surrogate": "one_sided", "num_iterations": 2, "length_norm": "prompt"},
        {"group_filter": "drop", "length_norm": "mean"},
        {"length_norm": "nonzero", "positive_weight": 0.0},
        {"length_norm": "token", "rollout_staleness": 1, "sampler_dtype": "int8"},
    ]),
    *((name, settings) for name in ("packed", "shared") for settings in [
        {}, {"length_norm": "constant", "scale_rewards": "none"}, {"gradient_checkpointing": True},
        {"extras": LORA}, KL_TWICE,
    ]),
    ("shared", {"entropy_coef": 0.1}),
    ("shared", {"group_filter": "drop"}),
    ("split", KL_TWICE),
]  # fmt: skip


def half_idle(completions, **_):
    """Rewards that leave every other group without a difference."""
    return [
        float(len(text) % 3) if place // 4 % 2 else 1.0 for place, text in enumerate(completions)
    ]


@pytest.fixture
def calls(monkeypatch) -> dict[str, Mock]:
    """Spies on packed and shared passes, on those without a gradient, and on TRL's head."""
    spies = {
        "packed": Mock(wraps=forward_passes.forward_packed),
        "shared": Mock(wraps=forward_passes.forward_shared),
        "idle": Mock(wraps=forward_passes.without_gradient_of),
        "head": Mock(wraps=trl_utils._ChunkedLogProbFunction.apply),
    }
    monkeypatch.setattr(forward_passes, "forward_packed", spies["packed"])
    monkeypatch.setattr(forward_passes, "forward_shared", spies["shared"])
    monkeypatch.setattr("trl_ablate.trainer.ablation.without_gradient_of", spies["idle"])
    head = SimpleNamespace(apply=spies["head"])
    monkeypatch.setattr(trl_utils, "_ChunkedLogProbFunction", head)
    monkeypatch.setattr(forward_passes, "LogProbsByRows", head)
    return spies


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("speedup", "settings"), CASES,
    ids=lambda one: one if isinstance(one, str) else ",".join(map(str, one)) or "default",
)  # fmt: skip
def test_a_speed_up_changes_no_gradient_and_no_metric(make_trainer, calls, speedup, settings):
    """Two SGD steps with and without it agree to 5e-6 of the largest change of a weight."""
    ends, logs, passes = [], [], []
    for on, how in enumerate(SPEEDUPS[speedup]):
        torch.manual_seed(0)  # an adapter starts with random weights
        reward = {"reward": half_idle} if speedup == "shared" else {}
        trainer = make_trainer(**{**VARIED, **PLAIN_SGD, **reward, **how, **settings})
        if on and speedup == "split":
            trainer._passes = replace(trainer._passes, least_saved=1)
        start = weights(trainer)
        trainer.train()
        if speedup in calls:
            assert calls[speedup].called == bool(on)
        passes.append(calls["head"].call_count)
        ends.append((start, weights(trainer)))
        logs.append([row for row in trainer.state.log_history if "loss" in row])
    (start, plain), (same, less) = ends
    moved = (plain - start).abs().max()
    assert torch.equal(start, same) and moved > 3e-5
    assert (less - plain).abs().max() < 5e-6 * moved
    assert speedup != "split" or passes[1] > 2 * passes[0] + 4
    if speedup == "shared":
        assert calls["idle"].called == (settings != KL_TWICE and "entropy_coef" not in settings)
    for before, after in zip(*logs, strict=True):
        fraction = after.get("padding/fraction", 0.0)
        assert fraction == 0 or fraction < after["padding/fraction_drawn"]
        assert speedup != "packed" or before.get("padding/fraction", 1) > fraction == 0
        for key in before.keys() & after.keys() if speedup == "shared" else ():
            if not key.startswith(("time/", "step_time", "memory/", "padding/", "train_")):
                assert after[key] == pytest.approx(before[key], rel=1e-4, abs=1e-6), key


def test_a_step_without_any_gradient_is_taken_as_before(make_trainer, calls):
    """The optimizer sees gradients of zero, and goes on by its momentum."""

    def rewards(completions, trainer_state, **_):
        first = trainer_state.global_step == 0
        return [float(len(text)) if first else 0.0 for text in completions]

    ends = []
    for how in SPEEDUPS["shared"]:
        trainer = make_trainer(**VARIED, **how, reward=rewards, learning_rate=1e-3)
        trainer.train()
        ends.append(weights(trainer))
    assert calls["idle"].called
    torch.testing.assert_close(*ends, atol=1e-6, rtol=0)


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("softcap", [None, 30.0])
def test_few_rows_of_logits_at_once_have_the_same_bits(monkeypatch, bf16, softcap):
    monkeypatch.setattr(forward_passes, "LOGITS_AT_ONCE", 3 * 512)
    draw = torch.Generator().manual_seed(0)
    hidden_MH = torch.randn(41, 16, generator=draw)
    weight_VH = torch.randn(1200, 16, generator=draw)
    targets_M = torch.randint(1200, (41,), generator=draw)
    settings = (0.7, 512, softcap, 1.3, ("entropy",))
    rows: list[int] = []

    def results(function):
        inputs = [one.clone().requires_grad_() for one in (hidden_MH, weight_VH)]
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            logps_M, entropies_M, *_ = function.apply(*inputs, None, targets_M, *settings)
            (logps_M + 0.1 * entropies_M).sum().backward()
        return [logps_M, entropies_M, *(one.grad for one in inputs)]

    def counted(tile, *more, fold=chunked_logprob._backward_tile, **settings):
        rows.append(len(tile))
        fold(tile, *more, **settings)

    whole = results(ChunkedLogProbFunction)
    monkeypatch.setattr(chunked_logprob, "_backward_tile", counted)
    for one, other in zip(whole, results(forward_passes.LogProbsByRows), strict=True):
        assert torch.equal(one, other)

    assert rows == 2 * [*13 * [3], 2] + [*5 * [8], 1]  # of 512, 512 and 176 columns


@pytest.mark.parametrize("how", [{}, AS_DRAWN], ids=["trimmed", "padded"])
def test_the_head_computes_response_tokens_only(make_trainer, calls, how):
    trainer = make_trainer(**VARIED, **how, max_steps=1)
    trainer.train()
    computed = sum(len(call.args[0]) for call in calls["head"].call_args_list)
    tokens = sum(int(batch["completion_mask"].sum()) for batch in trainer._buffered_inputs)
    assert computed > 1.5 * tokens if how else computed == tokens


def test_attention_is_wrapped_once_and_serves_others_as_before():
    of_sharing(small_model("llama"))
    wrapped = ALL_ATTENTION_FUNCTIONS["sdpa"]
    of_sharing(small_model("llama"))
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is wrapped
    query, key, value = torch.randn(3, 2, 4, 5, 8)
    module = torch.nn.Module()
    module.is_causal = True
    plain = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    assert torch.equal(wrapped(module, query, key, value, None)[0], plain.transpose(1, 2))


def test_the_tokens_that_are_computed_by_hand():
    """Prompts of 7, 3 and 1 token leave 6 + 2 + 0 in prefixes; each of 6 rows has a last token of
    its prompt; 32 tokens of responses."""
    assert computed_tokens(*rows_of_three_prompts()) == 8 + 6 + 32


def test_packing_is_refused_where_rows_are_padded_or_not_told_apart(make_trainer):
    with pytest.raises(ConfigurationError, match="set trim_microbatches: true"):
        make_trainer(padding_free=True, trim_microbatches=False)
    said = "not tested with model type 'opt', whose rows may see each other"
    with pytest.raises(ConfigurationError, match=said):
        check_packs("opt", trimmed=True)


def test_trimmed_widths_are_multiples_where_padding_is_or_the_model_is_compiled(make_trainer):
    trainers = [make_trainer(), make_trainer(pad_to_multiple_of=8)]
    assert [trainer._passes.multiple for trainer in trainers] == [1, 8]
    config = trainers[0].args
    config.torch_compile = True
    assert config.trimmed_to_multiple_of == 64
    config.pad_to_multiple_of = 16
    assert config.trimmed_to_multiple_of == 16


@pytest.mark.slow
def test_a_compiled_model_trains_as_one_that_is_not(make_trainer):
    """Twice in a row, so that what generation changes in the model is undone in between."""
    settings = {"max_steps": 2, "stop": ["9"], "use_cpu": True}
    plain = make_trainer(**settings)
    loss = plain.train().training_loss
    compiled = make_trainer(**settings, torch_compile=True, torch_compile_backend="eager")
    assert compiled.train().training_loss == pytest.approx(loss, abs=1e-6)
    expected = dict(plain.model.named_parameters())
    assert set(expected) == set(dict(compiled.model.named_parameters()))
    for name, value in compiled.model.named_parameters():
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-6)
    assert "generate" not in vars(compiled.model)
