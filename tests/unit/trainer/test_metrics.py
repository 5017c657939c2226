"""Metrics of rollouts, groups and the sampler's mismatch, against tables computed by hand."""

import math
from collections import deque

import pytest
import torch

from trl_ablate.losses import importance_ratio
from trl_ablate.trainer import groups, rollouts
from trl_ablate.trainer.mismatch import gap_metrics, held_by_length, local_gap, mismatch_rows


def test_rows_hold_what_trl_logged_and_what_the_rewards_reported_of_all():
    logs = {
        "prompt": deque(["1+1", "2+2"]),
        "completion": deque(["2", "5"]),
        "rewards": {"right": deque([1.0, math.nan]), "short": deque([0.5, math.nan])},
        "extra": {"answer_reward": deque([1.0, None]), "other": deque([7, 8]),
                  "format_reward": deque([1.0])},
        "advantages": deque([0.25, 0.0]),
    }  # fmt: skip
    found = rollouts.rollout_rows(logs, ["right", "short"], torch.tensor([1.0, 2.0]))
    columns = ["prompt", "response", "ground_truth", "reward", "format_reward", "answer_reward",
               "advantage"]  # fmt: skip
    assert [list(row) for row in found] == [columns] * 2  # in the order of the file
    assert [list(row.values()) for row in found] == [
        ["1+1", "2", None, 2.0, None, 1.0, 0.25],
        ["2+2", "5", None, None, None, None, 0.0],
    ]


def test_truncation_metrics():
    truncated = torch.tensor([False, False, True])
    metrics = rollouts.truncation_metrics(torch.tensor([3, 5, 9]), truncated)
    assert list(metrics.values()) == pytest.approx([1 / 3, 4, 3, 5])
    none = rollouts.truncation_metrics(torch.tensor([9]), truncated[2:])
    assert list(none.values()) == [1, 0, 0, 0]


# 3 5 | 10 10: deviations 2 ** 0.5 and 0, mean length 7
@pytest.mark.parametrize(
    ("lengths", "spread"),
    [([3, 5, 10, 10], 2**0.5 / 2 / 7), ([3, 3, 10, 10], 0), ([0, 0, 0, 0], 0)],
)
def test_the_spread_of_lengths_is_that_within_groups(lengths, spread):
    assert rollouts.length_spread(torch.tensor(lengths), 2) == pytest.approx(spread)


def test_groups_by_the_number_that_pass_and_weights_by_sign():
    found = groups.pass_counts(torch.tensor([[1, 0], [0, 0], [1, 1], [0, 1]]).bool())
    assert found == {"groups/passed/0": 0.25, "groups/passed/1": 0.5, "groups/passed/2": 0.25}
    found = groups.weight_by_sign(torch.tensor([2.0, 1.0, -1.0, 0.0]))
    assert found == {"advantages/positive": 0.75, "advantages/negative": 0.25}


def test_names_of_rewards_are_told_apart():
    assert groups.told_apart(["f", "g", "f", "f_2", "f"]) == ["f", "g", "f_3", "f_2", "f_4"]


# The mismatch between sampler and trainer

LOG2, LOG4 = math.log(2), math.log(4)
SAMPLING_NT = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 7.0]])
LOGPS_NT = torch.tensor([[LOG2, -LOG4, LOG4], [LOG2, LOG2, 0.0]])
MASK_NT = torch.tensor([[1, 1, 1], [1, 1, 0]])
"""Token ratios 2, 1/4, 4 and 2, 2; sequence ratios 2·¼·4 = 2 and 2·2 = 4; padding has none."""


def rows(mode, low, high, mask_NT=MASK_NT, sampling_NT=SAMPLING_NT):
    ratio = importance_ratio(LOGPS_NT, sampling_NT, mask_NT, mode, low, high)
    return mismatch_rows(LOGPS_NT, sampling_NT, ratio, mask_NT, mode, low, high)


def test_gaps_are_averaged_over_rollout_batches_and_extremes_taken_over_processes():
    # two processes, two batches: batch one has means 1 and 3, batch two 4 and 8
    found = gap_metrics(torch.tensor([[[1.0] * 5, [4.0] * 5], [[3.0] * 5, [8.0] * 5]]))
    assert found == {
        "sampling/sampling_logp_difference/mean": 4.0,  # (2 + 6) / 2
        "sampling/sampling_logp_difference/max": 5.5,  # (3 + 8) / 2
        "sampling/importance_sampling_ratio/min": 2.5,  # (1 + 4) / 2
        "sampling/importance_sampling_ratio/mean": 4.0,
        "sampling/importance_sampling_ratio/max": 5.5,
    }


def test_unscored_tokens_and_empty_completions_have_no_gap():
    unknown = SAMPLING_NT.clone()
    unknown[0] = torch.nan
    # gaps ln2, ln2; ratios of tokens 1, 1, 1, 2, 2
    gap = local_gap(rows("token_truncate", None, 3.0, sampling_NT=unknown))
    assert gap.tolist() == pytest.approx([LOG2, LOG2, 1.0, 7 / 5, 2.0])
    nothing = rows("token_mask", None, 3.0, mask_NT=torch.zeros_like(MASK_NT))
    assert local_gap(nothing).isnan().all()
    one_of_two = gap_metrics(torch.stack([local_gap(nothing), gap])[:, None])
    assert [*one_of_two.values()] == pytest.approx(gap.tolist())
    assert gap_metrics(local_gap(nothing)[None, None]) == {}
    assert held_by_length(nothing) == {}


def test_rows_that_are_left_out_have_no_ratio_of_a_sequence():
    """Ratios 2 and 4; the mask of the second row is gone."""
    ratio, mask_NT = torch.tensor([[2.0], [4.0]]), MASK_NT * torch.tensor([[1], [0]])
    with_empty, without = (
        local_gap(mismatch_rows(LOGPS_NT, SAMPLING_NT, ratio, mask_NT, "sequence_truncate", None,
                                9.0, with_empty=empty)).tolist()[2:] for empty in (True, False)
    )  # fmt: skip
    assert with_empty == [2.0, 3.0, 4.0] and without == [2.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("mode", "low", "high", "short", "long"),
    [
        ("token_truncate", None, 3.0, 0, 1 / 3),
        ("token_truncate", 0.5, 3.0, 0, 2 / 3),
        ("token_mask", 0.5, 3.0, 0, 2 / 3),
        ("sequence_mask", None, 3.0, 1, 0),
        ("sequence_truncate", 2.5, 5.0, 0, 1),
    ],
)
def test_held_by_length_counts_tokens_by_quarters_of_completions(mode, low, high, short, long):
    """Two completions, of two tokens and of three: the first two quarters hold one each."""
    held = held_by_length(rows(mode, low, high))
    assert held == pytest.approx({"sampling/dropped/q1": short, "sampling/dropped/q2": long})
