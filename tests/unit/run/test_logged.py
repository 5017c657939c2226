"""Curves read from `metrics.jsonl`: which values are kept, and how few of the lines are parsed."""

import json
from itertools import pairwise

import pytest

from tests.support.synthetic_study import METRIC, make_plan, write_run
from trl_ablate.run.json_files import append_jsonl
from trl_ablate.run.logged import POINTS, read_series
from trl_ablate.study.report.making import report_study
from trl_ablate.study.store import RunStore


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def place(step, seconds=None):
    return {"step": step, "grpo_step": float(step), "seconds": 10.0 + (seconds or step)}


def long_rows(steps, every=50):
    """A row of about fifty metrics per step, and an evaluation every few steps."""
    others = {f"metric/{i}": 0.123456 * i for i in range(45)}
    for step in range(1, steps + 1):
        yield {**place(step), **others, "grad_norm": 1.0 * step, "entropy": 0.5, "loss": None}
        if step % every == 0:
            yield {**place(step), METRIC: 0.001 * step, f"{METRIC}_stderr": 0.01}


def test_a_step_logged_twice_counts_as_it_was_last(tmp_path):
    rows = [
        {**place(1), "reward": 0.1},
        {**place(2), "reward": 0.2},
        {**place(2, 6.0), "reward": 0.3, "loss": None},
    ]
    series, skipped = read_series(write(tmp_path / "m", rows), "reward", [], ["loss"])
    assert (series["reward"].steps, series["reward"].values) == ([1.0, 2.0], [0.1, 0.3])
    assert series["reward"].seconds == [0.0, 5.0]
    assert "loss" not in series and skipped == 0
    assert read_series(write(tmp_path / "m", []), "reward", [], []) == ({}, 0)


@pytest.mark.parametrize(
    "metric", ["eval_größe_reward", "eval_reward/subject=Géométrie", 'a"b\\', "half \ud83d"]
)
def test_a_metric_is_found_as_a_run_writes_it(tmp_path, metric):
    append_jsonl(tmp_path / "m", {**place(1), metric: 0.5})
    assert read_series(tmp_path / "m", metric)[0][metric].values == [0.5]


@pytest.mark.parametrize("every", [1, 2, 50])
def test_a_long_run_keeps_what_decides_and_some_hundred_points_of_the_rest(tmp_path, every):
    steps = 7001
    rows = list(long_rows(steps, every))
    series, _ = read_series(write(tmp_path / "m", rows), METRIC, [], ["grad_norm"])
    assert series[METRIC].values == [row[METRIC] for row in rows if METRIC in row]
    drawn = series["grad_norm"]
    assert POINTS / 2 < len(drawn.steps) < 2.5 * POINTS
    assert drawn.steps == sorted(drawn.values)
    assert (drawn.steps[0], drawn.steps[-1]) == (1.0, steps)  # the first row and the last
    assert max(b - a for a, b in pairwise(drawn.steps)) < 4 * steps / POINTS


def test_a_short_run_and_a_metric_of_every_row_keep_every_value(tmp_path):
    series, _ = read_series(write(tmp_path / "m", long_rows(POINTS)), METRIC, [], ["grad_norm"])
    assert series["grad_norm"].values == [float(step) for step in range(1, POINTS + 1)]
    rows = [{**place(step), "reward": step / 5000, "grad_norm": 1.0} for step in range(5000)]
    series, _ = read_series(write(tmp_path / "m", rows), "reward", [], ["grad_norm"])
    assert len(series["reward"].values) == 5000
    assert POINTS / 2 < len(series["grad_norm"].values) < 2.5 * POINTS


def test_what_a_resume_logged_again_replaces_what_was_drawn(tmp_path):
    before = [{**place(step), "grad_norm": 1.0} for step in range(4000)]
    after = [{**place(step), "grad_norm": 2.0} for step in range(2000, 4000)]
    series, _ = read_series(write(tmp_path / "m", before + after), "reward", [], ["grad_norm"])
    drawn = series["grad_norm"]
    middle = [v for s, v in zip(drawn.steps, drawn.values, strict=True) if s >= 2000 + 40]
    assert len(middle) > 50 and set(middle) == {2.0}


WRONG = ["[]", "5", "null", '"text"', "{", "{}", '{"grpo_step": "x", "seconds": 1}', "\x00\x01",
         '{"grpo_step": 3, "seconds": null}', '{"grpo_step": [], "seconds": {}}', "[" * 5000,
         '{"grpo_step": NaN, "seconds": 1, "eval_reward": 1}', '{"grpo_step": true, "seconds": 1}',
         "\ud83d".encode("utf-8", "surrogatepass").decode("latin-1")]  # fmt: skip


def test_a_line_of_another_shape_is_skipped_and_counted(tmp_path):
    file = write(tmp_path / "m", [{**place(1), METRIC: 0.1}, {**place(3), METRIC: 0.3}])
    first, second = file.read_bytes().splitlines(keepends=True)
    for line in WRONG:
        file.write_bytes(first + line.encode("utf-8") + b"\n" + second + b'{"grpo_step": 4, "sec')
        series, skipped = read_series(file, METRIC, [], [])
        assert series[METRIC].values == [0.1, 0.3] and skipped == 1, line


def test_a_value_that_is_no_number_is_left_out(tmp_path):
    file, numbers = tmp_path / "m", '{"grpo_step": 1, "seconds": 1, "eval_reward": %s}\n'
    for value in ("true", "[1]", "{}", "null", "NaN", "Infinity", '"x"'):
        file.write_text(numbers % value + numbers.replace("1,", "2,", 1) % "0.25")
        assert read_series(file, METRIC, [], [])[0][METRIC].values == [0.25]


RUNS, STEPS = 6, 8000


def test_of_a_large_study_few_lines_are_parsed(tmp_path, monkeypatch):
    """Decoding all of them takes most of a report's time."""
    plan = make_plan({"a": {"x": 1}, "b": {"x": 2}}, seeds=range(RUNS // 2), grpo_steps=STEPS)
    store, rows = RunStore(tmp_path / "runs"), write(tmp_path / "rows", long_rows(STEPS))
    for arm in plan.arms:
        for run in arm.runs:
            directory = write_run(store, run, arm.declared, iter(()))
            directory.metrics_file.unlink()
            directory.metrics_file.hardlink_to(rows)
    parsed, loads = [], json.loads
    monkeypatch.setattr(json, "loads", lambda text, **_: parsed.append(len(text)) or loads(text))
    report_study(plan, store, tmp_path / "study.yaml", tmp_path / "out")
    assert (tmp_path / "out" / "curves.png").exists()
    assert sum(size > 100 for size in parsed) < 4 * RUNS * POINTS
