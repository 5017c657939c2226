"""Rows to keep of a rollout batch, masks, and how completions ended."""

from collections import deque

import pytest
import torch

from trl_ablate.trainer.rollouts import (
    length_spread,
    response_mask,
    rollout_rows,
    truncation_metrics,
    without,
)


def test_rows_hold_what_trl_logged_and_what_the_rewards_reported():
    logs = {
        "prompt": deque(["1+1", "2+2"]),
        "completion": deque(["2", "5"]),
        "rewards": {"right": deque([1.0, float("nan")]), "short": deque([0.5, float("nan")])},
        "extra": {"answer_reward": deque([1.0, None]), "other": deque([7, 8])},
        "advantages": deque([0.25, 0.0]),
    }
    rows = rollout_rows(logs, ["right", "short"], torch.tensor([1.0, 2.0]))
    assert rows == [
        {
            "prompt": "1+1",
            "response": "2",
            "ground_truth": None,
            "reward": 2.0,
            "format_reward": None,
            "answer_reward": 1.0,
            "advantage": 0.25,
        },
        {
            "prompt": "2+2",
            "response": "5",
            "ground_truth": None,
            "reward": None,
            "format_reward": None,
            "answer_reward": None,
            "advantage": 0.0,
        },
    ]
    assert list(rows[0])[:4] == ["prompt", "response", "ground_truth", "reward"]  # as in the file


def test_rows_that_are_not_kept_count_nowhere():
    batch = {
        "completion_mask": torch.tensor([[1, 1, 0], [1, 1, 1]]),
        "tool_mask": torch.tensor([[1, 0, 1], [1, 0, 1]]),
    }
    assert response_mask(batch).tolist() == [[1, 0, 0], [1, 0, 1]]
    assert response_mask(without(batch, [False, True])).tolist() == [[0, 0, 0], [1, 0, 1]]


def test_truncation_metrics():
    metrics = truncation_metrics(torch.tensor([3, 5, 9]), torch.tensor([False, False, True]))
    assert metrics["completions/clipped_ratio"] == pytest.approx(1 / 3)
    assert metrics["completions/mean_terminated_length"] == 4
    none = truncation_metrics(torch.tensor([9]), torch.tensor([True]))
    assert none["completions/max_terminated_length"] == 0


def test_the_spread_of_lengths_is_that_within_groups():
    lengths = torch.tensor([3, 5, 10, 10])  # deviations 2 ** 0.5 and 0, mean length 7
    assert length_spread(lengths, 2) == pytest.approx(2**0.5 / 2 / 7)
    assert length_spread(torch.tensor([3, 3, 10, 10]), 2) == 0
    assert length_spread(torch.tensor([0, 0, 0, 0]), 2) == 0
