"""Real studies with `factors` and `tune`, from plan to report, through the command line."""

from pathlib import Path

import pytest

from tests.support.warm import warm

HEAD = """
seeds: [0]
profile: miniature
overrides: {grpo_steps: 3, eval_size: 64, report_to: none, grader_workers: 1,
  generation_batch_size: 32, optimizer_batch_size: 32, per_device_train_batch_size: 32}
"""


def command(study: Path, name: str, *words: str) -> str:
    ended = warm("study", name, study, "--runs", study.parent / "runs", *words).wait()
    assert ended.code == 0, ended.printed
    return " ".join(ended.stdout.split())


def written(tmp_path: Path, text: str) -> Path:
    study = tmp_path / "study.yaml"
    study.write_text(text + HEAD)
    return study


@pytest.mark.slow
def test_a_factorial_study_from_plan_to_report(tmp_path):
    study = written(
        tmp_path,
        "question: Do the settings act together?\n"
        "factors: {surrogate: [clip, no_clip], delta: [null, 4.0], scale_rewards: [group, none]}\n",
    )
    planned = command(study, "plan")
    assert "6 cells" in planned and "6 runs: 0 done" in planned
    command(study, "run")
    assert command(study, "status").count("✓") == 6 + 1  # and the legend
    command(study, "report")
    text = (tmp_path / "REPORT.md").read_text(encoding="utf-8")
    assert "Excluded cell no_clip--4--group" in text
    assert "scale_rewards: on average none" in text
    assert (tmp_path / "effects.png").is_file() and (tmp_path / "interactions.png").is_file()


@pytest.mark.long
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
