"""Statistics of the ratio, and degenerate cases. The formulas of the loss, in value and gradient,
are in `contract/test_loss`."""

import math

import pytest
import torch

from trl_ablate.losses import (
    NO_CLIP,
    changed_by_clipping,
    changed_by_weight,
    clipped_log_ratio,
    highest_covariance,
    kl_to_reference,
    loss_denominator,
    prompt_weights,
    ratio_means,
    ratio_sums,
    sapo_weight,
    token_ratio,
    within_sampler_gap,
)

RANGE = (0.2, 0.2)


@pytest.mark.parametrize(
    ("ratios", "advantages", "mask", "bounds", "mean", "clipped"),
    [
        # clipped are 1.5 under A > 0 and 0.5 under A < 0, that is 2 of 6 tokens
        ([[1.5, 0.5]] * 3, [1, -1, 0], [[1, 1]] * 3, RANGE, 1, 2 / 6),
        # what stands in the padding takes no part
        ([[1.1, math.nan, math.inf]], [1], [[1, 0, 0]], RANGE, 1.1, 0),
        ([[1.5, 1.5]], [1], [[0, 0]], RANGE, 1, 0),
        *(([[1e13, 1e-13]], [a], [[1, 1]], (NO_CLIP, NO_CLIP), 5e12, 0) for a in (1, -1)),
    ],
)
def test_ratio_statistics(ratios, advantages, mask, bounds, mean, clipped):
    ratio_NT = token_ratio(torch.tensor(ratios).log(), torch.zeros(1), torch.tensor(mask))
    signs_N1 = torch.tensor(advantages, dtype=torch.float32).unsqueeze(1)
    changed_NT = changed_by_clipping(ratio_NT, signs_N1, *bounds)
    stats = ratio_means(ratio_sums(ratio_NT, changed_NT, torch.tensor(mask)))
    assert stats["mean_ratio"] == pytest.approx(mean, rel=1e-5)
    assert stats["clip_fraction"] == pytest.approx(clipped)


def test_the_ratio_of_a_sequence_counts_for_each_of_its_tokens():
    # ratios 2 and 1 of sequences of 3 and 1 tokens, the first one changed
    ratio_N1, changed_N1 = torch.tensor([[2.0], [1.0]]), torch.tensor([[True], [False]])
    sums = ratio_sums(ratio_N1, changed_N1, torch.tensor([[1, 1, 1], [1, 0, 0]]))
    assert sums.tolist() == [7.0, 3.0, 4.0]


def test_the_gap_to_the_sampler_is_a_mean_over_tokens():
    # log ratios 0.1, 0.5 | -0.3, unknown | none: means 0.3, -0.15, 0
    logps = torch.tensor([[0.1, 0.5, math.nan], [-0.3, 1.0, 9.0], [math.nan, math.inf, 0.3]])
    sampling = torch.tensor([[0.0, 0.0, 0.0], [0.0, math.nan, 0.0], [0.0, 0.0, 0.0]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 0], [0, 0, 0]])
    for limit, kept in [(0.31, [1, 1, 1]), (0.2, [0, 1, 1]), (0.1, [0, 0, 1])]:
        found = within_sampler_gap(logps, sampling, mask, limit)
        assert found.tolist() == [[bool(one)] for one in kept]


def test_empty_responses_and_bounds():
    """What the formulas of `contract/test_loss` leave out."""
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]])
    assert loss_denominator(mask, "mean").tolist() == [3 * 4, 3 * 2, 3 * 1]  # as of one token
    # log π -1, -3 | -2 with A 1, 1 | -1: products 2/3, -2/3 | 0; at least one token is chosen
    logps, advantages = torch.tensor([[-1.0, -3.0], [-2.0, 9.0]]), torch.tensor([[1.0], [-1.0]])
    for tokens, share, chosen in [
        ([[1, 1], [1, 0]], 0.0, [[1, 0], [0, 0]]),
        ([[1, 1], [1, 0]], 1.0, [[1, 1], [1, 0]]),
        ([[0, 0], [0, 0]], 1.0, [[0, 0], [0, 0]]),
    ]:
        found = highest_covariance(logps, advantages, torch.tensor(tokens), share)
        assert found.int().tolist() == chosen
    # tokens 8 + 4 and none: 12 / 2 / 12; nothing where nothing is kept
    tokens, kept = torch.tensor([[8, 4], [0, 0]]), torch.ones(2).bool()
    assert prompt_weights(tokens, kept).tolist() == [0.5, 0]
    assert prompt_weights(tokens, ~kept).tolist() == [0, 0]
    # with an epsilon of one, no token is held below
    assert clipped_log_ratio(torch.tensor(-50.0), torch.tensor(-1.0), 1.0, 0.3).item() == -50.0
    with pytest.raises(ValueError, match="kl_estimator is 'k4'; allowed: k1, k2, k3"):
        kl_to_reference(torch.zeros(1), torch.zeros(1), "k4")


def drawn_ratios(seed: int):
    """Ratios of 40 responses of 9 tokens, and their advantages, some of which are 0."""
    generator = torch.Generator().manual_seed(seed)
    advantages = torch.randn(40, 1, generator=generator)
    advantages[:4] = 0.0
    return torch.exp(torch.randn(40, 9, generator=generator)), advantages


def slope(objective, ratio):
    """Derivative of each token's objective by its own ratio."""
    ratio = ratio.clone().requires_grad_()
    objective(ratio).sum().backward()
    return ratio.grad


@pytest.mark.parametrize("delta", [None, 1.1, 1.5, 2.5])
def test_clipping_changes_a_token_where_its_gradient_is_another(delta):
    """Compared with autograd, for `delta` inside, just outside and far outside the range."""
    ratio, advantages = drawn_ratios(2)

    def objective(r):
        capped = r if delta is None else r.clamp(max=delta)
        return torch.min(capped * advantages, r.clamp(0.7, 1.4) * advantages)

    changed = (slope(objective, ratio) - advantages).abs() > 1e-6
    found = changed_by_clipping(ratio, advantages, 0.3, 0.4, delta)
    assert torch.equal(found, changed)
    assert 0.2 < found.float().mean() < 0.8


def test_sapo_weighs_a_token_by_the_slope_of_its_gate():
    ratio, advantages = drawn_ratios(3)
    temperature = torch.where(advantages > 0, 1.0, 1.05)

    def objective(r):
        return torch.sigmoid(temperature * (r - 1)) * 4 / temperature * advantages

    weight = sapo_weight(ratio, advantages, 1.0, 1.05)
    torch.testing.assert_close(weight * advantages, slope(objective, ratio))
    ones = torch.ones_like(ratio)
    assert not changed_by_weight(sapo_weight(ones, advantages, 1.0, 1.05), advantages).any()
    changed = changed_by_weight(weight, advantages)
    assert not changed[:4].any() and changed[4:].float().mean() > 0.9
