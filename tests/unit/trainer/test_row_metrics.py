"""TRL's metrics from rows: they do not depend on the microbatch of a row."""

import math

import pytest
import torch

from trl_ablate.trainer.loss_metrics import RowMetrics, metric_of_microbatches, row_sums

NAN = float("nan")


def test_sums_of_a_row_leave_out_the_padding():
    sums = row_sums(
        torch.tensor([[1.0, 2.0, NAN], [4.0, math.inf, 9.0]]), torch.tensor([[1, 1, 0], [1, 0, 0]])
    )
    assert sums.tolist() == [[3.0, 2.0], [4.0, 1.0]]


def test_metrics_of_microbatches_by_hand():
    # rows of sums 6, 1 | 0, 8 over 3, 1 | 0, 2 tokens, drawn into microbatches 1, 0, 1, 0
    sums = torch.tensor([[6.0, 3.0], [1.0, 1.0], [0.0, 0.0], [8.0, 2.0]])
    drawn = torch.tensor([1, 0, 1, 0])
    assert metric_of_microbatches("kl", sums, drawn) == [3.0, 2.0]  # 9 / 3 and 6 / 3
    assert metric_of_microbatches("clip_ratio/low_min", sums, drawn) == [1.0, 2.0]
    assert metric_of_microbatches("clip_ratio/high_max", sums, drawn) == [4.0, 2.0]


def test_a_microbatch_without_a_token():
    nothing, drawn = torch.zeros(2, 2), torch.tensor([0, 0])
    assert metric_of_microbatches("kl", nothing, drawn) == [0.0]
    assert math.isnan(metric_of_microbatches("clip_ratio/low_min", nothing, drawn)[0])


def test_metrics_are_replaced_once_all_rows_are_known():
    metrics = {"kl": [9.0, 100.0]}  # one of a step before, one of the first regrouped microbatch
    rows = RowMetrics(metrics, gather=lambda tensor: tensor)
    rows.add(torch.tensor([1, 0]), {"kl": torch.tensor([[2.0, 1.0], [4.0, 2.0]])}, 2)
    assert metrics["kl"] == [9.0, 100.0]
    metrics["kl"].append(200.0)
    rows.add(torch.tensor([1, 0]), {"kl": torch.tensor([[4.0, 1.0], [5.0, 1.0]])}, 2)
    assert metrics["kl"] == pytest.approx([9.0, 9 / 3, 6 / 2])
