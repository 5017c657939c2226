"""Control rewards against tables computed by hand."""

import math
from unittest.mock import Mock

import pytest
import torch

from trl_ablate.controls import flipped, placebo_reward


def test_noise_exchanges_zero_and_one_where_the_draw_is_below_it():
    rewards = torch.tensor([[0.0, 1.0], [1.0, 0.5], [1.0, math.nan], [0.0, 0.0]])
    got = flipped(rewards, [0.1, 0.2, 0.29, 0.3], 0.3)
    assert got[:2].tolist() == [[1.0, 0.0], [0.0, 0.5]]
    assert got[2, 0] == 0 and got[2, 1].isnan()
    assert got[3].tolist() == [0.0, 0.0]


def test_noise_needs_no_float64_which_some_devices_lack(monkeypatch):
    made = Mock(wraps=torch.tensor)
    monkeypatch.setattr(torch, "tensor", made)
    flipped(torch.zeros(1, 1), [0.1], 0.3)
    assert made.call_args.kwargs.get("dtype") is not torch.float64


@pytest.mark.parametrize(("probability", "flips"), [(0.0, 0), (1.0, 3)])
def test_noise_of_none_or_of_all(probability, flips):
    rewards = torch.zeros(3, 1)
    assert flipped(rewards, [0.0, 0.5, 0.999], probability).sum() == flips


@pytest.mark.parametrize(
    ("kind", "expected"), [("random", [1, 0, 0]), ("length", [0.25, 1, 0]), ("constant", [1, 1, 1])]
)
def test_a_placebo_ignores_the_answer(kind, expected):
    got = placebo_reward(kind, [0.49, 0.5, 0.9], torch.tensor([3, 12, 0]), 12)
    assert got.tolist() == expected


def test_an_unknown_placebo_is_refused_by_name():
    with pytest.raises(ValueError, match="placebo is 'sugar'; allowed: random, length, constant"):
        placebo_reward("sugar", [0.0], torch.tensor([1]), 12)
