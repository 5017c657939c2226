"""The loss of `AblationTrainer` against closed formulas, in value and gradient.

The formulas follow the definitions and use no part of TRL's loss.
"""

import pytest
import torch

from tests.contract.formulas import (
    ACCUMULATION,
    BETA,
    CONSTANT,
    EPSILON,
    LENGTH_NORMS,
    amid_a_step,
    assert_loss_is,
    assert_same,
    gradients,
    last_logged,
    logps_of,
    mean_over,
    nearby,
    scored,
)
from trl_ablate.losses import clipped_log_ratio, loss_denominator, prompt_weights
from trl_ablate.recipe.places import SHIPPED
from trl_ablate.recipe.strict import read_mapping
from trl_ablate.settings import choices
from trl_ablate.switches import Surrogate

SURROGATES = ("clip", "no_clip", "reinforce")
LOW, HIGH = 0.2, 0.3


@pytest.fixture
def trainer_with(make_trainer):
    def make(**switches):
        settings = {"epsilon": EPSILON, "length_norm_constant": CONSTANT, **switches}
        return amid_a_step(make_trainer(**settings), ACCUMULATION)

    return make


@pytest.mark.sample(8)
@pytest.mark.parametrize("beta", [0.0, BETA])
@pytest.mark.parametrize("length_norm", LENGTH_NORMS)
@pytest.mark.parametrize("surrogate", SURROGATES)
def test_loss_and_gradient(trainer_with, batch, surrogate, length_norm, beta):
    trainer = trainer_with(surrogate=surrogate, length_norm=length_norm, beta=beta)
    old, ref = nearby(trainer.model, batch, 0.4), nearby(trainer.model, batch, 0.4, seed=8)
    batch |= {"old_per_token_logps": old, "ref_per_token_logps": ref}
    advantages = batch["advantages"][:, None]

    def formula(logps):
        ratio = torch.exp(logps - old)
        loss = -{
            "clip": torch.min(
                ratio * advantages, ratio.clamp(1 - EPSILON, 1 + EPSILON) * advantages
            ),
            "no_clip": ratio * advantages,
            "reinforce": torch.exp(logps - logps.detach()) * advantages,
        }[surrogate]
        if beta:
            loss = loss + beta * (torch.exp(ref - logps) - (ref - logps) - 1) * ratio
        return mean_over(loss, batch["completion_mask"], length_norm)

    assert_loss_is(trainer, batch, formula)


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


def geometric_terms(logps, old, sampling, advantages, mask):
    """-A times the geometric mean of the clipped ratios of the response."""
    difference = logps - old
    high, low = torch.tensor(1 + HIGH).log(), torch.tensor(1 - LOW).log()
    clipped = torch.where(
        advantages > 0, torch.minimum(difference, high), torch.maximum(difference, low)
    )
    geometric = torch.exp((clipped * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True))
    return -geometric * advantages, clipped != difference


OF_TOKENS = {
    "probability": (probability_terms, {"epsilon": 0.001, "epsilon_high": 0.003}),
    "one_sided": (one_sided_terms, {}),
    "geometric": (geometric_terms, {"epsilon": LOW, "epsilon_high": HIGH}),
}


@pytest.mark.sample(9)
@pytest.mark.parametrize("sampled", [False, True], ids=["old policy", "sampler"])
@pytest.mark.parametrize("length_norm", LENGTH_NORMS)
@pytest.mark.parametrize("surrogate", OF_TOKENS)
def test_surrogates_with_a_weight_for_each_token(
    trainer_with, batch, surrogate, length_norm, sampled
):
    """And the share of tokens that they hold, which is logged."""
    terms_of, bounds = OF_TOKENS[surrogate]
    trainer = trainer_with(surrogate=surrogate, length_norm=length_norm, **bounds)
    mask, advantages = batch["completion_mask"], batch["advantages"][:, None]
    old, other = nearby(trainer.model, batch, -0.4), nearby(trainer.model, batch, 0.4, seed=5)
    other[0, 0] = torch.nan  # an engine did not report it
    batch["old_per_token_logps"] = old
    if sampled and surrogate != "geometric":
        batch["sampling_per_token_logps"] = other
    anchor = torch.where(other.isnan(), old, other) if sampled else old

    def formula(logps):
        terms, _ = terms_of(logps, old, anchor, advantages, mask)
        return mean_over(terms, mask, length_norm)

    assert_loss_is(trainer, batch, formula)
    _, held = terms_of(logps_of(trainer.model, batch), old, anchor, advantages, mask)
    share = ((held * mask).sum() / mask.sum()).item()
    assert last_logged(trainer)["clip_fraction"] == pytest.approx(share)
    assert 0 < share < 1


@pytest.mark.parametrize("surrogate", choices(Surrogate))
def test_the_off_policy_mask(trainer_with, batch, surrogate):
    """A row with A < 0 whose mean log(old/new) is above the threshold counts as if A were 0."""
    settings = {"surrogate": surrogate, "length_norm": "mean"}
    with_mask = trainer_with(off_policy_mask_threshold=0.1, **settings)
    without = trainer_with(**settings)
    shift = torch.tensor([0.2, 0.2, 0.05, 0.05])[:, None]
    batch["old_per_token_logps"] = nearby(without.model, batch, 0.0) + shift
    ours = gradients(with_mask._compute_loss(with_mask.model, batch), with_mask.model)
    batch["advantages"] = torch.tensor([1.3, 0.0, 0.4, -1.1])
    assert_same(ours, gradients(without._compute_loss(without.model, batch), without.model))


