"""Switches that give a completion or a token its weight, in loss and gradient."""

import pytest
import torch

from tests.contract.test_loss import (  # noqa: F401
    assert_same,
    batch,
    gradients,
    logps_of,
)
from trl_ablate.losses import loss_denominator
from trl_ablate.trainer.groups import Scored, with_advantages

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
    ours = trainer._compute_loss(trainer.model, with_advantages(trainer, found))
    our_gradient = gradients(ours, trainer.model)

    logps, mask = logps_of(trainer.model, batch), batch["completion_mask"]
    terms = -torch.tensor(advantages)[:, None] * torch.exp(logps - logps.detach()) * mask
    theirs = terms.sum() / loss_denominator(mask, "token")
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5, abs=1e-7)
    assert_same(our_gradient, gradients(theirs, trainer.model))
