"""Every recipe trains two GRPO steps on the miniature, with a quarter of the rollouts and without
trackio; one of them by the README's own command, with all."""

import subprocess

import pytest

from tests.conftest import REPOSITORY
from tests.support.warm import Ended, grade_without_processes, smaller, warm
from trl_ablate.run.directory import RunDirectory
from trl_ablate.run.json_files import read_object

BY_ACCELERATE = "std_dev_off"
OTHERS = {path.stem for path in (REPOSITORY / "recipes").glob("*.yaml")} - {BY_ACCELERATE}


def train(arm: str, *words: str) -> Ended:
    if arm != BY_ACCELERATE:
        words = (*words, *smaller(arm, "miniature", 4), "--report_to", "none")
        recipe = f"recipes/{arm}.yaml"
        return warm("train", recipe, *words, sabotage=grade_without_processes).wait()
    done = subprocess.run(
        ["accelerate", "launch", "scripts/train.py", f"recipes/{arm}.yaml", *words],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    return Ended(done.returncode, done.stdout, done.stderr)


@pytest.mark.slow
@pytest.mark.sample(28)  # that all resolve is in `test_resolving`
@pytest.mark.parametrize("arm", [BY_ACCELERATE, *sorted(OTHERS)])
def test_two_steps(arm, tmp_path):
    run = RunDirectory(tmp_path / "run")
    words = ("--profile", "miniature", "--grpo_steps", "2", "--eval_size", "16")
    words += ("--train_size", "512", "--output_dir", str(run.path))
    ended = train(arm, *words)
    assert ended.code == 0, ended.printed
    record, settings = run.read(), read_object(run.config_file)["settings"]
    assert (record["status"], record["arm"]) == ("finished", arm)
    rows = list(run.metrics())
    steps = [row["step"] for row in rows if "grad_norm" in row]
    rollouts = settings["generation_batch_size"] * settings["num_iterations"]
    assert steps[-1] == 2 * rollouts // settings["optimizer_batch_size"]
    assert [row["grpo_step"] for row in rows if "eval_reward" in row] == [0, 2]