def test_on_policy_surrogates_have_one_gradient(trainer_with, batch):
    trainers = [trainer_with(surrogate=one, length_norm="mean") for one in SURROGATES]
    first, *others = [gradients(one._compute_loss(one.model, batch), one.model) for one in trainers]
    for other in others:
        assert_same(other, first)


def test_length_norm_constant_defaults_to_max_completion_length(make_trainer, batch):
    losses = []
    for constant in (None, 12.0):  # the fixture's max_completion_length
        trainer = make_trainer(length_norm="constant", length_norm_constant=constant)
        trainer.current_gradient_accumulation_steps = 1
        losses.append(trainer._compute_loss(trainer.model, batch).item())
    assert losses[0] == losses[1]


@pytest.mark.parametrize(("surrogate", "clipped"), [("clip", 8 / 18), ("no_clip", 0)])
def test_ratio_metrics_are_logged_over_response_tokens(trainer_with, batch, surrogate, clipped):
    """Of 18 tokens, the 8 of the first row (A > 0) have the ratio e^0.5: all clipped."""
    trainer = trainer_with(surrogate=surrogate, length_norm="mean")
    shift = torch.zeros(4, 8)
    shift[0] = 0.5
    batch["old_per_token_logps"] = nearby(trainer.model, batch, 0.0) - shift
    trainer._compute_loss(trainer.model, batch)
    row = last_logged(trainer)
    assert row["clip_fraction"] == pytest.approx(clipped)
    assert row["mean_ratio"] == pytest.approx((8 * 2.718281828**0.5 + 10) / 18, rel=1e-4)


# Advantages and weights of rows, from two groups of two with 8 and 3, and with 1 and 6 tokens


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
def test_advantages_in_the_loss(make_trainer, batch, switch, advantages):
    settings = {"scale_rewards": "none", "length_norm": "token", "num_generations": 2, **switch}
    trainer = amid_a_step(make_trainer(**settings))
    mask = batch["completion_mask"]

    def formula(logps):
        terms = -torch.tensor(advantages)[:, None] * torch.exp(logps - logps.detach()) * mask
        return terms.sum() / loss_denominator(mask, "token")

    ready = trainer.with_advantages(scored(batch, [1.0, 0.0, 1.0, 0.5]))
    assert_loss_is(trainer, ready, formula)


@pytest.mark.parametrize("group_filter", ["none", "drop"])
@pytest.mark.parametrize("loss_type", ["dapo", "cispo"])
def test_the_mean_over_prompts(make_trainer, batch, loss_type, group_filter):
    """A mean over each group's tokens, then over the groups that count."""
    settings = {"length_norm": "prompt", "loss_type": loss_type, "scale_rewards": "none"}
    settings |= {"num_generations": 2, "group_filter": group_filter, "epsilon_high": 5.0}
    trainer = amid_a_step(make_trainer(**settings))
    last = 1.0 if group_filter == "drop" else 0.5
    advantages = torch.tensor([0.5, -0.5, 0.25, -0.25])[:, None]
    mask = batch["completion_mask"]

    def formula(logps):
        ratio = torch.exp(logps - logps.detach())
        losses = -advantages * (logps if loss_type == "cispo" else ratio) * mask
        groups = [losses[:2].sum() / 11, losses[2:].sum() / 7]  # 8 + 3 and 1 + 6 tokens
        return groups[0] if group_filter == "drop" else sum(groups) / 2

    ready = trainer.with_advantages(scored(batch, [1.0, 0.0, 1.0, last]))
    assert_loss_is(trainer, ready, formula)


def test_the_recipe_gpg_is_the_formula_of_gpg(make_trainer, batch):
    """B/(B-M) · 1/B Σ_g 1/Σ|o| Σ_i Σ_t -log π · (r - mean), with F_norm 1; here B = 2, M = 1."""
    declared = read_mapping(SHIPPED / "gpg.yaml", "recipe")
    switches = {name: value for name, value in declared.items() if name != "extends"}
    trainer = amid_a_step(make_trainer(num_generations=2, **switches))
    ready = trainer.with_advantages(scored(batch, [1.0, 0.0, 1.0, 1.0]))
    ours = gradients(trainer._compute_loss(trainer.model, ready), trainer.model)
    mask = batch["completion_mask"]
    terms = -logps_of(trainer.model, batch) * torch.tensor([[0.5], [-0.5], [0], [0]]) * mask
    groups = [terms[:2].sum() / mask[:2].sum(), terms[2:].sum() / mask[2:].sum()]
    alpha = 2 / (2 - 1)
    assert_same(ours, gradients(alpha * sum(groups) / 2, trainer.model))


def test_the_weight_of_a_prompt_by_hand():
    # tokens 8 + 4, 2 + 1, 0 + 0; with all kept: 15 / 3 = 5, so 5/12, 5/3 and 0
    tokens = torch.tensor([[8, 4], [2, 1], [0, 0]])
    kept = torch.ones(3, dtype=torch.bool)
    assert prompt_weights(tokens, kept).tolist() == pytest.approx([5 / 12, 5 / 3, 0])
    # without the first: 3 / 2
    kept = torch.tensor([False, True, True])
    assert prompt_weights(tokens, kept).tolist() == pytest.approx([0, 0.5, 0])
    assert prompt_weights(tokens, ~kept & kept).tolist() == [0, 0, 0]
    assert prompt_weights(torch.full((3, 4), 7), torch.ones(3).bool()).tolist() == [1, 1, 1]


def test_an_epsilon_of_one_holds_no_token_below():
    ratio, advantage = torch.tensor([[-50.0]]), torch.tensor([[-1.0]])
    assert clipped_log_ratio(ratio, advantage, 1.0, HIGH).item() == -50.0
