"""Control rewards against tables computed by hand."""

from math import nan
from unittest.mock import Mock

import pytest
import torch

from trl_ablate.controls import flipped, placebo_reward


def test_noise_exchanges_zero_and_one_where_the_draw_is_below_it(monkeypatch):
    """It makes no tensor of float64, which some devices lack."""
    rewards = torch.tensor([[0.0, 1.0], [1.0, 0.5], [1.0, nan], [0.0, 0.0]])
    made = Mock(wraps=torch.tensor)
    monkeypatch.setattr(torch, "tensor", made)
    got = flipped(rewards, [0.1, 0.2, 0.29, 0.3], 0.3).nan_to_num(-1)
    assert got.tolist() == [[1.0, 0.0], [0.0, 0.5], [0.0, -1.0], [0.0, 0.0]]
    assert flipped(rewards[:1], [0.999], 1.0).tolist() == [[1.0, 0.0]]
    assert torch.float64 not in [call.kwargs.get("dtype") for call in made.call_args_list]


@pytest.mark.parametrize(
    ("kind", "expected"), [("random", [1, 0, 0]), ("length", [0.25, 1, 0]), ("constant", [1, 1, 1])]
)
def test_a_placebo_ignores_the_answer(kind, expected):
    got = placebo_reward(kind, [0.49, 0.5, 0.9], torch.tensor([3, 12, 0]), 12)
    assert got.tolist() == expected


def test_an_unknown_placebo_is_refused_by_name():
    with pytest.raises(ValueError, match="placebo is 'sugar'; allowed: random, length, constant"):
        placebo_reward("sugar", [0.0], torch.tensor([1]), 12)
