"""The run directory: whole files, readable after any end, never mixed."""

import json
import math
import subprocess
import sys

import pytest

from trl_ablate import ConfigurationError
from trl_ablate.run.directory import RunDirectory, append_jsonl, read_jsonl, write_json


def test_a_run_that_ends_well_says_so(tmp_path):
    run = RunDirectory(tmp_path)
    with run.recorded(arm="a"):
        assert run.read()["status"] == "running"
    assert run.read()["status"] == "finished"
    assert run.read()["arm"] == "a"
    assert run.read()["seconds"] >= 0


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


def test_an_existing_run_wants_a_decision(tmp_path):
    run = RunDirectory(tmp_path / "run")
    run.prepare()
    with run.recorded():
        run.append_metrics({"step": 1})
    with pytest.raises(
        ConfigurationError, match="holds a run already .finished.*--overwrite.*--resume"
    ):
        run.prepare()
    run.prepare(resume=True)
    assert list(run.metrics()) == [{"step": 1}]
    run.prepare(overwrite=True)
    assert list(run.metrics()) == []


@pytest.mark.parametrize("left", ["metrics.jsonl", "checkpoint-2/model", ".checkpoint_best.old/m"])
def test_what_is_left_of_a_run_is_not_mixed_with_another(tmp_path, left):
    """`run.json` was deleted, or somebody's --overwrite was killed."""
    (tmp_path / left).parent.mkdir(exist_ok=True)
    (tmp_path / left).write_text('{"step": 1}\n')
    (tmp_path / "thesis.tex").write_text("precious")
    run = RunDirectory(tmp_path)
    with pytest.raises(ConfigurationError, match="left of a run .*no run.json.*--over.*--resume"):
        run.prepare()
    before = list(run.metrics())
    run.prepare(resume=True)
    assert list(run.metrics()) == before
    run.prepare(overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_damaged_record_can_be_overwritten(tmp_path):
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ConfigurationError, match="no JSON any more"):
        RunDirectory(tmp_path).prepare()
    RunDirectory(tmp_path).prepare(overwrite=True)
    assert not any(tmp_path.iterdir())


def test_a_resume_mends_what_a_kill_left_half_replaced(tmp_path):
    run = RunDirectory(tmp_path)
    with run.recorded():
        pass
    for name in (".checkpoint_best.old", ".checkpoint_best.part", ".checkpoint_last.part"):
        (tmp_path / name).mkdir()
        write_json(tmp_path / name / "best.json", {"step": name})
    assert run.best() == {"step": ".checkpoint_best.old"}
    run.prepare(resume=True)
    assert run.best() == {"step": ".checkpoint_best.old"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint_best", "run.json"]


def test_overwrite_removes_runs_and_nothing_else(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    RunDirectory(tmp_path).prepare(overwrite=True)
    assert (tmp_path / "thesis.tex").exists()


def test_a_file_in_the_way(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(ConfigurationError, match="is a file"):
        RunDirectory(tmp_path / "run").prepare()


def test_what_json_cannot_say_is_null(tmp_path):
    append_jsonl(tmp_path / "m.jsonl", {"loss": math.nan, "grad_norm": math.inf, "step": 1})
    assert list(read_jsonl(tmp_path / "m.jsonl")) == [{"loss": None, "grad_norm": None, "step": 1}]


def test_a_line_cut_off_by_a_kill_is_left_out(tmp_path):
    path = tmp_path / "m.jsonl"
    append_jsonl(path, {"step": 1})
    with path.open("a") as file:
        file.write('{"step": 2, "rew')
    assert list(read_jsonl(path)) == [{"step": 1}]


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "run.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1}


def test_a_run_says_what_it_cost(tmp_path, monkeypatch):
    run = RunDirectory(tmp_path)
    clock = iter((0.0, 1800.0))
    monkeypatch.setattr("trl_ablate.run.directory.time.time", lambda: next(clock))
    with run.recorded(gpus=4):
        run.append_metrics({"memory/peak_after_rollout": 3.0, "memory/peak_after_train": 5.5})
        run.append_metrics({"memory/peak_after_train": None})
    assert (run.read()["gpu_hours"], run.read()["peak_memory_gib"]) == (2.0, 5.5)


def test_two_processes_are_never_at_one_run(tmp_path):
    run, other = RunDirectory(tmp_path), RunDirectory(tmp_path)
    script = (
        "import sys; from pathlib import Path; from trl_ablate.run.directory import RunDirectory\n"
        "with RunDirectory(Path(sys.argv[1])).recorded(): print('in', flush=True); input()"
    )
    words = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as busy:
        assert busy.stdout and busy.stdout.readline() == "in\n"
        for what in ({"resume": True}, {"overwrite": True}):
            with pytest.raises(ConfigurationError, match="another process is at the run in"):
                run.prepare(**what)
        assert run.read()["status"] == "running"
        busy.communicate("\n")
    run.prepare(resume=True)
    with other.recorded():
        pass
    assert other.read()["status"] == "finished"
