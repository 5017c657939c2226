"""The run directory: whole files, readable after any end, never mixed."""

import json
import math
import os

import pytest

from trl_ablate import ConfigurationError
from trl_ablate.run.directory import RunDirectory
from trl_ablate.run.json_files import append_jsonl, read_jsonl, write_json


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (RuntimeError("the engine died"), "failed", "RuntimeError: the engine died"),
        (SystemExit(3), "failed", "SystemExit: 3"),
        (KeyboardInterrupt(), "stopped", "interrupted from the keyboard"),
    ],
)
def test_a_run_that_ends_badly_says_why(tmp_path, error, status, reason):
    run = RunDirectory(tmp_path)
    with pytest.raises(type(error)), run.recorded():
        raise error
    assert run.read()["status"] == status
    assert run.read()["reason"] == reason


def test_what_json_cannot_say_is_null_and_a_line_cut_off_by_a_kill_is_left_out(tmp_path):
    append_jsonl(tmp_path / "m.jsonl", {"loss": math.nan, "grad_norm": math.inf, "step": 1})
    with (tmp_path / "m.jsonl").open("a") as file:
        file.write('{"step": 2, "rew')
    assert list(read_jsonl(tmp_path / "m.jsonl")) == [{"loss": None, "grad_norm": None, "step": 1}]


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "run.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1}


def test_a_run_says_what_it_cost(tmp_path, monkeypatch):
    run = RunDirectory(tmp_path)
    clock = iter((0.0, 1800.0))
    monkeypatch.setattr("trl_ablate.run.directory.time.monotonic", lambda: next(clock))
    with run.recorded(gpus=4):
        assert run.read()["status"] == "running"
        run.append_metrics(
            {"step": 1, "memory/peak_after_rollout": 3.0, "memory/peak_after_train": 5.5}
        )
        run.append_metrics({"step": 2, "memory/peak_after_train": None})
    assert run.read()["status"] == "finished"
    assert (run.read()["gpu_hours"], run.read()["peak_memory_gib"]) == (2.0, 5.5)


@pytest.mark.parametrize("content", ["[1]", "null", '"x"'])
def test_valid_json_of_the_wrong_shape_is_refused(tmp_path, content):
    run = RunDirectory(tmp_path)
    for file in (run.run_file, run.config_file, run.metrics_file):
        file.write_text(content + "\n")
    for read in (run.read, run.settings, lambda: list(run.metrics())):
        with pytest.raises(ConfigurationError, match="JSON object.*--overwrite"):
            read()
    run.config_file.write_text('{"settings": 1}')
    run.metrics_file.write_text('{"step": "x"}\n')
    for read in (run.settings, lambda: list(run.metrics())):
        with pytest.raises(ConfigurationError, match="restore"):
            read()


def test_files_of_the_user_beside_ours_are_no_part_of_the_run(tmp_path):
    run = RunDirectory(tmp_path)
    for name in ("checkpoint-2", "checkpoint-2.bak", "checkpoint-x", "rollouts"):
        (tmp_path / name).mkdir()
    for name in ("step_000002.jsonl", "step_000009.jsonl", "step_final.jsonl"):
        (tmp_path / "rollouts" / name).write_text("")
    run.rewind(4)
    names = sorted(path.name for path in tmp_path.rglob("*"))
    assert "step_000009.jsonl" not in names and "step_final.jsonl" in names
    assert [path.name for path in run.checkpoints()] == ["checkpoint-2"]


def test_a_device_is_written_to_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_json(pipe, {"a": 1})
    assert pipe.is_fifo() and json.loads(os.read(reader, 100)) == {"a": 1}
    os.close(reader)
