"""Two gloo processes take the gradients that one takes, on rollouts drawn by either."""

import json

import pytest

from tests.support import xray_processes
from tests.support.two_processes import free_port
from tests.support.warm import fork

pytestmark = pytest.mark.slow

FIGURES = ("norm_ratio", "cosine_batch", "cosine_batch_min", "cosine_mean", "self_cosine", "signal")
WITHIN = 1e-4
"""Sums of float32 in another order."""


@pytest.fixture(scope="module")
def of_two(tiny_model, tmp_path_factory):
    """Two processes draw and compare; the folder."""
    folder = tmp_path_factory.mktemp("two")
    port = free_port()
    target, arguments = xray_processes.one_of_two, (port, tiny_model, str(folder), None)
    for ended in [each.wait() for each in [fork(target, rank, *arguments) for rank in (0, 1)]]:
        assert ended.code == 0, ended.printed
    return folder


def test_one_process_takes_the_same_gradients_on_them(tiny_model, of_two, tmp_path):
    rollouts = str(of_two / "rollouts" / "base")
    alone = fork(xray_processes.main, tiny_model, str(tmp_path), rollouts).wait()
    assert alone.code == 0, alone.printed
    two, one = (json.loads((path / "found.json").read_text()) for path in (of_two, tmp_path))
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
