"""The run directory: whole files, readable after any end, never mixed. One process locks it, and no
start that is refused changes what is in it."""

import json
import math
import os
import subprocess
import sys
from datetime import date

import pytest

from tests.support.folders import contents
from trl_ablate import ConfigurationError
from trl_ablate.run.directory import OF_A_STOP, RESERVE, Mode, RunDirectory, claimed, delete
from trl_ablate.run.json_files import append_jsonl, read_jsonl, write_json


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (SystemExit(3), "failed", "SystemExit: 3"),
        (KeyboardInterrupt(), "stopped", "interrupted from the keyboard"),
    ],
)
def test_a_run_that_ends_badly_says_why(tmp_path, error, status, reason):
    run = RunDirectory(tmp_path)
    with pytest.raises(type(error)), run.recorded():
        raise error
    assert (run.read()["status"], run.read()["reason"]) == (status, reason)


def test_a_resumed_run_has_no_entries_of_its_stop(tmp_path):
    run = RunDirectory(tmp_path)
    with run.recorded() as outcome:
        outcome.stopped("guard: no", **dict.fromkeys(OF_A_STOP, math.inf))
    assert run.read().items() >= dict.fromkeys(OF_A_STOP).items()  # JSON has no infinity
    with run.recorded():
        assert run.read().keys().isdisjoint(OF_A_STOP)


def test_what_json_cannot_say_is_null_and_a_line_cut_off_by_a_kill_is_left_out(tmp_path):
    broken = {"loss": math.nan, "grad_norm": math.inf, "of": [{"it": math.nan}], "at": date.max}
    append_jsonl(tmp_path / "m.jsonl", broken)
    with (tmp_path / "m.jsonl").open("a") as file:
        file.write('{"step": 2, "rew')
    (row,) = read_jsonl(tmp_path / "m.jsonl")
    assert row == {"loss": None, "grad_norm": None, "of": [{"it": None}], "at": "9999-12-31"}


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "run.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1} and [*tmp_path.iterdir()] == [path]


def test_memory_and_hours_are_counted_on_the_gpus_of_each_start(tmp_path, monkeypatch):
    """1 h on one GPU and killed, then 1 h on eight, of which half is repeated on two in 0.5 h."""
    seconds = [0.0, 3600.0, 0.0, 1800.0]
    monkeypatch.setattr("trl_ablate.run.directory.time.monotonic", lambda: seconds.pop(0))
    run = RunDirectory(tmp_path)
    run.update(status="running", gpus=1)
    for gpus, logged, cost, memory in ((8, 3600, 1 + 8, 5.5), (2, 5400, 1 + 4 + 1, 3.0)):
        peaks = {"memory/peak_after_rollout": memory, "memory/peak_after_train": None}
        run.append_metrics({"step": 1, "seconds": logged, **peaks})
        with run.recorded(gpus=gpus):
            assert run.read()["status"] == "running"
        assert (run.read()["status"], run.read()["seconds_before"]) == ("finished", logged)
        assert (run.read()["gpu_hours"], run.read()["peak_memory_gib"]) == (cost, 5.5)


@pytest.mark.parametrize("content", ["[1]", "null", '"x"', '{"settings": 1, "step": "x"}'])
def test_valid_json_of_the_wrong_shape_is_refused(tmp_path, content):
    run = RunDirectory(tmp_path)
    for file in (run.run_file, run.config_file, run.metrics_file):
        file.write_text(content + "\n")
    in_an_object = (run.settings, lambda: list(run.metrics()))
    for read in in_an_object if content.startswith("{") else (run.read, *in_an_object):
        with pytest.raises(ConfigurationError, match="restore.*--overwrite"):
            read()


def test_a_device_is_written_to_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_json(pipe, {"a": 1})
    assert pipe.is_fifo() and json.loads(os.read(reader, 100)) == {"a": 1}
    os.close(reader)


FOREIGN = {
    "another run/model.safetensors",
    "checkpoint-2.bak",
    "checkpoint-x",
    "completions/model.safetensors",
    "rollouts/model.safetensors",
    "thesis.tex",
}


