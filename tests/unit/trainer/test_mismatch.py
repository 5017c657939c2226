"""The importance correction in closed form, and its metrics."""

import math

import pytest
import torch

from trl_ablate.losses import importance_ratio
from trl_ablate.trainer.mismatch import gap_metrics, held_by_length, local_gap, mismatch_rows

LOG2, LOG4 = math.log(2), math.log(4)
SAMPLING_NT = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 7.0]])
LOGPS_NT = torch.tensor([[LOG2, -LOG4, LOG4], [LOG2, LOG2, 0.0]])
MASK_NT = torch.tensor([[1, 1, 1], [1, 1, 0]])
"""Token ratios 2, 1/4, 4 and 2, 2; sequence ratios 2·¼·4 = 2 and 2·2 = 4; padding has none."""


@pytest.mark.parametrize(
    ("mode", "low", "high", "expected"),
    [
        ("token_truncate", None, 3.0, [[2, 0.25, 3], [2, 2, 1]]),
        ("token_truncate", 0.5, 3.0, [[2, 0.5, 3], [2, 2, 1]]),
        ("token_truncate", 0.5, None, [[2, 0.5, 4], [2, 2, 1]]),
        ("token_mask", None, 3.0, [[2, 0.25, 0], [2, 2, 1]]),
        ("token_mask", 0.5, 3.0, [[2, 0, 0], [2, 2, 1]]),
        ("sequence_truncate", None, 3.0, [[2], [3]]),
        ("sequence_truncate", 2.5, 3.0, [[2.5], [3]]),
        ("sequence_mask", None, 3.0, [[2], [0]]),
        ("sequence_mask", 3.0, None, [[0], [4]]),
    ],
)
def test_importance_ratio(mode, low, high, expected):
    ratio = importance_ratio(LOGPS_NT, SAMPLING_NT, MASK_NT, mode, low, high)
    torch.testing.assert_close(ratio, torch.tensor(expected, dtype=torch.float32))


def rows(mode, low, high, mask_NT=MASK_NT, sampling_NT=SAMPLING_NT):
    ratio = importance_ratio(LOGPS_NT, sampling_NT, mask_NT, mode, low, high)
    return mismatch_rows(LOGPS_NT, sampling_NT, ratio, mask_NT, mode, low, high)


def test_the_gap_is_over_tokens_and_ratios_over_what_is_corrected():
    """Gaps ln2 · (1, 2, 2, 1, 1): mean 7/5 ln2. Ratios: tokens 2, ¼, 3, 2, 2; sequences 2, 3."""
    tokens = local_gap(rows("token_truncate", None, 3.0)).tolist()
    assert tokens == pytest.approx([7 / 5 * LOG2, LOG4, 0.25, 9.25 / 5, 3.0])
    sequences = local_gap(rows("sequence_truncate", None, 3.0)).tolist()
    assert sequences == pytest.approx([7 / 5 * LOG2, LOG4, 2.0, 2.5, 3.0])


def test_gaps_are_averaged_over_rollout_batches_and_extremes_taken_over_processes():
    # two processes, two batches: batch one has means 1 and 3, batch two 4 and 8
    gaps = torch.tensor([[[1.0] * 5, [4.0] * 5], [[3.0] * 5, [8.0] * 5]])
    metrics = gap_metrics(gaps)
    assert metrics == {
        "sampling/sampling_logp_difference/mean": 4.0,  # (2 + 6) / 2
        "sampling/sampling_logp_difference/max": 5.5,  # (3 + 8) / 2
        "sampling/importance_sampling_ratio/min": 2.5,  # (1 + 4) / 2
        "sampling/importance_sampling_ratio/mean": 4.0,
        "sampling/importance_sampling_ratio/max": 5.5,
    }


def test_unscored_tokens_and_empty_completions_have_no_gap():
    unknown = SAMPLING_NT.clone()
    unknown[0] = torch.nan
    gap = local_gap(rows("token_truncate", None, 3.0, sampling_NT=unknown))
    assert gap[0].item() == pytest.approx(LOG2)
    nothing = rows("token_mask", None, 3.0, mask_NT=torch.zeros_like(MASK_NT))
    assert local_gap(nothing).tolist() == [0.0] * 5
    assert held_by_length(nothing) == {}


@pytest.mark.parametrize(
    ("mode", "low", "high", "short", "long"),
    [
        ("token_truncate", None, 3.0, 0, 1 / 3),
        ("token_truncate", 0.5, None, 0, 1 / 3),
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
