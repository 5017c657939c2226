"""Two gloo processes take the gradients that one takes, on rollouts drawn by either."""

import json
import os
from pathlib import Path

import pytest

from tests.support.two_processes import in_two_processes
from tests.support.warm import fork
from tests.support.xray_cases import small_xray

pytestmark = pytest.mark.slow

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
