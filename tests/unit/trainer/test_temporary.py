"""Temporary attribute values."""

from types import SimpleNamespace

import pytest
import torch

from trl_ablate.trainer.batching import BONUS_WEIGHTS
from trl_ablate.trainer.loss_pass import bonus_of_kept_groups
from trl_ablate.trainer.temporary import replaced


class Holder:
    shared = "class"

    def __init__(self):
        self.own = "own"

    def method(self):
        return "method"


def test_values_hold_for_the_block_and_are_put_back_after_an_error_and_in_nested_blocks():
    holder = Holder()
    with replaced(holder, own=1, shared=2, method=lambda: 3):
        assert (holder.own, holder.shared, holder.method()) == (1, 2, 3)
    with pytest.raises(KeyboardInterrupt), replaced(holder, own=1):
        with replaced(holder, own=2, method=None):
            assert holder.own == 2
        assert holder.own == 1
        raise KeyboardInterrupt
    assert (holder.own, holder.shared, holder.method()) == ("own", "class", "method")
    assert vars(holder) == {"own": "own"}


def test_the_coefficient_of_the_entropy_bonus_is_put_back_after_an_error():
    args = SimpleNamespace(entropy_coef_delta=0.1, entropy_coef_min=0.0, entropy_coef_max=1.0)
    model = SimpleNamespace(training=True)
    trainer = SimpleNamespace(model=model, args=args, entropy_coef=0.01)
    inputs = {BONUS_WEIGHTS: torch.tensor([2.0])}
    with pytest.raises(KeyboardInterrupt), bonus_of_kept_groups(trainer, inputs):
        assert trainer.entropy_coef == 0.02
        raise KeyboardInterrupt
    assert trainer.entropy_coef == 0.01


def test_a_name_that_does_not_exist_is_refused_and_nothing_is_changed():
    holder = Holder()
    refused = pytest.raises(AttributeError, match="Holder has no owned to replace")
    with refused, replaced(holder, own=1, owned=2):
        pytest.fail("the block runs")
    assert vars(holder) == {"own": "own"}