@pytest.fixture
def old(tmp_path) -> RunDirectory:
    """A finished run with everything that a run writes, and files of the user beside it."""
    run = RunDirectory(tmp_path / "run")
    with claimed(run, "new"), run.recorded(arm="old"):
        run.write_config({"settings": {"seed": 1}})
        run.append_metrics({"step": 1})
        run.alerts_file.write_text('{"step": 1}\n')
        run.write_rollouts(1, [{"prompt": "1+1"}])
        (run.rollout_file(2).parent / ".step_000002.jsonl.77").write_text("cut off by a kill")
    for name in ("checkpoint-2", "checkpoint_last", "checkpoint_best", "another run", "rollouts",
                 "completions"):  # fmt: skip
        (run.path / name).mkdir(exist_ok=True)
        (run.path / name / "model.safetensors").write_text(name)
    (run.path / "completions" / "completions_00001.parquet").write_text("of TRL")
    (run.path / "README.md").write_text("---\ntags:\n- generated_from_trainer\n---\n")
    (run.path / "thesis.tex").write_text("precious")
    for name in ("checkpoint-2.bak", "checkpoint-x"):
        (run.path / name).write_text("mine")
    return run


def refused(run: RunDirectory, mode: Mode, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why), claimed(run, mode):
        raise AssertionError("it was claimed")


@pytest.mark.parametrize("has_rows", [True, False])
def test_an_existing_run_wants_a_decision(old, has_rows):
    if not has_rows:  # it ended before its first step
        old.metrics_file.unlink()
    before = contents(old.path)
    refused(old, "new", "holds a run already .finished.*--overwrite.*--resume")
    for mode in ("resume", "overwrite"):  # which then checks the rest, and may be refused
        with pytest.raises(ConfigurationError, match="no such dataset"), claimed(old, mode):
            raise ConfigurationError("no such dataset")
    assert contents(old.path) == before


@pytest.mark.parametrize(("error", "rows", "blocks"), [
    (ConfigurationError("no such dataset"), 0, False),
    (ConfigurationError("no such dataset"), 1, True),
    (RuntimeError("out of memory"), 0, True),
])  # fmt: skip
def test_a_start_that_is_refused_before_its_first_step_does_not_block_the_next(
    tmp_path, error, rows, blocks
):
    run = RunDirectory(tmp_path / "run")
    run.path.mkdir()
    (run.path / "thesis.tex").write_text("precious")
    write_json(run.config_file, {})  # a start was killed before its record
    with pytest.raises(type(error)), claimed(run, "new"), run.recorded():
        run.write_config({"settings": {"seed": 2}})
        for step in range(rows):
            run.append_metrics({"step": step})
        raise error
    if blocks:
        refused(run, "new", "a run already .failed")
    else:
        assert set(contents(run.path)) == {"thesis.tex"}


def test_an_overwrite_deletes_what_a_run_writes_and_nothing_else(old, tmp_path):
    link = RunDirectory(tmp_path / "link")
    link.path.symlink_to(old.path)
    with claimed(link, "overwrite"):
        delete(link)
    assert set(contents(old.path)) == FOREIGN and link.path.is_symlink()


@pytest.mark.parametrize("left", ["metrics.jsonl", "checkpoint-2/model", ".checkpoint_best.old/m"])
def test_what_is_left_of_a_run_is_not_mixed_with_another(tmp_path, left):
    """`run.json` was deleted."""
    (tmp_path / left).parent.mkdir(exist_ok=True)
    (tmp_path / left).write_text('{"step": 1}\n')
    refused(RunDirectory(tmp_path), "new", "left of a run .*no run.json.*--over.*--resume")
    (tmp_path / "run.json").write_text("{")
    refused(RunDirectory(tmp_path), "new", "not valid JSON.*--overwrite")
    refused(RunDirectory(tmp_path / "run.json"), "new", "is a file")


def test_a_start_puts_back_what_a_kill_left_half_replaced(tmp_path):
    run = RunDirectory(tmp_path)
    with run.recorded():
        pass
    for name in (".checkpoint_best.old", ".checkpoint_best.part", ".checkpoint_last.part"):
        (tmp_path / name).mkdir()
        write_json(tmp_path / name / "best.json", {"step": name})
    assert run.best() == {"step": ".checkpoint_best.old"}
    with claimed(run, "resume"):
        assert run.best() == {"step": ".checkpoint_best.old"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint_best", "run.json"]


def test_two_processes_never_use_one_run(tmp_path):
    run = RunDirectory(tmp_path)
    script = (
        "import sys; from pathlib import Path; from trl_ablate.run.directory import RunDirectory\n"
        "from trl_ablate.run.directory import claimed\n"
        "with claimed(RunDirectory(Path(sys.argv[1])), 'new'): print('in', flush=True); input()"
    )
    words = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as busy:
        assert busy.stdout and busy.stdout.readline() == "in\n"
        for mode in ("new", "resume", "overwrite"):
            refused(run, mode, "in use by another process")
            assert [path.name for path in tmp_path.iterdir()] == [".running"]
            assert os.path.getsize(tmp_path / ".running") == RESERVE
        busy.communicate("\n")
    with claimed(run, "resume"):
        pass
    assert not any(tmp_path.iterdir())
