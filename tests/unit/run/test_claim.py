"""A run's folder: locked by one process, and no refused start loses what was in it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.contents import contents
from trl_ablate import ConfigurationError
from trl_ablate.run import claim
from trl_ablate.run.claim import claimed, give_up_former
from trl_ablate.run.directory import RunDirectory
from trl_ablate.run.json_files import write_json


@pytest.fixture
def old(tmp_path) -> RunDirectory:
    """A finished run with everything that a run writes, and files of the user beside it."""
    run = RunDirectory(tmp_path / "run")
    with claimed(run, "new"), run.recorded(arm="old"):
        run.write_config({"settings": {"seed": 1}})
        run.append_metrics({"step": 1})
        run.alerts_file.write_text('{"step": 1}\n')
        run.write_rollouts(1, [{"prompt": "1+1"}])
    folders = ("checkpoint-2", "checkpoint_last", "checkpoint_best", "another run", "rollouts")
    for name in folders:
        (run.path / name).mkdir(exist_ok=True)
        (run.path / name / "model.safetensors").write_text(name)
    (run.path / "thesis.tex").write_text("precious")
    (run.path / "checkpoint-2.bak").write_text("mine")
    return run


FOREIGN = {
    "another run/model.safetensors",
    "checkpoint-2.bak",
    "rollouts/model.safetensors",
    "thesis.tex",
}


def test_an_existing_run_wants_a_decision(old):
    before = contents(old.path)
    expected = "holds a run already .finished.*--overwrite.*--resume"
    with pytest.raises(ConfigurationError, match=expected), claimed(old, "new"):
        raise AssertionError("it was claimed")
    assert contents(old.path) == before
    with claimed(old, "resume"):
        assert list(old.metrics()) == [{"step": 1}]
    assert contents(old.path) == before


def start_anew(run: RunDirectory) -> None:
    """Write what a new run writes before it has a trainer."""
    run.write_config({"settings": {"seed": 2}})
    run.update(status="running", arm="new")


@pytest.mark.parametrize("error", [ConfigurationError("no such dataset"), KeyboardInterrupt()])
def test_a_failed_overwrite_puts_the_old_run_back(old, error):
    before = contents(old.path)
    with pytest.raises(type(error)), claimed(old, "overwrite"):
        start_anew(old)
        assert (
            set(contents(old.path)) & set(before) == {"run.json", "resolved_config.json"} | FOREIGN
        )
        raise error
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
    with pytest.raises(type(error)), claimed(run, "new"), run.recorded():
        start_anew(run)
        for step in range(rows):
            run.append_metrics({"step": step})
        raise error
    if blocks:
        with pytest.raises(ConfigurationError, match="a run already .failed"), claimed(run, "new"):
            pass
    else:
        assert set(contents(run.path)) == {"thesis.tex"}


def test_an_overwrite_removes_what_a_run_writes_and_nothing_else(old):
    with claimed(old, "overwrite"):
        start_anew(old)
        give_up_former(old)
    assert set(contents(old.path)) == {"run.json", "resolved_config.json"} | FOREIGN
    assert old.read()["arm"] == "new"


STEPS = ("mkdir", "replace", "rmtree", "unlink")
"""Every change of the file system that an overwrite makes."""


class Killed(BaseException):
    """Simulates SIGKILL: nothing runs after it, not even a `finally`."""


@pytest.mark.slow
@pytest.mark.parametrize("gives_up", [False, True])
def test_killed_at_any_moment_of_an_overwrite_the_old_run_or_the_new_is_there(
    old, monkeypatch, gives_up
):
    """Killed after each change of the file system in turn: the next start finds one whole run."""
    before = contents(old.path)
    ends = set()
    for moment in range(60):
        child = os.fork()
        if child == 0:
            kill_at(moment)
            overwrite(old, gives_up)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        with claimed(old, "resume"):
            now = contents(old.path)
        now.pop(".running", None)
        if now == before:
            ends.add("old")
        else:
            assert gives_up and old.read()["arm"] == "new"
            ends.add("new")
            break
        if status == 0:
            break
    assert os.WIFEXITED(status) or gives_up
    assert ends == ({"old", "new"} if gives_up else {"old"})


def kill_at(moment: int) -> None:
    """Kill this process in place of its `moment`-th change of the file system."""
    changes = iter(range(moment + 1))

    def counted(change):
        def changed(*args, **kwargs):
            if next(changes, None) == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            return change(*args, **kwargs)

        return changed

    claim.os.replace = counted(os.replace)
    claim.shutil.rmtree = counted(claim.shutil.rmtree)
    Path.mkdir = counted(Path.mkdir)
    Path.unlink = counted(Path.unlink)


def overwrite(run: RunDirectory, gives_up: bool) -> None:
    try:
        with claimed(run, "overwrite"):
            start_anew(run)
            if gives_up:
                give_up_former(run)
            else:
                raise ConfigurationError("no such model")
    except ConfigurationError:
        pass


@pytest.mark.parametrize("left", ["metrics.jsonl", "checkpoint-2/model", ".checkpoint_best.old/m"])
def test_what_is_left_of_a_run_is_not_mixed_with_another(tmp_path, left):
    """`run.json` was deleted."""
    (tmp_path / left).parent.mkdir(exist_ok=True)
    (tmp_path / left).write_text('{"step": 1}\n')
    (tmp_path / "thesis.tex").write_text("precious")
    run = RunDirectory(tmp_path)
    expected = "left of a run .*no run.json.*--over.*--resume"
    with pytest.raises(ConfigurationError, match=expected), claimed(run, "new"):
        pass
    with claimed(run, "overwrite"):
        give_up_former(run)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_damaged_record_can_be_overwritten(tmp_path):
    (tmp_path / "run.json").write_text("{")
    run = RunDirectory(tmp_path)
    with (
        pytest.raises(ConfigurationError, match="not valid JSON.*--overwrite"),
        claimed(run, "new"),
    ):
        pass
    with claimed(run, "overwrite"):
        give_up_former(run)
    assert not any(tmp_path.iterdir())


def test_a_resume_puts_back_what_a_kill_left_half_replaced(tmp_path):
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


def test_a_file_in_the_way(tmp_path):
    (tmp_path / "run").write_text("")
    run = RunDirectory(tmp_path / "run")
    with pytest.raises(ConfigurationError, match="is a file"), claimed(run, "new"):
        pass


def test_a_link_to_a_folder_is_overwritten_where_it_leads(old, tmp_path):
    (tmp_path / "link").symlink_to(old.path)
    with claimed(RunDirectory(tmp_path / "link"), "overwrite"):
        give_up_former(RunDirectory(tmp_path / "link"))
    assert set(contents(old.path)) == FOREIGN and (tmp_path / "link").is_symlink()


def test_two_processes_never_use_one_run(tmp_path):
    run = RunDirectory(tmp_path)
    script = (
        "import sys; from pathlib import Path; from trl_ablate.run.directory import RunDirectory\n"
        "from trl_ablate.run.claim import claimed\n"
        "with claimed(RunDirectory(Path(sys.argv[1])), 'new'): print('in', flush=True); input()"
    )
    words = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as busy:
        assert busy.stdout and busy.stdout.readline() == "in\n"
        for mode in ("new", "resume", "overwrite"):
            expected = "in use by another process"
            with pytest.raises(ConfigurationError, match=expected), claimed(run, mode):
                pass
            assert [path.name for path in tmp_path.iterdir()] == [".running"]
        busy.communicate("\n")
    with claimed(run, "resume"):
        pass
    assert not any(tmp_path.iterdir())
