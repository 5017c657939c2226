"""The world with a tool, by its recipe: the base calls the tool, and training pays for it."""

import json

import pytest

from tests.support.warm import warm

pytestmark = [pytest.mark.slow, pytest.mark.long]  # the base is taught for it


def test_the_base_calls_the_tool_and_learns_to_call_more(tmp_path):
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
