"""Real studies with `factors` and `tune`, from plan to report, through the command line."""

from pathlib import Path

import pytest

from tests.support.warm import warm

HEAD = (
    "seeds: [0]
profile: miniature
"
    "overrides: {grpo_steps: 3, eval_size: 64, report_to: none}
"
)

def test_a_tuned_study_from_plan_to_report(tmp_path):
    study = written(
        tmp_path,
        "question: Which one, each at its best?\narms: [grpo.yaml, std_dev_off.yaml]\n"
        "tune: {learning_rate: [3e-5, 1e-5], seeds: 1}\n",
    )
    assert "6 to 7 runs in all" in command(study, "plan")
    command(study, "run")
    command(study, "report")
    text = (tmp_path / "REPORT.md").read_text(encoding="utf-8")
    assert "Each arm at its own best learning_rate" in text and "not known yet" not in text
    assert "## Answer at the reference's learning_rate" in text
    assert (tmp_path / "sensitivity.png").is_file()
    again = command(study, "run")
    assert "done; next: trl-ablate study report" in again
