"""What arrives in trackio: runs side by side, curves, rollouts and an alert."""

import json
import os
import sqlite3
import subprocess
import sys
from collections import defaultdict

import pytest

from tests.conftest import REPOSITORY

pytestmark = pytest.mark.slow

ALARMED = ["--guard_length_factor", "1.0001", "--guard_window", "2", "--guard_patience", "1"]
"""Any change of the responses' length is an alert."""


def train(folder, output, *words):
    done = subprocess.run(
        [sys.executable, "scripts/train.py", "recipes/quickstart.yaml", "--output_dir", output,
         "--project", "tried", "--run_name", "mine", "--study", "tries", "--eval_size", "16",
         "--eval_steps", "2", "--generation_batch_size", "32", "--optimizer_batch_size", "32",
         "--per_device_train_batch_size", "32", "--grader_workers", "1", *words],
        cwd=REPOSITORY, env={**os.environ, "TRACKIO_DIR": str(folder)},
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def tried(tmp_path_factory):
    """Two seeds under one name, the first one resumed: trackio's folder, the runs, their output."""
    folder = tmp_path_factory.mktemp("trackio")
    first, second = tmp_path_factory.mktemp("runs") / "0", tmp_path_factory.mktemp("runs") / "1"
    said = train(folder, first, "--seed", "0", "--grpo_steps", "3", "--save_steps", "3", *ALARMED)
    said += train(folder, second, "--seed", "1", "--grpo_steps", "2")
    said += train(folder, first, "--seed", "0", "--grpo_steps", "4", "--resume")
    return folder, (first, second), said


def names_of(runs):
    return [json.loads((run / "run.json").read_text())["run_name"] for run in runs]


def rows_of(folder):
    """Run name -> step -> what trackio has of it, and run name -> config."""
    rows, configs = defaultdict(lambda: defaultdict(dict)), {}
    with sqlite3.connect(folder / "tried.db") as storage:
        for name, text in storage.execute("SELECT run_name, metrics FROM metrics ORDER BY id"):
            metrics = json.loads(text)
            if "train/global_step" in metrics:
                rows[name][metrics["train/global_step"]] |= metrics
        for name, text in storage.execute("SELECT run_name, config FROM configs"):
            configs[name] = json.loads(text)
    return rows, configs


def test_runs_of_one_name_stay_apart_and_a_resumed_one_together(tried):
    folder, runs, _ = tried
    rows, configs = rows_of(folder)
    first, second = names_of(runs)
    assert set(rows) == set(configs) == {first, second}
    assert first.startswith("mine-") and second.startswith("mine-") and first != second
    trained = {name: [s for s in rows[name] if "train/reward" in rows[name][s]] for name in rows}
    assert trained == {first: [1, 2, 3, 4], second: [1, 2]}
    for name, seed in ((first, 0), (second, 1)):
        keys = {key: configs[name][key] for key in ("study", "arm", "seed")}
        assert keys == {"study": "tries", "arm": "quickstart", "seed": seed}


def test_everything_arrived(tried):
    folder, runs, _ = tried
    rows, _ = rows_of(folder)
    for name, run in zip(names_of(runs), runs, strict=True):
        for row in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()):
            for key in {"reward", "eval_reward"} & set(row):
                shown = key.replace("eval_", "eval/") if "eval" in key else f"train/{key}"
                assert rows[name][row["step"]][shown] == pytest.approx(row[key])


def test_rollouts_of_an_evaluation_are_a_table_and_the_guard_has_sent_an_alert(tried):
    folder, runs, said = tried
    with sqlite3.connect(folder / "tried.db") as storage:
        titles = {title for (title,) in storage.execute("SELECT title FROM alerts")}
    assert titles == {"guard: length"} and "guard, step" in said
    table = rows_of(folder)[0][names_of(runs)[0]][2]["rollouts"]["_value"]
    lines = (runs[0] / "rollouts" / "step_000002.jsonl").read_text().splitlines()
    assert table == [{"step": 2, **json.loads(line)} for line in lines]
    assert len(table) == 16
