"""`scripts/bench.py`: every mode measures what it says, and ours is the same step, only faster."""

import json
import os
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("bench")]


def bench(tmp_path, *words):
    """The JSON that a mode writes, its rows by name; on every core, as in a user's shell."""
    output = tmp_path / "bench.json"
    environment = os.environ | {"OMP_NUM_THREADS": str(os.cpu_count())}
    done = subprocess.run(
        [sys.executable, "scripts/bench.py", *map(str, words), "--output", str(output)],
        cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(output.read_text("utf-8"))
    return {row["what"]: row for row in found["rows"]}, found["facts"]


def test_the_training_phase_is_the_same_in_less_time(tmp_path):
    rows, facts = bench(tmp_path, "train", "--rows", 32, "--rounds", 1)
    assert facts["gradient norms, relative"] < 1e-5
    assert facts["weights at the end, absolute"] < 1e-5
    assert rows["trl_ablate"]["ratio"] > 2
    assert rows["trl_ablate"]["padded"] < rows["stock TRL"]["padded"] / 4


def test_the_correction_costs_no_forward_pass_of_its_own(tmp_path):
    rows, facts = bench(tmp_path, "train", "--corrected", "--rows", 32, "--rounds", 2)
    assert facts["gradient norms, relative"] < 1e-5
    assert rows["trl_ablate"]["s/step"] < rows["trl_ablate, extra forward"]["s/step"] / 1.1


def test_uniform_lengths_cost_nothing_extra(tmp_path):
    rows, facts = bench(tmp_path, "train", "--uniform", "--mean_length", 128, "--rows", 32)
    assert facts["gradient norms, relative"] < 1e-5
    assert rows["trl_ablate"]["ratio"] > 0.9


def test_one_shot_evaluation_grades_the_same_in_less_time(tmp_path):
    rows, facts = bench(tmp_path, "eval", "--prompts", 512, "--rounds", 3)
    assert rows["stock TRL, batch of 8"]["ratio to ours"] > 5
    assert rows["stock TRL, batch of 64"]["ratio to ours"] > 1.5
    assert facts["completions that both said"] > 480
    assert facts["of them with another reward"] == 0


def test_the_pool_gives_the_verdicts_of_one_process(tmp_path):
    rows, facts = bench(tmp_path, "reward")
    assert facts["verdicts that differ"] == 0
    assert facts["ratio"] > 2


def test_whole_steps_and_their_parts(tmp_path):
    rows, _ = bench(tmp_path, "step", "--steps", 2, "--rows", 64)
    ours = rows["trl_ablate"]
    assert 0 < ours["s rollout"] + ours["s reward"] + ours["s train"] <= 1.2 * ours["s/step"]


def test_every_axis_of_scale_has_its_points(tmp_path):
    rows, _ = bench(
        tmp_path, "scale", "--rows", 16, 32, "--mean_lengths", 32, 64, "--processes", 1, 2,
        "--steps", 1,
    )  # fmt: skip
    assert list(rows) == [
        "16 rollouts of 32 tokens, 1 process(es)",
        "32 rollouts of 32 tokens, 1 process(es)",
        "16 rollouts of 64 tokens, 1 process(es)",
        "16 rollouts of 32 tokens, 2 process(es)",
    ]
    assert all(row["µs/token"] > 0 for row in rows.values())
