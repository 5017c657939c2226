"""The miniature learns, and collapses where it should: the README's command, with numbers."""

import json
import subprocess

import pytest

from tests.conftest import REPOSITORY
from tests.support.warm import warm

pytestmark = pytest.mark.slow


def curve(folder, recipe: str, *words: str, profile: str = "miniature-sums") -> list[dict]:
    """Train by the command line; the evaluations."""
    done = subprocess.run(
        ["accelerate", "launch", "scripts/train.py", f"recipes/{recipe}.yaml", *words,
         "--profile", profile, "--eval_steps", "20", "--report_to", "none",
         "--output_dir", str(folder / "run")],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=1200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").open()]
    return [row for row in rows if "eval_reward" in row]


def test_the_quickstart_learns(tmp_path):
    evaluations = curve(tmp_path, "quickstart", profile="miniature")
    assert 0.1 < evaluations[0]["eval_reward"] < 0.3
    assert evaluations[-1]["eval_reward"] >= 0.6


@pytest.mark.long
def test_ten_times_the_learning_rate_collapses(tmp_path):
    evaluations = curve(tmp_path, "grpo", "--learning_rate", "3e-4", "--grpo_steps", "15")
    assert evaluations[-1]["eval_reward"] < 0.02
    assert evaluations[-1]["eval_format_reward"] < 0.05


@pytest.mark.long
@pytest.mark.parametrize(("length_norm", "survives"), [("mean", False), ("constant", True)])
def test_on_chains_a_missing_baseline_costs_the_steps_only_with_a_mean(
    tmp_path, length_norm, survives
):
    """The pass rate divided by the length is maximised: direct answers win, and steps vanish."""
    words = ("--length_norm", length_norm, "--grpo_steps", "40", "--eval_size", "400")
    first, *_, last = curve(tmp_path, "no_baseline", *words, profile="miniature")
    assert 0.1 < first["eval_reward"] < 0.3
    assert 0.4 < first["eval_style/direct"] < 0.75
    if survives:
        assert last["eval_reward"] > 0.5 and last["eval_style/direct"] < 0.3
    else:
        assert last["eval_reward"] < 0.3 and last["eval_style/direct"] > 0.8


@pytest.mark.long  # the base is taught for it
def test_a_base_with_a_tool_calls_it_and_learns_to_call_more(tmp_path):
    words = ("--grpo_steps", 12, "--eval_steps", 12, "--eval_size", 256, "--report_to", "none")
    ended = warm(
        "train", "recipes/worlds/calculator.yaml", *words, "--output_dir", tmp_path / "run"
    ).wait()
    assert ended.code == 0, ended.printed
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    first, last = (row for row in rows if "eval_reward" in row)
    assert 0.1 < first["eval_style/called"] < 0.5
    assert 0.03 < first["eval_reward"] < 0.25
    assert 1 < first["eval_tools/turns"] < 1.5
    assert last["eval_style/called"] > first["eval_style/called"] + 0.2
    assert last["eval_reward"] > first["eval_reward"] + 0.15
