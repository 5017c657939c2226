"""Two gloo processes compute what one does with twice the batch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("two processes")

PROGRAM = Path(__file__).parents[1] / "support" / "two_processes.py"
TOLERANCE = 2e-6
"""Weights of order 0.1 after one SGD step of rate 1: sums of 16 rows in two orders, fp32."""


@pytest.fixture(scope="module")
def measured(tiny_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    results = {}
    for processes in (1, 2):
        output = folder / f"{processes}.json"
        launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        subprocess.run(
            [sys.executable, "-m", *launcher, str(PROGRAM), tiny_model, str(output)],
            check=True,
            timeout=300,
            capture_output=True,
        )
        results[processes] = json.loads(output.read_text())
    assert [results[n]["processes"] for n in (1, 2)] == [1, 2]
    return list(zip(results[1]["results"], results[2]["results"], strict=True))


def test_the_same_advantages(measured):
    for one, two in measured:
        assert one["completions"] == two["completions"]
        assert one["advantages"] == pytest.approx(two["advantages"], abs=1e-6)
        assert any(one["advantages"])


def test_the_same_gradient(measured):
    for one, two in measured:
        for ours, theirs in zip(one["weights"], two["weights"], strict=True):
            assert ours == pytest.approx(theirs, abs=TOLERANCE)


def test_the_same_evaluation(measured):
    for one, two in measured:
        for name, value in one["evaluation"].items():
            if name != "time/eval" and not any(word in name for word in ("runtime", "per_second")):
                assert value == pytest.approx(two["evaluation"][name]), name
