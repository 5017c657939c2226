"""Temporary attribute values."""

import pytest

from trl_ablate.trainer.temporary import replaced


class Holder:
    shared = "class"

    def __init__(self):
        self.own = "own"

    def method(self):
        return "method"


def test_values_hold_for_the_block():
    holder = Holder()
    with replaced(holder, own=1, shared=2, method=lambda: 3):
        assert (holder.own, holder.shared, holder.method()) == (1, 2, 3)
    assert (holder.own, holder.shared, holder.method()) == ("own", "class", "method")
    assert vars(holder) == {"own": "own"}


def test_values_are_put_back_after_an_error_and_in_nested_blocks():
    holder = Holder()
    with pytest.raises(KeyboardInterrupt), replaced(holder, own=1):
        with replaced(holder, own=2, method=None):
            assert holder.own == 2
        assert holder.own == 1
        raise KeyboardInterrupt
    assert vars(holder) == {"own": "own"}


def test_a_name_that_does_not_exist_is_refused_and_nothing_is_changed():
    holder = Holder()
    with (
        pytest.raises(AttributeError, match="Holder has no owned to replace"),
        replaced(holder, own=1, owned=2),
    ):
        pytest.fail("the block runs")
    assert vars(holder) == {"own": "own"}
