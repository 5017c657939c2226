"""Advantages against tables computed by hand, against TRL, and identities for arbitrary rewards."""

import math
from itertools import combinations

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from trl.rewards import get_soft_overlong_punishment
from trl.trainer.utils import nanstd

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
S2, S6, S8 = math.sqrt(2), math.sqrt(6), math.sqrt(8)
BASELINES = choices(Baseline)
SCALES = choices(Scale)
OF_THE_GROUP = ("group_mean", "leave_one_out", "group_token_mean")

# Two groups of two: rewards 1 0 | 1 1. Group means 1/2, 1; batch mean 3/4.
# Group deviations (ddof 1): sqrt((1/4 + 1/4) / 1) = 1/sqrt 2, and 0.
# Batch deviation: sqrt((3 * 1/16 + 9/16) / 3) = sqrt(12/16 / 3) = 1/2.
TWO_GROUPS = [1.0, 0.0, 1.0, 1.0]
OF_TWO_GROUPS = [
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
    ("group_mean", "advantage_std", [0.5 * S6, -0.5 * S6, 0, 0]),
    ("none", "advantage_std", [2, 0, 2, 2]),  # without a baseline, it is that of the rewards
    # as many tokens in each, here one: over tokens as over completions
    ("token_mean", "none", [0.25, -0.75, 0.25, 0.25]),
    ("token_mean", "token_std", [0.5, -1.5, 0.5, 0.5]),
    ("group_then_batch", "token_std", [0.5 * S6, -0.5 * S6, 0, 0]),
]
# Ungraded: 1 ? 0 ? | 1 ? ? ? | ? ? ? ?. Graded group means 1/2, 1, none; batch mean 2/3.
UNGRADED = [1.0, NAN, 0.0, NAN, 1.0, NAN, NAN, NAN, NAN, NAN, NAN, NAN]
EIGHT = [1.0, *[0.0] * 7]
CLOSE = [0.0, 0.0, 0.0, 6.8e-38]  # their deviation underflows to 0
WHITENED = {"baseline": "token_mean", "scale": "token_std"}
BY_HAND = [
    *((TWO_GROUPS, 2, {"baseline": baseline, "scale": scale}, expected)
      for baseline, scale, expected in OF_TWO_GROUPS),
    (TWO_GROUPS, 2, {"scale": "group", "eps": 1.0},
     [0.5 / (1 / S2 + 1), -0.5 / (1 / S2 + 1), 0, 0]),
    # mean 3/2; of the others 2/3, 5/3, 5/3, 2
    ([4.0, 1.0, 1.0, 0.0], 4, {"baseline": "leave_one_out"}, [10 / 3, -2 / 3, -2 / 3, -2]),
    # mean 1/8; variance (49/64 + 7/64) / 7 = 1/8, so 7/8 / sqrt(1/8) = 2.4749;
    # the population's variance 7/64 would make it 2.6458
    (EIGHT, 8, {"scale": "group"}, [7 / 8 * S8, *[-1 / 8 * S8] * 7]),
    (CLOSE, 4, {"scale": "group"}, [0, 0, 0, 0]),
    (UNGRADED, 4, {}, [0.5, 0, -0.5, *[0] * 9]),
    (UNGRADED, 4, {"scale": "group"}, [0.5 * S2, 0, -0.5 * S2, *[0] * 9]),
    # the one that is graded alone has no others
    (UNGRADED, 4, {"baseline": "leave_one_out"}, [1, 0, -1, *[0] * 9]),
    (UNGRADED, 4, {"baseline": "batch_mean"}, [1 / 3, 0, -2 / 3, 0, 1 / 3, *[0] * 7]),
    (UNGRADED, 4, {"baseline": "none"}, [1, 0, 0, 0, 1, *[0] * 7]),
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
    # seven tokens of reward 1 and one of 0: as the eight completions above
    (TWO_GROUPS, 2, {**WHITENED, "tokens_N": [3, 1, 2, 2]},
     [1 / 8 * S8, -7 / 8 * S8, 1 / 8 * S8, 1 / 8 * S8]),
    # mean 1/2, deviation 1/√2
    (TWO_GROUPS, 2, {**WHITENED, "tokens_N": [1, 1, 0, 0]}, [1 / S2, -1 / S2, 1 / S2, 1 / S2]),
    (TWO_GROUPS, 2, {**WHITENED, "tokens_N": [0, 0, 0, 0]}, [0, 0, 0, 0]),
    # the only other reward has no tokens
    (TWO_GROUPS, 2, {**WHITENED, "tokens_N": [2, 0, 3, 1]}, [0, 0, 0, 0]),
    # a group whose mean is not above zero is not scaled up
    *(([r, r, 1.0, 0.0], 2, {"baseline": "none", "scale": "group_mean"}, [0, 0, 2, 0])
      for r in (0.0, -1.0)),
    # shaping within the equal outcomes 1 and 1; an ungraded outcome takes none
    ([1.0, NAN, 1.0, 0.0], 4, {"shaping_N": [1.0, 50.0, 3.0, 7.0]},
     [1 / 3 - 1, 0, 1 / 3 + 1, -2 / 3]),
]  # fmt: skip


