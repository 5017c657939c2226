"""`scripts/evaluate.py` as a person runs it."""

import json

import pytest

from tests.support.warm import Ended, warm
from trl_ablate.estimates import standard_errors, summary


def script(name: str, *words: object) -> Ended:
    return warm(name, *words).wait()


def rows_of(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_the_numbers_are_those_of_the_completions(tiny_model, tmp_path):
    output = tmp_path / "found.json"
    done = script(
        "evaluate", tiny_model, "--profile", "miniature", "--samples", 3, "--temperature", 0.5,
        "--eval_size", 6, "--max_completion_length", 8, "--output", output, "--completions",
        "--per_question", tmp_path / "rates.jsonl",
    )  # fmt: skip
    assert done.code == 0, done.stdout + done.stderr
    found = json.loads(output.read_text())
    (main,) = found["sets"].values()
    rows = rows_of(tmp_path / "found.completions.jsonl")
    assert len(rows) == 18 and main["questions"] == 6
    assert [rows[i]["prompt"] for i in (0, 1, 2)] == [rows[0]["prompt"]] * 3
    assert {key: main["metrics"][key] for key in summary(rows, 3)} == summary(rows, 3)
    assert main["standard_errors"] == standard_errors(rows, 3)
    rates = rows_of(tmp_path / "rates.jsonl")
    assert all(one["question"] in row["prompt"] for one, row in zip(rates, rows[::3], strict=True))
    assert {one["graded"] for one in rates} == {3}
    assert (found["samples"], found["temperature"], found["top_p"]) == (3, 0.5, 1.0)
    assert found["git"]["commit"] and found["resolved"]["task"]["dataset"] == "miniature/chains"
    assert "pass@2" in done.stdout and "±" in done.stdout


@pytest.mark.slow
def test_a_run_is_evaluated_to_its_own_last_number(tmp_path):
    """The training's last evaluation, and the one of what it saved, are the same."""
    run, output = tmp_path / "run", tmp_path / "found.json"
    done = script(
        "train", "recipes/question_only.yaml", "--profile", "miniature", "--grpo_steps", 1,
        "--eval_size", 16, "--generation_batch_size", 16, "--optimizer_batch_size", 16,
        "--per_device_train_batch_size", 16, "--eval_on_start", "false", "--report_to", "none",
        "--seed", 5, "--learning_rate", "3e-4", "--output_dir", run,
    )  # fmt: skip
    assert done.code == 0, done.stdout + done.stderr
    last = [row for row in rows_of(run / "metrics.jsonl") if "eval_reward" in row][-1]
    done = script("evaluate", run, "--output", output)
    assert done.code == 0, done.stdout + done.stderr
    (main,) = json.loads(output.read_text())["sets"].values()
    for name in ("reward", "format_reward", "answer_reward", "mean_length", "truncated"):
        assert main["metrics"][name] == pytest.approx(last[f"eval_{name}"], abs=1e-9), name
    assert main["metrics"]["mean_length"] > 0
    assert json.loads((run / "run.json").read_text())["status"] == "finished"
