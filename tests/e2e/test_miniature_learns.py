"""The miniature learns: the README's numbers. Where it collapses is in the committed studies."""

import pytest

from tests.support.warm import warm
from trl_ablate.run.directory import RunDirectory

pytestmark = pytest.mark.slow


def curve(folder, recipe: str, *words: object) -> tuple[dict, dict]:
    """Train by the command line; the first and the last evaluation."""
    run = RunDirectory(folder / "run")
    words += ("--report_to", "none", "--output_dir", run.path)
    ended = warm("train", f"recipes/{recipe}.yaml", *words).wait()
    assert ended.code == 0, ended.printed
    evaluated = [row for row in run.metrics() if "eval_reward" in row]
    return evaluated[0], evaluated[-1]


def test_the_quickstart_learns(tmp_path):
    first, last = curve(tmp_path, "quickstart", "--profile", "miniature", "--eval_steps", 40)
    assert 0.1 < first["eval_reward"] < 0.3
    assert last["eval_reward"] >= 0.6


@pytest.mark.long  # the base is taught for it
def test_a_base_with_a_tool_calls_it_and_learns_to_call_more(tmp_path):
    words = ("--grpo_steps", 12, "--eval_steps", 12, "--eval_size", 256)
    first, last = curve(tmp_path, "worlds/calculator", *words)
    assert 0.1 < first["eval_style/called"] < 0.5
    assert 0.03 < first["eval_reward"] < 0.25
    assert 1 < first["eval_tools/turns"] < 1.5
    assert last["eval_style/called"] > first["eval_style/called"] + 0.2
    assert last["eval_reward"] > first["eval_reward"] + 0.15
