"""Every recipe trains two GRPO steps on the miniature, by the README's own command."""

import json
import subprocess

import pytest

from tests.conftest import REPOSITORY

ARMS = sorted(path.stem for path in (REPOSITORY / "recipes").glob("*.yaml"))


@pytest.mark.slow
@pytest.mark.parametrize("arm", ARMS)
def test_two_steps(arm, tmp_path):
    done = subprocess.run(
        ["accelerate", "launch", "scripts/train.py", f"recipes/{arm}.yaml",
         "--profile", "miniature", "--grpo_steps", "2", "--eval_size", "16",
         "--output_dir", str(tmp_path / "run")],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (run["status"], run["arm"]) == ("finished", arm)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    per_rollout = json.loads((tmp_path / "run" / "resolved_config.json").read_text())
    steps = [row["step"] for row in rows if "grad_norm" in row]
    settings = per_rollout["settings"]
    rollouts = settings["generation_batch_size"] * settings["num_iterations"]
    assert steps[-1] == 2 * rollouts // settings["optimizer_batch_size"]
    assert [row["grpo_step"] for row in rows if "eval_reward" in row] == [0, 2]
