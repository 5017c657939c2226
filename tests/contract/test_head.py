"""The LM head computes response tokens only, and split microbatches have the same gradient."""

from dataclasses import replace

import pytest
import torch
from trl.trainer import utils as trl_utils

STOPS = {"stop": ["1", "2", "a", "e"], "max_completion_length": 40}
"""Makes the random model end its completions at different lengths."""
VARIED = {**STOPS, "gradient_accumulation_steps": 4}
PLAIN_SGD = {"optim": "sgd", "learning_rate": 1.0, "max_steps": 2, "max_grad_norm": 1e9}
AS_DRAWN = {"trim_microbatches": False, "regroup_by_length": False}


@pytest.fixture
def positions(monkeypatch):
    """The positions of each call of TRL's head."""
    seen = []
    head = trl_utils._ChunkedLogProbFunction

    class Counted:
        @staticmethod
        def apply(hidden, *more):
            seen.append(len(hidden))
            return head.apply(hidden, *more)

    monkeypatch.setattr(trl_utils, "_ChunkedLogProbFunction", Counted)
    return seen


def weights_of(trainer) -> torch.Tensor:
    return torch.cat([one.detach().flatten() for one in trainer.model.parameters()])


def response_tokens(trainer) -> int:
    return sum(int(batch["completion_mask"].sum()) for batch in trainer._buffered_inputs)


def test_the_head_computes_response_tokens_only(make_trainer, positions):
    trainer = make_trainer(**VARIED, max_steps=1)
    trainer.train()
    tokens = response_tokens(trainer)
    assert sum(positions) == tokens
    positions.clear()
    padded = make_trainer(**VARIED, **AS_DRAWN, max_steps=1)
    padded.train()
    assert response_tokens(padded) == tokens
    assert sum(positions) > 1.5 * tokens


@pytest.mark.parametrize("settings", [{}, {"num_iterations": 2, "beta": 0.1}], ids=str)
def test_splitting_microbatches_changes_no_gradient(make_trainer, positions, settings):
    """Two SGD steps with and without agree to 2e-6 of the largest weight change."""
    plain = make_trainer(**VARIED, **PLAIN_SGD, **AS_DRAWN, **settings)
    start = weights_of(plain)
    plain.train()
    passes = len(positions)
    split = make_trainer(**VARIED, **PLAIN_SGD, **settings)
    split._passes = replace(split._passes, least_saved=1, shares=False)
    split.train()
    assert len(positions) > 2 * passes + 4
    moved = (weights_of(plain) - start).abs().max()
    assert moved > 1e-3
    assert (weights_of(split) - weights_of(plain)).abs().max() < 2e-6 * max(1.0, moved)


def test_rows_without_a_response_have_results_of_zero(make_trainer):
    """A microbatch whose rows are all masked still has a gradient, of zero."""
    trainer = make_trainer(max_steps=1)
    ids = torch.randint(3, 20, (3, 9))
    mask = torch.ones_like(ids)
    mask[:, 5:] = 0
    logps, entropies, _ = trainer._get_per_token_logps_and_entropies(
        trainer.model, ids, mask, 4, compute_entropy=True
    )
    assert logps.shape == entropies.shape == (3, 4)
    assert not logps.any() and not entropies.any()
    logps.sum().backward()
    assert not any(one.grad.any() for one in trainer.model.parameters() if one.grad is not None)
