"""Fixtures for the tests that compare with stock TRL."""

import pytest

from tests.contract.alike import Both


@pytest.fixture
def both(tiny_model, tmp_path):
    """`both(**arguments)`: a `Both` whose trainers get these arguments besides their settings."""
    return lambda **arguments: Both(tiny_model, tmp_path, arguments)
