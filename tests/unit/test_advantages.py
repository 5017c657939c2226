"""Advantages against tables computed by hand, and identities for arbitrary rewards."""

import math
from itertools import combinations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trl_ablate.advantages import (
    compute_advantages,
    hard_group_weight,
    has_variance,
    overlong_penalty,
    signed_and_clipped,
)
from trl_ablate.settings import choices
from trl_ablate.switches import Baseline, Scale

NAN = math.nan
S2 = math.sqrt(2)

# Two groups of two: rewards 1 0 | 1 1. Group means 1/2, 1; batch mean 3/4.
# Group deviations (ddof 1): sqrt((1/4 + 1/4) / 1) = 1/sqrt 2, and 0.
# Batch deviation: sqrt((3 * 1/16 + 9/16) / 3) = sqrt(12/16 / 3) = 1/2.
TWO_GROUPS = [1.0, 0.0, 1.0, 1.0]
TABLE = [
    ("group_mean", "none", [0.5, -0.5, 0, 0]),
    ("group_mean", "group", [0.5 * S2, -0.5 * S2, 0, 0]),
    ("group_mean", "batch", [1.0, -1.0, 0, 0]),
    ("none", "none", [1, 0, 1, 1]),
    ("none", "group", [S2, 0, 0, 0]),  # the second group has a deviation of 0
    ("none", "batch", [2, 0, 2, 2]),
    ("leave_one_out", "none", [1, -1, 0, 0]),  # 1 - 0, 0 - 1
    ("batch_mean", "none", [0.25, -0.75, 0.25, 0.25]),
    ("half", "none", [0.5, -0.5, 0.5, 0.5]),
    ("group_token_mean", "none", [0.5, -0.5, 0, 0]),  # as many tokens in each: the group's mean
    ("best_of_others", "none", [1, 0, 0, 0]),  # of two: 1 - 0 for the first, nothing for the others
    ("group_then_batch", "none", [0.5, -0.5, 0, 0]),  # as many tokens in each: the second mean is 0
    ("group_mean", "group_mean", [1, -1, 0, 0]),  # divided by 1/2 and 1
    ("none", "group_mean", [2, 0, 1, 1]),
    # r - b is 1/2, -1/2, 0, 0 with deviation sqrt((1/4 + 1/4) / 3) = 1/sqrt 6
    ("group_mean", "advantage_std", [0.5 * math.sqrt(6), -0.5 * math.sqrt(6), 0, 0]),
    ("none", "advantage_std", [2, 0, 2, 2]),  # without a baseline, it is that of the rewards
    # as many tokens in each, here one: over tokens as over completions
    ("token_mean", "none", [0.25, -0.75, 0.25, 0.25]),
    ("token_mean", "token_std", [0.5, -1.5, 0.5, 0.5]),
    ("group_then_batch", "token_std", [0.5 * math.sqrt(6), -0.5 * math.sqrt(6), 0, 0]),
]
BASELINES = choices(Baseline)
SCALES = choices(Scale)


@pytest.mark.parametrize(("baseline", "scale", "expected"), TABLE)
def test_two_groups_of_two(baseline, scale, expected):
    got = compute_advantages(torch.tensor(TWO_GROUPS), 2, baseline=baseline, scale=scale, eps=0.0)
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float32))


# Ungraded: 1 ? 0 ? | 1 ? ? ? | ? ? ? ?. Graded group means 1/2, 1, none; batch mean 2/3.
UNGRADED = [1.0, NAN, 0.0, NAN, 1.0, NAN, NAN, NAN, NAN, NAN, NAN, NAN]
EIGHT = [1.0, *[0.0] * 7]
CLOSE = [0.0, 0.0, 0.0, 6.8e-38]  # their deviation underflows to 0
WHITENED = {"baseline": "token_mean", "scale": "token_std"}


