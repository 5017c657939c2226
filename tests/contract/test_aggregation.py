"""The mean over prompts and the geometric mean of ratios, in loss and gradient."""

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
from trl_ablate import AblationConfig, ConfigurationError
from trl_ablate.losses import clipped_log_ratio, loss_denominator, prompt_weights
from trl_ablate.recipe.places import SHIPPED
from trl_ablate.recipe.strict import read_mapping
from trl_ablate.trainer.groups import Scored

LOW, HIGH = 0.2, 0.3


def test_the_weight_of_a_prompt_by_hand():
    # tokens 8 + 4, 2 + 1, 0 + 0; with all kept: 15 / 3 = 5, so 5/12, 5/3 and 0
    tokens = torch.tensor([[8, 4], [2, 1], [0, 0]])
    kept = torch.ones(3, dtype=torch.bool)
    assert prompt_weights(tokens, kept).tolist() == pytest.approx([5 / 12, 5 / 3, 0])
    # without the first: 3 / 2
    kept = torch.tensor([False, True, True])
    assert prompt_weights(tokens, kept).tolist() == pytest.approx([0, 0.5, 0])
    assert prompt_weights(tokens, ~kept & kept).tolist() == [0, 0, 0]


def test_equal_groups_weigh_as_without():
    assert prompt_weights(torch.full((3, 4), 7), torch.ones(3).bool()).tolist() == [1, 1, 1]


@pytest.mark.parametrize("group_filter", ["none", "drop"])
@pytest.mark.parametrize("loss_type", ["dapo", "cispo"])
def test_the_mean_over_prompts(make_trainer, batch, loss_type, group_filter):  # noqa: F811
    """Loss and gradient: a mean over each group's tokens, then over the groups that count."""
    trainer = make_trainer(
        length_norm="prompt", loss_type=loss_type, scale_rewards="none", num_generations=2,
        group_filter=group_filter, epsilon_high=5.0,
    )  # fmt: skip
    trainer.current_gradient_accumulation_steps = 1
    trainer.args.steps_per_generation = 1
    trainer.model.train()
    batch["num_items_in_batch"] = torch.tensor(18)
    same = torch.tensor([1.0, 0.0, 1.0, 1.0])
    differ = torch.tensor([1.0, 0.0, 1.0, 0.5])
    outcomes = same if group_filter == "drop" else differ
    found = Scored(batch, outcomes, None, torch.zeros(4).bool(), None, 4, 18)
    ready = trainer.with_advantages(found)
    ours = trainer._compute_loss(trainer.model, ready)
    our_gradient = gradients(ours, trainer.model)

    logps, mask = logps_of(trainer.model, batch), batch["completion_mask"]
    advantages = torch.tensor([0.5, -0.5, 0.25, -0.25])[:, None]
    ratio = torch.exp(logps - logps.detach())
    losses = -advantages * (logps if loss_type == "cispo" else ratio) * mask
    groups = [losses[:2].sum() / 11, losses[2:].sum() / 7]  # 8 + 3 and 1 + 6 tokens
    theirs = groups[0] if group_filter == "drop" else sum(groups) / 2
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5, abs=1e-7)
    assert_same(our_gradient, gradients(theirs, trainer.model))


def test_the_recipe_gpg_is_the_formula_of_gpg(make_trainer, batch):  # noqa: F811
    """B/(B-M) · 1/B Σ_g 1/Σ|o| Σ_i Σ_t -log π · (r - mean), with F_norm 1; here B = 2, M = 1."""
    declared = read_mapping(SHIPPED / "gpg.yaml", "recipe")
    switches = {name: value for name, value in declared.items() if name != "extends"}
    trainer = make_trainer(num_generations=2, **switches)
    trainer.current_gradient_accumulation_steps = 1
    trainer.args.steps_per_generation = 1
    trainer.model.train()
    found = Scored(batch, torch.tensor([1.0, 0.0, 1.0, 1.0]), None, torch.zeros(4).bool(), None,
                   4, 18)  # fmt: skip
    ours = trainer._compute_loss(trainer.model, trainer.with_advantages(found))
    our_gradient = gradients(ours, trainer.model)

    mask = batch["completion_mask"]
    terms = -logps_of(trainer.model, batch) * torch.tensor([[0.5], [-0.5], [0], [0]]) * mask
    groups = [terms[:2].sum() / mask[:2].sum(), terms[2:].sum() / mask[2:].sum()]
    alpha = 2 / (2 - 1)
    assert_same(our_gradient, gradients(alpha * sum(groups) / 2, trainer.model))


@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "dr_grpo", "sapo", "luspo"])
def test_a_mean_over_prompts_is_built_on_one_over_tokens(loss_type):
    with pytest.raises(ConfigurationError, match="built on loss_type 'dapo'"):
        AblationConfig(output_dir="unused", use_cpu=True, bf16=False,
                       length_norm="prompt", loss_type=loss_type)  # fmt: skip


@pytest.mark.parametrize(
    ("log_ratio", "advantage", "expected"),
    [
        (0.5, 1.0, 0.262364),  # log 1.3
        (-0.5, 1.0, -0.5),  # where A > 0, a small ratio is not held
        (0.5, -1.0, 0.5),
        (-0.5, -1.0, -0.223144),  # log 0.8
        (0.1, 1.0, 0.1),
    ],
)
def test_the_clip_of_each_token(log_ratio, advantage, expected):
    got = clipped_log_ratio(torch.tensor([[log_ratio]]), torch.tensor([[advantage]]), LOW, HIGH)
    assert got.item() == pytest.approx(expected, abs=1e-6)


def test_an_epsilon_of_one_holds_nothing_below():
    got = clipped_log_ratio(torch.tensor([[-50.0]]), torch.tensor([[-1.0]]), 1.0, HIGH)
    assert got.item() == -50


@pytest.mark.parametrize("length_norm", LENGTH_NORMS)
def test_the_geometric_mean_of_clipped_ratios(make_trainer, batch, length_norm):  # noqa: F811
    trainer = make_trainer(
        surrogate="geometric", length_norm=length_norm, epsilon=LOW, epsilon_high=HIGH,
        length_norm_constant=CONSTANT,
    )  # fmt: skip
    trainer.current_gradient_accumulation_steps = ACCUMULATION
    old, ours, our_gradient = with_other_logps(trainer, batch, "old_per_token_logps", 0.4)

    mask, advantages = batch["completion_mask"], batch["advantages"][:, None]
    difference = logps_of(trainer.model, batch) - old
    high, low = torch.tensor(1 + HIGH).log(), torch.tensor(1 - LOW).log()
    clipped = torch.where(
        advantages > 0, torch.minimum(difference, high), torch.maximum(difference, low)
    )
    geometric = torch.exp((clipped * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True))
    divisor = loss_denominator(mask, length_norm, constant=CONSTANT, num_items=37)
    accumulation = 1 if length_norm == "token" else ACCUMULATION
    theirs = ((-geometric * advantages * mask).sum(1) / divisor).sum() / accumulation
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5, abs=1e-7)
    assert_same(our_gradient, gradients(theirs, trainer.model))
    trainer.log({})
    held = ((clipped != difference) * mask).sum() / mask.sum()
    assert trainer.state.log_history[-1]["clip_fraction"] == pytest.approx(held.item())
    assert 0 < held < 1
    assert trainer.importance_sampling_level == "token"
