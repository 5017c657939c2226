"""Prompts computed once, and rows without a backward pass: the same log-probabilities, metrics and
gradients."""

import pytest
import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from tests.contract.test_architectures import FEW, TOLERANCE, forward_of, small_model
from tests.contract.test_head import PLAIN_SGD, VARIED, weights_of
from tests.contract.test_packing import ADAPTER
from trl_ablate.trainer import forward_passes
from trl_ablate.trainer.architectures import NOT_SHAREABLE, PACKABLE, may_share
from trl_ablate.trainer.forward_passes import groups_by_length
from trl_ablate.trainer.shared_prompts import (
    computed_tokens,
    forward_shared,
)

PROMPTS, COMPLETIONS = (7, 3, 7, 7, 3, 1), (5, 4, 9, 0, 8, 6)
"""Rows of three prompts, not in order; one has a single token, one row no response."""
OTHER_ATTENTION = ("codegen", "gpt_neox_japanese", "gptj", "hy_v4")


def rows_of_three_prompts() -> tuple[torch.Tensor, torch.Tensor, int]:
    generator = torch.Generator().manual_seed(1)
    width, longest = max(PROMPTS), max(COMPLETIONS)
    ids = torch.zeros(len(PROMPTS), width + longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    prompts = {n: torch.randint(3, 119, (n,), generator=generator) for n in set(PROMPTS)}
    for row, (prompt, response) in enumerate(zip(PROMPTS, COMPLETIONS, strict=True)):
        ids[row, width - prompt : width] = prompts[prompt]
        ids[row, width : width + response] = torch.randint(3, 119, (response,), generator=generator)
        mask[row, width - prompt : width + response] = 1
    return ids, mask, longest


def changes(model_type: str) -> tuple[float, float]:
    """The largest change of a log-probability, and the relative one of the gradient, between rows
    one by one and rows that share their prompts, in blocks of similar length."""
    model, (ids, mask, width) = small_model(model_type), rows_of_three_prompts()
    forward = forward_of(model)
    weights = torch.randn(len(ids), width, generator=torch.Generator().manual_seed(2))
    shared, nothing = forward_shared(
        forward, ids, mask, width, lambda lengths: groups_by_length(lengths, None, 6)
    )
    alone = []
    for row, count in enumerate(COMPLETIONS):
        one = ids[row][mask[row].bool()][None]
        found = forward(one, torch.ones_like(one), max(count, 1))[0][0]
        alone.append(torch.nn.functional.pad(found[:count], (0, width - count)))
    assert nothing is None
    expected = torch.stack(alone)
    found, wanted = (gradient(model, (one * weights).sum()) for one in (shared, expected))
    return (shared - expected).abs().max().item(), ((found - wanted).norm() / wanted.norm()).item()


def gradient(model, loss: torch.Tensor) -> torch.Tensor:
    parameters = [one for one in model.parameters() if one.requires_grad]
    each = torch.autograd.grad(loss, parameters, allow_unused=True)
    return torch.cat([one.flatten() for one in each if one is not None])


@pytest.mark.parametrize("model_type", [name for name in FEW if name in PACKABLE])
def test_sharing_is_exact(model_type):
    assert may_share(small_model(model_type))
    of_logps, of_gradient = changes(model_type)
    assert of_logps < TOLERANCE and of_gradient < TOLERANCE


@pytest.mark.slow
@pytest.mark.sample(6)
@pytest.mark.parametrize(
    "model_type", sorted(PACKABLE - NOT_SHAREABLE - set(FEW) - set(OTHER_ATTENTION))
)
def test_sharing_is_exact_for_every_architecture_on_which_it_is_on(model_type):
    assert may_share(small_model(model_type))
    of_logps, of_gradient = changes(model_type)
    assert of_logps < TOLERANCE and of_gradient < TOLERANCE


@pytest.mark.parametrize("model_type", ["mamba", *OTHER_ATTENTION[:1], *sorted(NOT_SHAREABLE)])
def test_other_models_are_left_alone(model_type):
    assert not may_share(small_model(model_type))


@pytest.mark.parametrize("model_type", sorted(NOT_SHAREABLE - {"llama4_text"}))
def test_models_that_hand_no_layout_on_would_be_wrong(model_type):
    assert changes(model_type)[0] > 0.1


def test_attention_is_wrapped_once_and_serves_others_as_before():
    changes("llama")
    wrapped = ALL_ATTENTION_FUNCTIONS["sdpa"]
    changes("llama")
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


SETTINGS = {
    "grpo": {},
    "two epochs and KL": {"num_iterations": 2, "beta": 0.1},
    "constant": {"length_norm": "constant", "scale_rewards": "none"},
    "checkpointing": {"gradient_checkpointing": True},
    "LoRA": {"extras": {"peft_config": ADAPTER}},
    "entropy bonus": {"entropy_coef": 0.1},
    "filtered": {"group_filter": "drop"},
}


@pytest.fixture
def passes(monkeypatch) -> dict[str, list]:
    """What was called: numbers of rows of shared passes, and of rows without a gradient."""
    calls: dict[str, list] = {"shared": [], "idle": []}
    shared, idle = forward_passes.forward_shared, forward_passes.without_gradient_of

    def counted_shared(forward, ids_NL, *more, **kwargs):
        calls["shared"].append(len(ids_NL))
        return shared(forward, ids_NL, *more, **kwargs)

    def counted_idle(idle_N, *more):
        calls["idle"].append(int(idle_N.sum()))
        return idle(idle_N, *more)

    monkeypatch.setattr(forward_passes, "forward_shared", counted_shared)
    monkeypatch.setattr("trl_ablate.trainer.ablation.without_gradient_of", counted_idle)
    return calls


def half_idle(completions, **_):
    """Rewards that leave every other group without a difference."""
    return [
        float(len(text) % 3) if place // 4 % 2 else 1.0 for place, text in enumerate(completions)
    ]


@pytest.mark.parametrize("name", SETTINGS)
def test_neither_sharing_nor_skipping_changes_the_training(make_trainer, passes, name):
    """SGD steps with and without agree to 5e-6 of the largest change of a weight, and so do the
    logged values."""
    ends, logs = [], []
    for on in (False, True):
        torch.manual_seed(0)  # an adapter starts with random weights
        trainer = make_trainer(
            **{**VARIED, **PLAIN_SGD, "reward": half_idle, **SETTINGS[name]},
            share_prompts=on, skip_idle_rows=on,
        )  # fmt: skip
        start = weights_of(trainer)
        trainer.train()
        assert bool(passes["shared"]) == on
        assert bool(passes["idle"]) == (on and name not in ("two epochs and KL", "entropy bonus"))
        ends.append((start, weights_of(trainer)))
        logs.append([row for row in trainer.state.log_history if "loss" in row])
    (start, plain), (same, less) = ends
    moved = (plain - start).abs().max()
    assert torch.equal(start, same) and moved > 3e-5
    assert (less - plain).abs().max() < 5e-6 * moved
    for before, after in zip(*logs, strict=True):
        for key in before.keys() - after.keys() | after.keys():
            if not key.startswith(("time/", "step_time", "memory/", "padding/", "train_")):
                assert after[key] == pytest.approx(before[key], rel=1e-4, abs=1e-6), key


def test_a_step_without_any_gradient_is_taken_as_before(make_trainer, passes):
    """The optimizer sees gradients of zero, and goes on by its momentum."""
    ends = []
    for on in (False, True):
        calls = []

        def rewards(completions, calls=calls, **_):
            calls.append(1)
            return [len(text) * (len(calls) == 1) + 0.0 for text in completions]

        trainer = make_trainer(
            **{**VARIED, "reward": rewards}, max_steps=3, learning_rate=1e-3,
            share_prompts=on, skip_idle_rows=on,
        )  # fmt: skip
        trainer.train()
        ends.append(weights_of(trainer))
        assert len(calls) == 3
    assert passes["idle"]
    torch.testing.assert_close(*ends, atol=1e-6, rtol=0)