@pytest.mark.parametrize(
    ("rewards", "group", "switches", "expected"),
    [
        (UNGRADED, 4, {}, [0.5, 0, -0.5, *[0] * 9]),
        (UNGRADED, 4, {"scale": "group"}, [0.5 * S2, 0, -0.5 * S2, *[0] * 9]),
        # the one that is graded alone has no others
        (UNGRADED, 4, {"baseline": "leave_one_out"}, [1, 0, -1, *[0] * 9]),
        (UNGRADED, 4, {"baseline": "batch_mean"}, [1 / 3, 0, -2 / 3, 0, 1 / 3, *[0] * 7]),
        (UNGRADED, 4, {"baseline": "none"}, [1, 0, 0, 0, 1, *[0] * 7]),
        # mean 1/8; variance (49/64 + 7/64) / 7 = 1/8, so 7/8 / sqrt(1/8) = 2.4749;
        # the population's variance 7/64 would make it 2.6458
        (EIGHT, 8, {"scale": "group"}, [7 / 8 * math.sqrt(8), *[-1 / 8 * math.sqrt(8)] * 7]),
        (TWO_GROUPS, 2, {"scale": "group", "eps": 1.0},
         [0.5 / (1 / S2 + 1), -0.5 / (1 / S2 + 1), 0, 0]),
        (CLOSE, 4, {"scale": "group"}, [0, 0, 0, 0]),
        # r - group mean is 1/2, -1/2, 0, 0; weighted by 3, 1, 2, 2 tokens: (3/2 - 1/2) / 8 = 1/8
        (TWO_GROUPS, 2, {"baseline": "group_then_batch", "tokens_N": [3, 1, 2, 2]},
         [0.375, -0.625, -0.125, -0.125]),
        # graded: 1 0 | 1, so r - group mean is 1/2, -1/2, 0; with 2, 1, 1 tokens: 1/2 / 4 = 1/8
        ([1, 0, NAN, 1, NAN, NAN], 3,
         {"baseline": "group_then_batch", "tokens_N": [2, 1, 100, 1, 100, 100]},
         [0.375, -0.625, 0, -0.125, 0, 0]),
        # graded 1 0 with 3 and 1 tokens: 3/4; 1 alone: 1; a group without tokens has no mean
        ([1, 0, NAN, 1, NAN, NAN, 1, 0, 0], 3,
         {"baseline": "group_token_mean", "tokens_N": [3, 1, 100, 2, 100, 100, 0, 0, 0]},
         [0.25, -0.75, 0, 0, 0, 0, 0, 0, 0]),
        (TWO_GROUPS, 2, {**WHITENED, "tokens_N": [0, 0, 0, 0]}, [0, 0, 0, 0]),
        # the only other reward has no tokens
        (TWO_GROUPS, 2, {**WHITENED, "tokens_N": [2, 0, 3, 1]}, [0, 0, 0, 0]),
        # mean 1/2, deviation 1/√2
        (TWO_GROUPS, 2, {**WHITENED, "tokens_N": [1, 1, 0, 0]}, [1 / S2, -1 / S2, 1 / S2, 1 / S2]),
        # a group whose mean is not above zero is not scaled up
        *(([r, r, 1.0, 0.0], 2, {"baseline": "none", "scale": "group_mean"}, [0, 0, 2, 0])
          for r in (0.0, -1.0)),
        # shaping within the equal outcomes 1 and 1; an ungraded outcome takes none
        ([1.0, NAN, 1.0, 0.0], 4, {"shaping_N": [1.0, 50.0, 3.0, 7.0]},
         [1 / 3 - 1, 0, 1 / 3 + 1, -2 / 3]),
    ],
)  # fmt: skip
def test_ungraded_and_uneven_completions_by_hand(rewards, group, switches, expected):
    tensors = {k: torch.tensor(v) if isinstance(v, list) else v for k, v in switches.items()}
    how = {"scale": "none", "eps": 0.0, **tensors}
    got = compute_advantages(torch.tensor(rewards), group, **how)
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float32))


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("baseline", ["group_mean", "leave_one_out", "group_token_mean"])
@given(reward=st.floats(-10, 10, width=32), size=st.integers(2, 17))
@settings(max_examples=50)
def test_equal_rewards_have_no_advantage(baseline, scale, reward, size):
    rewards = torch.tensor([reward] * size + [0.3] * (size - 1) + [0.7])
    got = compute_advantages(rewards, size, baseline=baseline, scale=scale, eps=1e-6)
    assert (got[:size] == 0).all()


@pytest.mark.parametrize("baseline", BASELINES)
def test_equal_rewards_under_group_scale_have_no_advantage_whatever_the_baseline(baseline):
    got = compute_advantages(torch.full((6,), 0.1), 3, baseline=baseline, scale="group", eps=1e-6)
    assert (got == 0).all()


rewards_of_two_groups = st.lists(st.floats(-3, 3, width=32), min_size=8, max_size=8).map(
    torch.tensor
)


@given(rewards_of_two_groups)
def test_a_group_baseline_sums_to_zero(rewards):
    for scale in SCALES:
        got = compute_advantages(rewards.double(), 4, scale=scale, eps=1e-2)
        assert got.view(2, 4).sum(1).abs().max() < 1e-6


@given(rewards_of_two_groups)
def test_no_baseline_and_no_scale_leave_the_reward(rewards):
    assert torch.equal(compute_advantages(rewards, 4, baseline="none", scale="none"), rewards)


