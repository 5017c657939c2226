"""A knob must be reported as inert if and only if changing it does not change the gradient.

For every loss type, on-policy and off-policy.
"""

import pytest
import torch
from trl import ModelConfig

from tests.contract.formulas import amid_a_step, gradients, nearby
from trl_ablate.recipe.inert import inert_knobs
from trl_ablate.settings import choices
from trl_ablate.switches import LossType, Surrogate
from trl_ablate.task import TaskArguments

LOSS_TYPES = choices(LossType)
POLICIES = {"on-policy": {"num_iterations": 1}, "off-policy": {"num_iterations": 2}}
CLIPS = {"epsilon": 0.2, "epsilon_high": 0.3, "delta": 1.5}
OTHER = {"epsilon": 0.8, "epsilon_high": 3.0, "delta": 5.0}
OWN = {
    "sapo_temperature_pos": 2.0, "sapo_temperature_neg": 2.0, "vespo_k_pos": 1.0,
    "vespo_k_neg": 1.0, "vespo_lambda_pos": 1.0, "vespo_lambda_neg": 1.0,
}  # fmt: skip
"""Other values than TRL's of the knobs that one loss type has alone."""
LEVEL = {"importance_sampling_level": "sequence"}
KL_TIMES_RATIO = {"beta": 0.5, "use_bias_correction_kl": True}


def gradient(trainer, batch, **changes) -> torch.Tensor:
    """The gradient with some settings changed; TRL's copies of the bounds are updated too. Off-
    policy, the ratios go from about e^-2 to e^2."""
    for knob, value in changes.items():
        setattr(trainer.args, knob, value)
    low, high = trainer.args.epsilon, trainer.args.epsilon_high
    trainer.importance_sampling_level = trainer.args.importance_sampling_level
    trainer.epsilon_low, trainer.epsilon_high = low, low if high is None else high
    if not trainer.args.on_policy:
        batch = {**batch, "old_per_token_logps": nearby(trainer.model, batch, 1.0)}
    if trainer.args.beta:
        batch = {**batch, "ref_per_token_logps": nearby(trainer.model, batch, 0.5)}
    return gradients(trainer._compute_loss(trainer.model, batch), trainer.model)


CASES = [
    *(({"loss_type": loss_type, **CLIPS}, OTHER) for loss_type in LOSS_TYPES),
    # where epsilon is both bounds
    *(({"loss_type": loss_type, "epsilon": 0.2}, {"epsilon": 0.8})
      for loss_type in ("grpo", "cispo", "sapo")),
    # a delta below one cuts at ratio one, too
    ({"loss_type": "grpo", **CLIPS, "delta": 0.8}, {"delta": 1.5}),
    *(({"loss_type": loss_type, "top_entropy_quantile": share, "epsilon_high": 5.0}, LEVEL)
      for loss_type in LOSS_TYPES for share in (1.0, 0.2)),
    *(({"loss_type": "grpo", "surrogate": surrogate, "top_entropy_quantile": 0.2}, LEVEL)
      for surrogate in choices(Surrogate)),
    *(({"loss_type": loss_type, **KL_TIMES_RATIO}, LEVEL) for loss_type in LOSS_TYPES),
    *(({"loss_type": "grpo", "surrogate": surrogate, **KL_TIMES_RATIO}, LEVEL)
      for surrogate in choices(Surrogate)),
    *(({"loss_type": loss_type}, OWN) for loss_type in ("sapo", "vespo")),
    *(({"loss_type": loss_type, "surrogate": surrogate, "epsilon": 0.2, "epsilon_high": 0.3},
       {"epsilon": 0.8, "epsilon_high": 3.0, "surrogate": "clip"})
      for loss_type in ("grpo", "luspo") for surrogate in ("no_clip", "reinforce", "one_sided")),
    *(({"loss_type": "grpo", "surrogate": "geometric", "top_entropy_quantile": share},
       {"surrogate": "clip"}) for share in (1.0, 0.2)),
]  # fmt: skip
"""Settings, and other values of some."""


@pytest.mark.sample(10)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("settings", "changes"), CASES)
def test_a_knob_is_inert_if_and_only_if_the_gradient_stays(
    make_trainer, batch, settings, changes, policy
):
    settings = {**settings, **POLICIES[policy]}
    trainer = amid_a_step(make_trainer(**settings), accumulation=2)
    inert = inert_knobs(trainer.args, TaskArguments(), ModelConfig(), changes)
    before = gradient(trainer, batch)
    for knob, value in changes.items():
        given = getattr(trainer.args, knob)
        after = gradient(trainer, batch, **{knob: value})
        stays = (after - before).abs().max().item() < 1e-6 * before.abs().max().item()
        assert (knob in inert) is stays, (knob, settings)
        assert torch.equal(gradient(trainer, batch, **{knob: given}), before)
