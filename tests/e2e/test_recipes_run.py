"""Every recipe trains two GRPO steps on the miniature, with a quarter of the rollouts and without
trackio; one of them by the README's own command, with all."""

import json
import subprocess

import pytest

from tests.conftest import REPOSITORY
from tests.support.warm import Ended, warm
from trl_ablate import load_recipe

BY_ACCELERATE = "std_dev_off"
OTHERS = {path.stem for path in (REPOSITORY / "recipes").glob("*.yaml")} - {BY_ACCELERATE}
ARMS = [BY_ACCELERATE, *sorted(OTHERS)]

SIZES = ("generation_batch_size", "optimizer_batch_size", "per_device_train_batch_size")


def a_quarter(arm: str) -> list[str]:
    """Sizes that keep the number of microbatches and of optimizer steps of a rollout batch."""
    config = load_recipe(REPOSITORY / "recipes" / f"{arm}.yaml", "miniature").config
    return [word for size in SIZES for word in (f"--{size}", str(getattr(config, size) // 4))]


def train(arm: str, *words: str) -> Ended:
    if arm != BY_ACCELERATE:
        words = (*words, *a_quarter(arm), "--report_to", "none")
        return warm("train", f"recipes/{arm}.yaml", *words).wait()
    done = subprocess.run(
        ["accelerate", "launch", "scripts/train.py", f"recipes/{arm}.yaml", *words],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    return Ended(done.returncode, done.stdout, done.stderr)


@pytest.mark.slow
@pytest.mark.sample(28)  # that all resolve is in `test_resolving`
@pytest.mark.parametrize("arm", ARMS)
def test_two_steps(arm, tmp_path):
    words = ["--profile", "miniature", "--grpo_steps", "2", "--eval_size", "16"]
    words += ["--grader_workers", "1"]
    ended = train(arm, *words, "--train_size", "512", "--output_dir", str(tmp_path / "run"))
    assert ended.code == 0, ended.printed
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (run["status"], run["arm"]) == ("finished", arm)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    settings = json.loads((tmp_path / "run" / "resolved_config.json").read_text())["settings"]
    steps = [row["step"] for row in rows if "grad_norm" in row]
    rollouts = settings["generation_batch_size"] * settings["num_iterations"]
    assert steps[-1] == 2 * rollouts // settings["optimizer_batch_size"]
    assert [row["grpo_step"] for row in rows if "eval_reward" in row] == [0, 2]