@pytest.mark.parametrize("baseline", BASELINES)
@given(rewards=rewards_of_two_groups)
def test_scaled_times_deviation_is_unscaled(baseline, rewards):
    rewards = rewards.double()
    std = rewards.view(2, 4).std(1).repeat_interleave(4)
    scaled = compute_advantages(rewards, 4, baseline=baseline, scale="group", eps=0.1)
    plain = compute_advantages(rewards, 4, baseline=baseline, scale="none")
    varied = rewards.view(2, 4).amax(1) > rewards.view(2, 4).amin(1)
    varied = varied.repeat_interleave(4)
    torch.testing.assert_close((scaled * (std + 0.1))[varied], plain[varied])


@given(rewards_of_two_groups)
def test_leave_one_out_is_the_group_mean_stretched(rewards):
    rewards = rewards.double()
    others = compute_advantages(rewards, 4, baseline="leave_one_out", scale="none")
    mean = compute_advantages(rewards, 4, baseline="group_mean", scale="none")
    torch.testing.assert_close(others, mean * 4 / 3)


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@given(rewards=rewards_of_two_groups)
@example(rewards=torch.tensor([0.0, 0.0, 0.0, 6.8e-38, 0.0, 0.0, 0.0, 1.0]))  # deviation: 0
def test_equals_trl_to_the_bit_where_no_group_is_constant(scale, rewards):
    from trl.trainer.utils import nanstd

    groups = rewards.view(2, 4)
    if (groups.amax(1) == groups.amin(1)).any():
        return
    std = {
        "group": nanstd(groups, dim=1).repeat_interleave(4),
        "batch": nanstd(rewards),
        "none": torch.tensor(1 - 1e-4),
    }[scale]
    theirs = rewards - torch.nanmean(groups, dim=1).repeat_interleave(4)
    theirs = theirs if scale == "none" else theirs / (std + 1e-4)
    assert torch.equal(compute_advantages(rewards, 4, scale=scale), theirs)


def test_rows_that_are_no_whole_groups_are_refused():
    with pytest.raises(ValueError, match="5 rewards are not whole groups of 4"):
        compute_advantages(torch.zeros(5), 4)


@pytest.mark.parametrize("wrong", [{"baseline": "mean"}, {"scale": "std"}])
def test_unknown_choices_are_refused_by_name(wrong):
    with pytest.raises(ValueError, match="allowed"):
        compute_advantages(torch.zeros(4), 4, **wrong)


@pytest.mark.parametrize("baseline", ["token_mean", "group_then_batch"])
@given(
    rewards=rewards_of_two_groups,
    tokens=st.lists(st.integers(0, 9), min_size=8, max_size=8).filter(any),
)
def test_centred_over_tokens_sums_to_zero_over_them(baseline, rewards, tokens):
    tokens_N = torch.tensor(tokens)
    plain, whitened = (
        compute_advantages(rewards.double(), 4, baseline=baseline, scale=scale, tokens_N=tokens_N,
                           eps=0.0)
        for scale in ("none", "token_std")
    )  # fmt: skip
    assert (plain * tokens_N).sum().abs() < 1e-9
    if whitened.any():  # else no two different values have tokens
        square = (whitened**2 * tokens_N).sum()
        assert square.item() == pytest.approx(sum(tokens) - 1, rel=1e-6)


@pytest.mark.parametrize("best_of", [None, 2, 3, 4])
@given(st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.0, NAN]), min_size=4, max_size=4))
def test_the_lead_over_others_by_enumeration(best_of, rewards):
    """What each graded response adds to the best of k, over all k that contain it."""
    graded = [place for place, reward in enumerate(rewards) if not math.isnan(reward)]
    drawn = min(best_of or 4, len(graded))
    expected = [0.0] * 4
    for own in graded if drawn > 1 else ():
        others = list(combinations([other for other in graded if other != own], drawn - 1))
        leads = [max(0.0, rewards[own] - max(rewards[one] for one in some)) for some in others]
        expected[own] = sum(leads) / len(leads)
    got = compute_advantages(
        torch.tensor(rewards), 4, baseline="best_of_others", scale="none", best_of=best_of
    )
    assert got.tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("best_of", [2, 3, 5])
def test_k_times_its_mean_is_the_gradient_of_the_best_of_k(best_of):
    """Over all groups of five draws of three answers worth 0, 1 and 2, with their probabilities."""
    logits = torch.tensor([0.3, -0.2, -1.0], dtype=torch.float64, requires_grad=True)
    logps, worth = torch.log_softmax(logits, 0), torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64)
    draws = torch.cartesian_prod(*[torch.arange(3)] * 5)
    chances = logps[draws].sum(1).exp().detach()
    credit = compute_advantages(
        worth[draws].flatten(), 5, baseline="best_of_others", scale="none", best_of=best_of
    ).view(-1, 5)
    update = best_of * (chances * (credit * logps[draws]).mean(1)).sum()
    sets = torch.cartesian_prod(*[torch.arange(3)] * best_of)
    best = (logps[sets].sum(1).exp() * worth[sets].amax(1)).sum()
    found, expected = (
        torch.autograd.grad(one, logits, retain_graph=True)[0] for one in (update, best)
    )
    torch.testing.assert_close(found, expected)


