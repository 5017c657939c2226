"""A knob must be reported as inert if and only if changing it does not change the gradient.

For every loss type, on-policy and off-policy.
"""

import pytest
import torch
from trl import ModelConfig

from trl_ablate.recipe.inert import inert_knobs
from trl_ablate.settings import choices
from trl_ablate.switches import LossType
from trl_ablate.task import TaskArguments

LOSS_TYPES = choices(LossType)
POLICIES = {"on-policy": {"num_iterations": 1}, "off-policy": {"num_iterations": 2}}
CLIPS = {"epsilon": 0.2, "epsilon_high": 0.3, "delta": 1.5}
OTHER = {"epsilon": 0.8, "epsilon_high": 3.0, "delta": 5.0}
OWN = {
    "sapo_temperature_pos": 2.0,
    "sapo_temperature_neg": 2.0,
    "vespo_k_pos": 1.0,
    "vespo_k_neg": 1.0,
    "vespo_lambda_pos": 1.0,
    "vespo_lambda_neg": 1.0,
}
"""Other values than TRL's of the knobs that one loss type has alone."""


def off_policy_batch(model) -> dict[str, torch.Tensor]:
    """One microbatch whose ratios go from about e^-2 to e^2."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(5, 200, (4, 13), generator=generator)
    with torch.no_grad():
        logps = torch.log_softmax(model(input_ids=ids).logits[:, 4:-1], -1)
    return {
        "prompt_ids": ids[:, :5],
        "prompt_mask": torch.ones(4, 5, dtype=torch.long),
        "completion_ids": ids[:, 5:],
        "completion_mask": (torch.arange(8) < torch.tensor([8, 3, 1, 6])[:, None]).long(),
        "advantages": torch.tensor([1.3, -0.7, 0.4, -1.1]),
        "num_items_in_batch": torch.tensor(37),
        "old_per_token_logps": logps.gather(2, ids[:, 5:, None]).squeeze(2)
        - torch.randn(4, 8, generator=generator),
    }


def gradient(trainer, **changes) -> torch.Tensor:
    """The gradient with some settings changed; TRL's copies of the bounds are updated too."""
    for knob, value in changes.items():
        setattr(trainer.args, knob, value)
    low, high = trainer.args.epsilon, trainer.args.epsilon_high
    trainer.epsilon_low, trainer.epsilon_high = low, low if high is None else high
    batch = off_policy_batch(trainer.model)
    if trainer.args.on_policy:
        del batch["old_per_token_logps"]
    trainer.model.zero_grad()
    trainer._compute_loss(trainer.model, batch).backward()
    return torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None])


CASES = [
    *(({"loss_type": loss_type, **CLIPS}, OTHER) for loss_type in LOSS_TYPES),
    # where epsilon is both bounds
    *(({"loss_type": loss_type, "epsilon": 0.2}, {"epsilon": 0.8})
      for loss_type in ("grpo", "cispo", "sapo")),
    # a delta below one cuts at ratio one, too
    ({"loss_type": "grpo", **CLIPS, "delta": 0.8}, {"delta": 1.5}),
    *(({"loss_type": loss_type}, OWN) for loss_type in ("sapo", "vespo")),
    *(({"loss_type": loss_type, "surrogate": surrogate, "epsilon": 0.2, "epsilon_high": 0.3},
       {"epsilon": 0.8, "epsilon_high": 3.0, "surrogate": "clip"})
      for loss_type in ("grpo", "luspo") for surrogate in ("no_clip", "reinforce", "one_sided")),
    *(({"loss_type": "grpo", "surrogate": "geometric", "top_entropy_quantile": share},
       {"surrogate": "clip"}) for share in (1.0, 0.2)),
]  # fmt: skip
"""Settings, and other values of some."""


@pytest.mark.sample(18)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("settings", "changes"), CASES)
def test_a_knob_is_inert_if_and_only_if_the_gradient_stays(make_trainer, settings, changes, policy):
    settings = {**settings, **POLICIES[policy]}
    trainer = make_trainer(**settings)
    trainer.current_gradient_accumulation_steps = 2
    trainer.model.train()
    inert = inert_knobs(trainer.args, TaskArguments(), ModelConfig(), changes)
    before = gradient(trainer)
    for knob, value in changes.items():
        given = getattr(trainer.args, knob)
        after = gradient(trainer, **{knob: value})
        stays = (after - before).abs().max().item() < 1e-6 * before.abs().max().item()
        assert (knob in inert) is stays, (knob, settings)
        assert torch.equal(gradient(trainer, **{knob: given}), before)
