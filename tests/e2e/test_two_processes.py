"""Two gloo processes compute what one does with twice the batch, and take the same gradients of an
X-ray, on rollouts drawn by either."""

import json
import os
from pathlib import Path

import pytest

from tests.support import two_processes
from tests.support.two_processes import in_two_processes
from tests.support.warm import fork
from tests.support.xray_cases import small_xray

pytestmark = pytest.mark.slow

TOLERANCE = 2e-6
"""Weights of order 0.1 after one SGD step of rate 1: sums of 16 rows in two orders, fp32."""


@pytest.fixture(scope="module")
def measured(tiny_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    one, two = folder / "1.json", folder / "2.json"
    alone = fork(two_processes.main, tiny_model, str(one)).wait()
    assert alone.code == 0, alone.printed
    in_two_processes(two_processes.main, tiny_model, str(two))
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


FIGURES = ("norm_ratio", "cosine_batch", "cosine_batch_min", "cosine_mean", "self_cosine", "signal")
WITHIN = 1e-4
"""Sums of float32 in another order."""
ARMS = ["grpo", "length_norm_constant", "grpo+group_filter=drop"]


def compare(model: str, output: str, rollouts: str | None, processes: int = 1) -> None:
    """An X-ray on rollouts that are given or drawn."""
    from trl_ablate.xray import xray

    settings = small_xray(model, per_device_train_batch_size=8 // processes)
    given = rollouts and Path(rollouts)
    result = xray(ARMS, (), 2, overrides=settings, output=output, rollouts=given)
    if int(os.environ.get("RANK", "0")) == 0:
        (Path(output) / "found.json").write_text(json.dumps(result.to_dict()))


def test_one_process_takes_the_same_gradients_on_them(tiny_model, tmp_path):
    folders = [tmp_path / "two", tmp_path / "one"]
    in_two_processes(compare, tiny_model, str(folders[0]), None, 2)
    rollouts = str(folders[0] / "rollouts" / "base")
    alone = fork(compare, tiny_model, str(folders[1]), rollouts).wait()
    assert alone.code == 0, alone.printed
    two, one = (json.loads((folder / "found.json").read_text()) for folder in folders)
    assert two["arms"].keys() == one["arms"].keys()
    for name in two["arms"]:
        ours, theirs = two["arms"][name][0], one["arms"][name][0]
        for figure in FIGURES:
            assert ours[figure] == pytest.approx(theirs[figure], rel=WITHIN, abs=WITHIN), figure
        assert ours["verdict"] == theirs["verdict"]
        assert ours["tokens"] == pytest.approx(theirs["tokens"], abs=1e-6)
        for by, shares in ours["shares"].items():
            assert shares == pytest.approx(theirs["shares"][by], abs=WITHIN), by
    assert one["arms"]["length_norm_constant"][0]["cosine_mean"] < 0.99