# Group 1: outcomes 1 1 0 0 with shaping 3 1 4 0; group 2: all outcomes 1, shaping 1 2 3 4.
# Outcome minus mean: 1/2 1/2 -1/2 -1/2 | 0 0 0 0. Shaping minus its mean over equal outcomes:
# 1 -1 2 -2 | -1.5 -0.5 0.5 1.5. Group deviations of the outcomes: 1/sqrt 3, and 0.
OUTCOMES = torch.tensor([1.0, 1, 0, 0, 1, 1, 1, 1])
SHAPING = torch.tensor([3.0, 1, 4, 0, 1, 2, 3, 4])


@pytest.mark.parametrize("scale", SCALES)
def test_shaping_moves_no_advantage_between_outcomes(scale):
    for baseline in BASELINES:
        how = {"baseline": baseline, "scale": scale}
        plain = compute_advantages(OUTCOMES, 4, **how)
        shaped = compute_advantages(OUTCOMES, 4, **how, shaping_N=SHAPING)
        for same in (slice(0, 2), slice(2, 4), slice(4, 8)):
            torch.testing.assert_close(shaped[same].mean(), plain[same].mean())


# Rewards with the penalty: .8 1 -.1 -.3 | .9 .8 .7 .6, means .35 | .75, variances 1.25/3 | .05/3.
# Outcomes are as equal as without it, so the shaping is as above: 1 -1 2 -2 | -1.5 -0.5 0.5 1.5.
PENALTY = torch.tensor([0.2, 0, 0.1, 0.3, 0.1, 0.2, 0.3, 0.4])
SUMS = torch.tensor([1.45, -0.35, 1.55, -2.65, -1.35, -0.45, 0.45, 1.35])


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        ("none", SUMS),
        ("group_mean", SUMS / torch.tensor([0.35] * 4 + [0.75] * 4)),
        ("batch", SUMS / (OUTCOMES - PENALTY).std()),
        # over the deviation of penalties alone, the second group's shaping would grow without limit
        ("group", torch.cat([SUMS[:4] / (1.25 / 3) ** 0.5,
                             torch.tensor([0.15, 0.05, -0.05, -0.15]) / (0.05 / 3) ** 0.5])),
    ],
)  # fmt: skip
def test_a_penalty_makes_no_outcomes_unequal(scale, expected):
    got = compute_advantages(
        OUTCOMES, 4, scale=scale, eps=0.0, shaping_N=SHAPING, penalty_N=PENALTY
    )
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize(
    ("rewards", "exponent", "expected"),
    [
        ([1, 1, 1, 0], 1.0, 0.25),
        ([1, 1, 1, 0], 0.5, 0.5),
        ([0, 0, 0, 0], 2.0, 1),
        ([1, 1, 1, 1], 0.5, 0),
        ([1, 1, 1, 1], 0.0, 1),
        ([1, 0, NAN, NAN], 2.0, 0.25),  # ungraded ones are not counted
        ([NAN, NAN, NAN, NAN], 2.0, 1),
        ([2, 2, 2, 1], 1.0, 0),  # a mean outside 0 to 1 counts as the nearer end
        ([-1, -1, -1, 0], 1.0, 1),
    ],
)
def test_the_weight_of_a_hard_group(rewards, exponent, expected):
    got = hard_group_weight(torch.tensor(rewards).float(), 4, exponent)
    assert got.tolist() == [expected] * 4


def test_clipped_then_weighted_by_sign():
    advantages = torch.tensor([3.0, 0.5, 0.0, -0.5, -3.0])
    got = signed_and_clipped(advantages, positive_weight=0.5, negative_weight=2.0, clip=1.0)
    assert got.tolist() == [0.5, 0.25, 0.0, -1.0, -2.0]
    assert torch.equal(signed_and_clipped(advantages), advantages)


def test_variance_needs_two_different_graded_rewards():
    rewards = torch.tensor([1.0, 0.0, 1.0, 1.0, 1.0, NAN, NAN, NAN])
    assert has_variance(rewards, 2).tolist() == [True, False, False, False]


# L = 20, C = 5: 0 up to 15 tokens, a fifth more for each further one
@pytest.mark.parametrize(
    ("tokens", "expected"), [(0, 0), (15, 0), (16, 0.2), (19, 0.8), (20, 1), (21, 1)]
)
def test_the_overlong_penalty(tokens, expected):
    from trl.rewards import get_soft_overlong_punishment

    got = overlong_penalty(torch.tensor([tokens]), 20, 0.25).item()
    assert got == pytest.approx(expected)
    assert [pytest.approx(-got)] == get_soft_overlong_punishment(20, 5)([[1] * tokens])
