"""Two gloo processes compute what one does with twice the batch."""

import json

import pytest

from tests.support import two_processes
from tests.support.warm import fork

pytestmark = pytest.mark.slow

TOLERANCE = 2e-6
"""Weights of order 0.1 after one SGD step of rate 1: sums of 16 rows in two orders, fp32."""


@pytest.fixture(scope="module")
def measured(tiny_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    one, two = folder / "1.json", folder / "2.json"
    alone = fork(two_processes.main, tiny_model, str(one)).wait()
    assert alone.code == 0, alone.printed
    two_processes.in_two_processes(two_processes.main, tiny_model, str(two))
    found = [json.loads(output.read_text()) for output in (one, two)]
    assert [each["processes"] for each in found] == [1, 2]
    return list(zip(found[0]["results"], found[1]["results"], strict=True))


def test_the_same_advantages(measured):
    for one, two in measured:
        assert one["completions"] == two["completions"]
        assert one["advantages"] == pytest.approx(two["advantages"], abs=1e-6)
        assert any(one["advantages"])
        assert one["used"] == two["used"]


def test_some_groups_were_dropped_and_the_processes_have_unequal_numbers_left(measured):
    for settings, (one, two) in zip(two_processes.SETTINGS, measured, strict=True):
        if settings.get("group_filter") == "drop":
            assert 0 < one["used"] < two_processes.ROWS
            left = [any(two["advantages"][at : at + 4]) for at in range(0, two_processes.ROWS, 4)]
            assert sum(left[:2]) != sum(left[2:])


def test_the_same_gradient(measured):
    for one, two in measured:
        for ours, theirs in zip(one["weights"], two["weights"], strict=True):
            assert ours == pytest.approx(theirs, abs=TOLERANCE)


def test_the_same_evaluation(measured):
    for one, two in measured:
        for name, value in one["evaluation"].items():
            if name != "time/eval" and not any(word in name for word in ("runtime", "per_second")):
                assert value == pytest.approx(two["evaluation"][name]), name
