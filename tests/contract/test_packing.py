"""Packed rows: which models keep their log-probabilities, and the gradient of a training step."""

import pytest
import torch
from peft import LoraConfig

from tests.contract.test_architectures import FEW, TOLERANCE, forward_of, rows, saved, small_model
from tests.contract.test_head import PLAIN_SGD, VARIED, weights_of
from trl_ablate import ConfigurationError
from trl_ablate.trainer import forward_passes
from trl_ablate.trainer.architectures import PACKABLE, RELATIVE
from trl_ablate.trainer.forward_passes import Passes, forward_packed

PROMPTS, COMPLETIONS = (6, 3, 2, 4), (4, 7, 0, 2)
ADAPTER = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
PADDED = "padding/fraction"


def largest_change(model) -> float:
    """Of a log-probability, between rows one by one and rows packed two by two. One row has no
    response."""
    (ids, mask), forward = rows(PROMPTS, COMPLETIONS), forward_of(model)
    width = max(COMPLETIONS)
    with torch.no_grad():
        packed, nothing = Passes(packs=True)(forward, ids, mask, width, rows_at_once=2)
        expected = torch.zeros_like(packed)
        for row, count in enumerate(COMPLETIONS):
            alone = ids[row][mask[row].bool()][None]
            if count:
                expected[row, :count] = forward(alone, torch.ones_like(alone), count)[0][0]
    assert nothing is None
    return (packed - expected).abs().max().item()


@pytest.fixture
def packed_calls(monkeypatch) -> list[int]:
    """The number of rows of each call."""
    calls: list[int] = []

    def counted(forward, ids_NL, *more):
        calls.append(len(ids_NL))
        return forward_packed(forward, ids_NL, *more)

    monkeypatch.setattr(forward_passes, "forward_packed", counted)
    return calls


def test_packed_models_may_be_moved_left():
    assert PACKABLE < RELATIVE


@pytest.mark.parametrize("model_type", [name for name in FEW if name in PACKABLE])
def test_packing_is_exact(model_type):
    assert largest_change(small_model(model_type)) < TOLERANCE


@pytest.mark.slow
@pytest.mark.sample(6)
@pytest.mark.parametrize("model_type", sorted(PACKABLE - set(FEW)))
def test_packing_is_exact_for_every_architecture_that_is_listed(model_type):
    assert largest_change(small_model(model_type)) < TOLERANCE


@pytest.mark.parametrize("model_type", ["mamba", "opt", "bloom"])
def test_models_that_would_see_other_rows_are_not_listed(model_type):
    assert model_type not in PACKABLE
    assert largest_change(small_model(model_type)) > 0.1


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_iterations": 2, "beta": 0.1},
        {"length_norm": "constant", "scale_rewards": "none"},
        {"gradient_checkpointing": True},
        {"extras": {"peft_config": ADAPTER}},
    ],
    ids=["grpo", "two epochs and KL", "constant", "checkpointing", "LoRA"],
)
def test_packing_changes_no_gradient(make_trainer, packed_calls, settings):
    """SGD steps with and without agree to 5e-6 of the largest change of a weight."""
    ends = []
    for packed in (False, True):
        torch.manual_seed(0)  # an adapter starts with random weights
        how = {"padding_free": packed, "share_prompts": False}
        trainer = make_trainer(**VARIED, **PLAIN_SGD, **how, **settings)
        start = weights_of(trainer)
        trainer.train()
        assert bool(packed_calls) == packed
        logged = [row for row in trainer.state.log_history if PADDED in row]
        assert logged and all((row[PADDED] == 0.0) == packed for row in logged)
        ends.append((start, weights_of(trainer)))
    (start, padded), (same, packed) = ends
    moved = (padded - start).abs().max()
    assert torch.equal(start, same) and moved > 1e-4
    assert (packed - padded).abs().max() < 5e-6 * moved


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"trim_microbatches": False}, "set trim_microbatches: true"),
        ({"model": "gpt2"}, "an unknown model type"),
        ({"model": "opt"}, "not tested with model type 'opt', whose rows may see each other"),
    ],
)
def test_it_is_refused_where_rows_are_padded_or_not_told_apart(
    make_trainer, tiny_model, tmp_path, settings, complaint
):
    if "model" in settings:
        settings = {"model": saved(small_model(settings["model"]), tiny_model, tmp_path / "m")}
    with pytest.raises(ConfigurationError, match=complaint):
        make_trainer(padding_free=True, **settings)