@pytest.mark.parametrize(("rewards", "group", "switches", "expected"), BY_HAND)
def test_advantages_by_hand(rewards, group, switches, expected):
    tensors = {k: torch.tensor(v) if isinstance(v, list) else v for k, v in switches.items()}
    how = {"scale": "none", "eps": 0.0, **tensors}
    got = compute_advantages(torch.tensor(rewards), group, **how)
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float32))


@pytest.mark.parametrize("baseline", BASELINES)
@given(reward=st.floats(-10, 10, width=32), size=st.integers(2, 17))
def test_equal_rewards_have_no_advantage(baseline, reward, size):
    """Exactly 0, with a baseline of the group, or over the group's deviation."""
    rewards = torch.tensor([reward] * size + [0.3] * (size - 1) + [0.7])
    for scale in SCALES if baseline in OF_THE_GROUP else ["group"]:
        got = compute_advantages(rewards, size, baseline=baseline, scale=scale, eps=1e-6)
        assert (got[:size] == 0).all()


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@given(rewards=st.lists(st.floats(-3, 3, width=32), min_size=8, max_size=8).map(torch.tensor))
@example(rewards=torch.tensor([0.0, 0.0, 0.0, 6.8e-38, 0.0, 0.0, 0.0, 1.0]))  # deviation: 0
def test_equals_trl_to_the_bit_where_no_group_is_constant(scale, rewards):
    groups = rewards.view(2, 4)
    if (groups.amax(1) == groups.amin(1)).any():
        return
    theirs = rewards - torch.nanmean(groups, dim=1).repeat_interleave(4)
    if scale != "none":
        std = nanstd(groups, dim=1).repeat_interleave(4) if scale == "group" else nanstd(rewards)
        theirs = theirs / (std + 1e-4)
    assert torch.equal(compute_advantages(rewards, 4, scale=scale), theirs)


@pytest.mark.parametrize(
    ("count", "switches", "said"),
    [(5, {}, "5 rewards are not whole groups of 4"),
     (4, {"baseline": "mean"}, "allowed"), (4, {"scale": "std"}, "allowed")],
)  # fmt: skip
def test_parts_of_groups_and_unknown_choices_are_refused(count, switches, said):
    with pytest.raises(ValueError, match=said):
        compute_advantages(torch.zeros(count), 4, **switches)


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


# Group 1: outcomes 1 1 0 0 with shaping 3 1 4 0; group 2: all outcomes 1, shaping 1 2 3 4.
# Shaping minus its mean over equal outcomes: 1 -1 2 -2 | -1.5 -0.5 0.5 1.5; outcome minus penalty:
# .8 1 -.1 -.3 | .9 .8 .7 .6, with means .35 | .75 and variances 1.25/3 | .05/3.
OUTCOMES = torch.tensor([1.0, 1, 0, 0, 1, 1, 1, 1])
SHAPING = torch.tensor([3.0, 1, 4, 0, 1, 2, 3, 4])
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
        ([1, 1, 1, 0], 0.5, 0.5),
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
def test_the_overlong_penalty_is_trls(tokens, expected):
    got = overlong_penalty(torch.tensor([tokens]), 20, 0.25).item()
    assert got == pytest.approx(expected)
    assert [pytest.approx(-got)] == get_soft_overlong_punishment(20, 5)([[1] * tokens])
