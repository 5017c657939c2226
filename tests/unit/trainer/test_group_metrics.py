"""Metrics of groups against tables computed by hand."""

import pytest
import torch

from trl_ablate.trainer.groups import (
    pass_counts,
    rollout_counts,
    told_apart,
    weight_by_length,
    weight_by_sign,
)


def test_groups_by_the_number_that_pass():
    passed = torch.tensor([[1, 0], [0, 0], [1, 1], [0, 1]]).bool()
    assert pass_counts(passed) == {
        "groups/passed/0": 0.25,
        "groups/passed/1": 0.5,
        "groups/passed/2": 0.25,
    }


def test_the_weight_of_each_sign_is_a_share_of_all_rows():
    got = weight_by_sign(torch.tensor([2.0, 1.0, -1.0, 0.0]))
    assert got == {"advantages/positive": 0.75, "advantages/negative": 0.25}


# |A| 1 2 1 4 at 4 1 3 2 tokens; by length: 2 (1), 4 (2), 1 (3), 1 (4). Sum 8, and 17 with tokens.
@pytest.mark.parametrize(
    ("per_token", "expected"),
    [(False, [2 / 8, 4 / 8, 1 / 8, 1 / 8]), (True, [2 / 17, 8 / 17, 3 / 17, 4 / 17])],
)
def test_the_weight_of_each_quarter_by_length(per_token, expected):
    got = weight_by_length(
        torch.tensor([1.0, 2.0, -1.0, 4.0, 9.0]),
        torch.tensor([4, 1, 3, 2, 0]),  # the last has no tokens: masked, so left out
        per_token=per_token,
    )
    assert list(got.values()) == pytest.approx(expected)
    assert list(got) == [f"advantages/weight/q{place}" for place in (1, 2, 3, 4)]


def test_without_any_weight_the_shares_are_zero():
    got = weight_by_length(torch.zeros(4), torch.ones(4), per_token=False)
    assert set(got.values()) == {0.0}
    assert weight_by_length(torch.ones(2), torch.zeros(2), per_token=True) == {}


def test_what_is_generated_is_used_or_dropped():
    # 6 generated with 30 tokens; of the batch's 4 (5, 0, 3, 2 tokens), the last is not kept
    got = rollout_counts(6, 30, torch.tensor([5, 0, 3, 2]), torch.tensor([1, 1, 1, 0]).bool())
    assert got == {
        "rollouts/generated": 6,
        "rollouts/used": 2,
        "rollouts/dropped": 4,
        "rollouts/used_tokens": 8,
        "rollouts/dropped_tokens": 22,
    }


def test_names_of_rewards_are_told_apart():
    assert told_apart(["f", "g", "f", "f_2", "f"]) == ["f", "g", "f_3", "f_2", "f_4"]
