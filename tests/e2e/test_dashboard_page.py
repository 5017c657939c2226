"""trackio as a user sees it in a browser: runs side by side, curves, rollouts and an alert."""

import json
import os
import re
import sqlite3
import subprocess
import sys
from collections import defaultdict

import pytest

from tests.conftest import REPOSITORY
from tests.support.browser import CHROMIUM, Browser

pytestmark = pytest.mark.slow

ALARMED = ["--guard_length_factor", "1.0001", "--guard_window", "2", "--guard_patience", "1"]
"""Any change of the responses' length is an alert."""

COLOURED = """
(metric => {
    const canvas = document.querySelector(`[data-metric="${metric}"] canvas`);
    if (!canvas || !canvas.width) return 0;
    const {width, height} = canvas;
    const {data} = canvas.getContext('2d').getImageData(0, 0, width, height);
    let coloured = 0;
    for (let i = 0; i < data.length; i += 4) {
        const [low, , high] = [data[i], data[i + 1], data[i + 2]].sort((a, b) => a - b);
        coloured += data[i + 3] > 0 && high - low > 40;
    }
    return coloured;
})
"""
"""Pixels of a metric's plot that are not grey: its axes are, its curve is not."""


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
    folder, runs, said = tried
    rows, _ = rows_of(folder)
    for name, run in zip(names_of(runs), runs, strict=True):
        for row in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()):
            for key in {"reward", "eval_reward"} & set(row):
                shown = key.replace("eval_", "eval/") if "eval" in key else f"train/{key}"
                assert rows[name][row["step"]][shown] == pytest.approx(row[key])


def test_rollouts_of_an_evaluation_are_a_table(tried):
    folder, runs, _ = tried
    table = rows_of(folder)[0][names_of(runs)[0]][2]["rollouts"]["_value"]
    lines = (runs[0] / "rollouts" / "step_000002.jsonl").read_text().splitlines()
    assert table == [{"step": 2, **json.loads(line)} for line in lines]
    assert len(table) == 16


@pytest.fixture
def dashboard(tried):
    """The address of `trackio show`."""
    quiet = {"TRACKIO_DIR": str(tried[0]), "BROWSER": "true", "PYTHONUNBUFFERED": "1"}
    show = subprocess.Popen(
        ["trackio", "show", "--project", "tried"],
        stdout=subprocess.PIPE, text=True, env={**os.environ, **quiet},
    )  # fmt: skip
    said = iter(lambda: show.stdout.readline(), "")
    yield next(found for line in said for found in re.findall(r"http://[^\s\x1b]+", line))
    show.terminate()
    show.wait(20)


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here to open the dashboard in")
def test_a_person_finds_run_curve_alert_and_rollouts(tried, dashboard, tmp_path):
    browser = Browser(tmp_path / "profile")
    try:
        browser.size(1400, 900)
        browser.open(dashboard)
        name = names_of(tried[1])[0]
        browser.until(f"document.body.innerText.includes('{name}')")
        browser.until("document.querySelector('[data-metric=\"train/reward\"]') !== null")
        browser.evaluate(
            "document.querySelector('[data-metric=\"train/reward\"]').scrollIntoView()"
        )
        browser.until(f"{COLOURED}('train/reward') > 50")
        browser.until("document.body.innerText.includes('guard: length')")
        browser.screenshot(tmp_path / "dashboard.png")
        assert (tmp_path / "dashboard.png").stat().st_size > 10_000

        browser.open(dashboard.replace("/?", "/media?"))
        line = (tried[1][0] / "rollouts" / "step_000002.jsonl").read_text().splitlines()[0]
        said = " ".join(json.loads(line)["response"].split())
        browser.until(f"document.body.innerText.includes({json.dumps(said)})")
        browser.screenshot(tmp_path / "rollouts.png")
    finally:
        browser.close()
