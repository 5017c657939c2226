"""Fixtures for the tests that compare with stock TRL and with closed formulas."""

import pytest

from tests.contract.alike import Both
from tests.contract.formulas import small_batch


@pytest.fixture
def both(tiny_model, tmp_path):
    """`both(**arguments)`: a `Both` whose trainers get these arguments besides their settings."""
    return lambda **arguments: Both(tiny_model, tmp_path, arguments)


@pytest.fixture
def batch():
    return small_batch()
