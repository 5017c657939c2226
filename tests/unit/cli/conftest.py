"""Commands listen for SIGTERM; here they run in the process of the tests."""

import signal

import pytest


@pytest.fixture(autouse=True)
def signals_as_before():
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)
