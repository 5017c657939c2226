"""Switches that give a completion or a token its weight, in loss and gradient."""

import pytest
import torch

from tests.contract.test_loss import (  # noqa: F401
    ACCUMULATION,
    CONSTANT,
    LENGTH_NORMS,
    assert_same,
    batch,
    gradients,
    logps_of,
    with_other_logps,
)
from trl_ablate.losses import loss_denominator
from trl_ablate.trainer.groups import Scored

OUTCOMES = [1.0, 0.0, 1.0, 0.5]
"""Of two groups of two responses, with 8 and 3, and with 1 and 6 tokens."""


@pytest.mark.parametrize(
    ("switch", "advantages"),
    [
        # 8/11, and (1 + 3) / 7
        ({"baseline": "group_token_mean"}, [3 / 11, -8 / 11, 3 / 7, -1 / 14]),
        ({"baseline": "best_of_others"}, [1, 0, 0.5, 0]),
        # pass rates 1/2 and 3/4
        ({"hard_group_exponent": 2.0}, [0.5 / 4, -0.5 / 4, 0.25 / 16, -0.25 / 16]),
    ],
    ids=str,
)
def test_advantages_in_the_loss(make_trainer, batch, switch, advantages):  # noqa: F811
    trainer = make_trainer(
        scale_rewards="none", length_norm="token", num_generations=2, **switch
    )  # fmt: skip
    trainer.current_gradient_accumulation_steps = 1
    trainer.args.steps_per_generation = 1
    trainer.model.train()
    batch["num_items_in_batch"] = torch.tensor(18)
    found = Scored(batch, torch.tensor(OUTCOMES), None, torch.zeros(4).bool(), None, 4, 18)
    ours = trainer._compute_loss(trainer.model, trainer.with_advantages(found))
    our_gradient = gradients(ours, trainer.model)

    logps, mask = logps_of(trainer.model, batch), batch["completion_mask"]
    terms = -torch.tensor(advantages)[:, None] * torch.exp(logps - logps.detach()) * mask
    theirs = terms.sum() / loss_denominator(mask, "token")
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5, abs=1e-7)
    assert_same(our_gradient, gradients(theirs, trainer.model))


def probability_terms(logps, old, sampling, advantages, mask):
    """-rA, but 0 where π - μ is above 0.003 and A > 0, or below -0.001 and A < 0."""
    moved = logps.detach().exp() - sampling.exp()
    masked = torch.where(advantages > 0, moved > 0.003, moved < -0.001)
    return -torch.exp(logps - old) * advantages * ~masked, masked


def one_sided_terms(logps, old, sampling, advantages, mask):
    """-A log π, where A < 0 times the ratio of the whole response, at most 1."""
    log_ratio = ((logps.detach() - old) * mask).sum(1, keepdim=True)
    weight = torch.where(advantages < 0, log_ratio.exp().clamp(max=1), 1)
    return -weight * advantages * torch.exp(logps - logps.detach()), weight < 1


OF_TOKENS = {
    "probability": (probability_terms, {"epsilon": 0.001, "epsilon_high": 0.003}),
    "one_sided": (one_sided_terms, {}),
}


@pytest.mark.parametrize("sampled", [False, True], ids=["old policy", "sampler"])
@pytest.mark.parametrize("length_norm", LENGTH_NORMS)
@pytest.mark.parametrize("surrogate", OF_TOKENS)
def test_surrogates_with_a_weight_for_each_token(
    make_trainer,
    batch,  # noqa: F811
    surrogate,
    length_norm,
    sampled,
):
    terms_of, bounds = OF_TOKENS[surrogate]
    trainer = make_trainer(
        surrogate=surrogate, length_norm=length_norm, length_norm_constant=CONSTANT, **bounds
    )
    trainer.current_gradient_accumulation_steps = ACCUMULATION
    with torch.no_grad():
        now = logps_of(trainer.model, batch)
    other = now + 0.4 * torch.randn(4, 8, generator=torch.Generator().manual_seed(5))
    other[0, 0] = torch.nan  # an engine did not report it
    sampling = {"sampling_per_token_logps": other} if sampled else {}
    old, ours, our_gradient = with_other_logps(
        trainer, {**batch, **sampling}, "old_per_token_logps", -0.4
    )
    mask, advantages = batch["completion_mask"], batch["advantages"][:, None]
    anchor = torch.where(other.isnan(), old, other) if sampled else old
    terms, masked = terms_of(logps_of(trainer.model, batch), old, anchor, advantages, mask)
    divisor = loss_denominator(mask, length_norm, constant=CONSTANT, num_items=37)
    accumulation = 1 if length_norm == "token" else ACCUMULATION
    theirs = ((terms * mask).sum(1) / divisor).sum() / accumulation
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5, abs=1e-7)
    assert_same(our_gradient, gradients(theirs, trainer.model))
    trainer.log({})
    share = ((masked * mask).sum() / mask.sum()).item()
    assert trainer.state.log_history[-1]["clip_fraction"] == pytest.approx(share)
    assert 0 < share < 1
