"""Restores the SIGTERM handler: commands install one, and here they run in the test process."""

import signal

import pytest


@pytest.fixture(autouse=True)
def signals_as_before():
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)
