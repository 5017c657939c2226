"""What arrives in trackio: runs side by side, curves, rollouts and an alert."""

import json
import os
import sqlite3
import subprocess
import sys
from collections import defaultdict

import pytest

from tests.conftest import REPOSITORY
from trl_ablate.run.directory import RunDirectory
from trl_ablate.run.json_files import read_jsonl

pytestmark = pytest.mark.slow

WORDS = (
    "recipes/quickstart.yaml", "--project", "tried", "--run_name", "mine", "--study", "tries",
    "--eval_steps", "2", "--eval_size", "16", "--generation_batch_size", "32",
    "--optimizer_batch_size", "32", "--per_device_train_batch_size", "32",
)  # fmt: skip
ALARMED = ("--guard_length_factor", "1.0001", "--guard_window", "2", "--guard_patience", "1")
"""Any change of the responses' length is an alert."""


SESSION = """
import json, sys
from tests.support.warm import grade_without_processes
from trl_ablate.cli.train import main

grade_without_processes()
for words in json.loads(sys.argv[1]):
    assert main(words) == 0
"""
"""All in one interpreter, which imports what a training needs once."""


def rows_of(storage):
    """Run name -> step -> what trackio has of it."""
    rows = defaultdict(lambda: defaultdict(dict))
    for name, text in storage.execute("SELECT run_name, metrics FROM metrics ORDER BY id"):
        metrics = json.loads(text)
        if "train/global_step" in metrics:
            rows[name][metrics["train/global_step"]] |= metrics
    return rows


def test_runs_of_one_name_stay_apart_and_a_resumed_one_together(tmp_path):
    """Two seeds under one name, the first one resumed."""
    runs = [RunDirectory(tmp_path / seed) for seed in "01"]
    trainings = [
        [*WORDS, "--seed", run.path.name, "--output_dir", str(run.path), *words]
        for run, *words in (
            (runs[0], "--grpo_steps", "3", "--save_steps", "3", *ALARMED),
            (runs[1], "--grpo_steps", "2"),
            (runs[0], "--grpo_steps", "4", "--resume"),
        )
    ]
    done = subprocess.run(
        [sys.executable, "-c", SESSION, json.dumps(trainings)],
        cwd=REPOSITORY, env={**os.environ, "TRACKIO_DIR": str(tmp_path)},
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    with sqlite3.connect(tmp_path / "tried.db") as storage:
        rows = rows_of(storage)
        configs = dict(storage.execute("SELECT run_name, config FROM configs"))
        alerts = {title for (title,) in storage.execute("SELECT title FROM alerts")}
    first, second = names = [run.read()["run_name"] for run in runs]
    assert set(rows) == set(configs) == set(names)
    assert first.startswith("mine-") and second.startswith("mine-") and first != second
    trained = {name: [s for s in rows[name] if "train/reward" in rows[name][s]] for name in rows}
    assert trained == {first: [1, 2, 3, 4], second: [1, 2]}
    for seed, (name, run) in enumerate(zip(names, runs, strict=True)):
        wanted = {"study": "tries", "arm": "quickstart", "seed": seed}
        assert json.loads(configs[name]).items() >= wanted.items()
        for row in run.metrics():
            for key in {"reward", "eval_reward"} & set(row):
                shown = key.replace("eval_", "eval/") if "eval" in key else f"train/{key}"
                assert rows[name][row["step"]][shown] == pytest.approx(row[key])
    assert "guard: length" in alerts and ": length (warn)" in done.stdout
    table = rows[first][2]["rollouts"]["_value"]
    lines = read_jsonl(runs[0].rollout_file(2))
    assert table == [{"step": 2, **line} for line in lines] and len(table) == 16
