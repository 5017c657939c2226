"""Denominators and ratio statistics against numbers computed by hand."""

import math

import pytest
import torch

from trl_ablate.losses import (
    NO_CLIP,
    changed_by_cispo,
    changed_by_clipping,
    changed_by_weight,
    highest_covariance,
    loss_denominator,
    ratio_means,
    ratio_sums,
    sapo_weight,
    sequence_log_ratio,
    token_ratio,
    within_sampler_gap,
)

MASK = torch.tensor([[1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0, 0]])


@pytest.mark.parametrize(
    ("length_norm", "keywords", "expected"),
    [
        ("mean", {}, [3 * 4, 3 * 7, 3 * 1]),  # an empty response counts as one token
        ("microbatch", {}, 3 * 7),
        ("constant", {"constant": 10}, 3 * 10),
        ("token", {}, 11),
        ("token", {"num_items": 40}, 40),
    ],
)
def test_denominators(length_norm, keywords, expected):
    got = loss_denominator(MASK, length_norm, **keywords)
    assert got.tolist() == expected


@pytest.mark.parametrize(
    ("length_norm", "keywords", "parts"),
    [("mean", {}, 1), ("constant", {"constant": 6}, 1), ("token", {"num_items": 12}, 2),
     ("microbatch", {}, None)],
)  # fmt: skip
def test_what_is_additive_over_microbatches(length_norm, keywords, parts):
    """With the whole as a sum of halves, which each count as `parts` of it; None: it is none."""
    loss = torch.rand(4, 6)
    mask = torch.tensor([[1] * n + [0] * (6 - n) for n in (1, 3, 6, 2)])

    def total(rows):
        divisor = loss_denominator(mask[rows], length_norm, **keywords)
        return ((loss[rows] * mask[rows]).sum(1) / divisor).sum()

    halves = total(slice(0, 2)) + total(slice(2, 4))
    assert torch.isclose(total(slice(0, 4)), halves / 2 * (parts or 1)) == (parts is not None)


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
def test_ratio_statistics_by_hand(ratios, advantages, mask, bounds, mean, clipped):
    ratio_NT = token_ratio(torch.tensor(ratios).log(), torch.zeros(1), torch.tensor(mask))
    signs_N1 = torch.tensor(advantages, dtype=torch.float32).unsqueeze(1)
    changed_NT = changed_by_clipping(ratio_NT, signs_N1, *bounds)
    stats = ratio_means(ratio_sums(ratio_NT, changed_NT, torch.tensor(mask)))
    assert stats["mean_ratio"] == pytest.approx(mean, rel=1e-5)
    assert stats["clip_fraction"] == pytest.approx(clipped)


def test_the_ratio_of_a_sequence_is_the_geometric_mean_of_its_tokens():
    logps = torch.tensor([[0.1, 0.5, math.nan], [math.nan, math.inf, 0.3]])
    found = sequence_log_ratio(logps, torch.zeros(2, 3), torch.tensor([[1, 1, 0], [0, 0, 0]]))
    torch.testing.assert_close(found, torch.tensor([[0.3], [0.0]]))


def test_the_gap_to_the_sampler_is_a_mean_over_tokens():
    # log ratios 0.1, 0.5 | -0.3, unknown | none: means 0.3, -0.15, 0
    logps = torch.tensor([[0.1, 0.5, math.nan], [-0.3, 1.0, 9.0], [math.nan, math.inf, 0.3]])
    sampling = torch.tensor([[0.0, 0.0, 0.0], [0.0, math.nan, 0.0], [0.0, 0.0, 0.0]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 0], [0, 0, 0]])
    for limit, kept in [(0.31, [1, 1, 1]), (0.2, [0, 1, 1]), (0.1, [0, 0, 1])]:
        found = within_sampler_gap(logps, sampling, mask, limit)
        assert found.tolist() == [[bool(one)] for one in kept]


def test_the_tokens_of_highest_covariance():
    # A 1, 1 | -1, mean 1/3; log π -1, -3 | -2, mean -2: products 2/3, -2/3 | 0, and one of padding
    logps = torch.tensor([[-1.0, -3.0], [-2.0, 9.0]])
    advantages, mask = torch.tensor([[1.0], [-1.0]]), torch.tensor([[1, 1], [1, 0]])
    for share, chosen in [
        (0.0, [[1, 0], [0, 0]]),  # at least one
        (0.67, [[1, 0], [1, 0]]),
        (1.0, [[1, 1], [1, 0]]),
    ]:
        found = highest_covariance(logps, advantages, mask, share)
        assert found.int().tolist() == chosen
    assert not highest_covariance(logps, advantages, mask * 0, 1.0).any()


def test_the_ratio_of_a_sequence_counts_for_each_of_its_tokens():
    # ratios 2 and 1 of sequences of 3 and 1 tokens, the first one changed
    sums = ratio_sums(
        torch.tensor([[2.0], [1.0]]),
        torch.tensor([[True], [False]]),
        torch.tensor([[1, 1, 1], [1, 0, 0]]),
    )
    assert sums.tolist() == [7.0, 3.0, 4.0]


def slope(objective, ratio):
    """Derivative of each token's objective by its own ratio."""
    ratio = ratio.clone().requires_grad_()
    objective(ratio).sum().backward()
    return ratio.grad


@pytest.mark.parametrize("delta", [None, 1.1, 1.5, 2.5])
def test_clipping_changes_a_token_where_its_gradient_is_another(delta):
    """Compared with autograd, for `delta` inside, just outside and far outside the range."""
    generator = torch.Generator().manual_seed(2)
    ratio = torch.exp(torch.randn(40, 9, generator=generator))
    advantages = torch.randn(40, 1, generator=generator)
    advantages[:4] = 0.0

    def objective(r):
        capped = r if delta is None else r.clamp(max=delta)
        return torch.min(capped * advantages, r.clamp(0.7, 1.4) * advantages)

    changed = (slope(objective, ratio) - advantages).abs() > 1e-6
    found = changed_by_clipping(ratio, advantages, 0.3, 0.4, delta)
    assert torch.equal(found, changed)
    assert 0.2 < found.float().mean() < 0.8


def test_sapo_weighs_a_token_by_the_slope_of_its_gate():
    generator = torch.Generator().manual_seed(3)
    ratio = torch.exp(torch.randn(20, 5, generator=generator))
    advantages = torch.randn(20, 1, generator=generator)
    temperature = torch.where(advantages > 0, 1.0, 1.05)

    def objective(r):
        return torch.sigmoid(temperature * (r - 1)) * 4 / temperature * advantages

    weight = sapo_weight(ratio, advantages, 1.0, 1.05)
    torch.testing.assert_close(weight * advantages, slope(objective, ratio))
    ones = torch.ones(20, 5)
    assert not changed_by_weight(sapo_weight(ones, advantages, 1.0, 1.05), advantages).any()
    assert changed_by_weight(weight, advantages).float().mean() > 0.9


def test_cispo_caps_the_weight_from_above_only():
    # ratios below, within and above a cap of 2; TRL counts those with A > 0
    ratio = torch.tensor([[0.1, 1.0, 2.5]] * 3)
    changed = changed_by_cispo(ratio, torch.tensor([[1.0], [-1.0], [0.0]]), 2.0)
    assert changed.tolist() == [[False, False, True], [False] * 3, [False] * 3]
