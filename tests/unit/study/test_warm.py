"""The fork server: its processes behave as normal ones, whichever process is killed. Linux only."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.support.fake_train import alive
from tests.support.studies import wait_for
from trl_ablate.run.json_files import read_object, write_json
from trl_ablate.study.engines import Job, local
from trl_ablate.study.engines.local import LocalEngine
from trl_ablate.study.engines.warm import LOST, SUPPORTED, ForkServer, WarmProcess
from trl_ablate.study.store import RunLock

pytestmark = pytest.mark.skipif(not SUPPORTED, reason="processes are forked on Linux only")


@pytest.fixture
def server():
    path = {"PYTHONPATH": str(REPOSITORY)}
    with_path = {**os.environ, **path, "COLOUR": "green", "CUDA_VISIBLE_DEVICES": ""}
    server = ForkServer(["numpy.random", "no.such.module"], with_path)
    yield server
    server.close()


@pytest.fixture
def begin(server, tmp_path):
    """`begin(target, *arguments)`: its process; both outputs go to the file `printed`."""

    def begin(target, *arguments, keep=()) -> WarmProcess:
        with (tmp_path / "printed").open("ab") as log:
            log = log.fileno()
            return server.start(target, *arguments, stdout=log, stderr=log, keep=keep)

    return begin


def look() -> int:
    """Print what a process can observe about itself and its server."""
    found = {
        "session": os.getsid(0) == os.getpid(),
        "folder": os.getcwd(),
        "colour": os.environ["COLOUR"],
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads of the server": len(os.listdir(f"/proc/{parent(os.getppid())}/task")),
        "drawn": sys.modules["numpy.random"].random(),  # it is imported
    }
    sys.stdout.write(json.dumps(found) + "\n")
    return 7


def test_a_process_is_as_one_that_was_started_cold(begin, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert [begin(look).wait() for _ in range(2)] == [7, 7]
    seen = [json.loads(line) for line in (tmp_path / "printed").read_text().splitlines()]
    first, second = (one.pop("drawn") for one in seen)
    assert first != second
    assert seen == [{
        "session": True, "folder": str(tmp_path), "colour": "green", "descriptors": 5,
        "threads of the server": 1,
    }] * 2  # fmt: skip


def leave_a_thread() -> None:
    threading.Thread(target=lambda: time.sleep(0.2) or sys.stdout.write("late\n")).start()
    sys.exit("at the end")


def test_it_ends_as_python_does(begin, tmp_path):
    """Which waits for its threads, and prints what ended it. No process is left."""
    process = begin(leave_a_thread)
    assert process.wait(30) == process.poll() == 1
    assert (tmp_path / "printed").read_text() == "at the end\nlate\n"
    process.send_signal(signal.SIGKILL)
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    assert begin(signal.raise_signal, signal.SIGTERM).wait(30) == -signal.SIGTERM


def test_ctrl_c_right_after_the_start_is_not_lost(begin):
    for _ in range(10):
        process = begin(time.sleep, 30)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 128 + signal.SIGINT


class SlowToRead:
    """Takes a minute to unpickle, as a target does whose module is imported for it."""

    def __reduce__(self):
        return time.sleep, (60,)


def test_ctrl_c_before_the_command_begins_ends_without_a_traceback(begin, tmp_path):
    process = begin(print, SlowToRead())
    wait_for(lambda: os.getsid(process.pid) == process.pid)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    assert (tmp_path / "printed").read_text() == ""


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize("killed", ["server", "waiter"])
def test_a_killed_server_or_waiter_takes_no_process_along_nor_its_lock(
    server, begin, tmp_path, killed
):
    lock, other = RunLock(tmp_path / "lock"), RunLock(tmp_path / "lock")
    assert lock.acquire()
    process = begin(time.sleep, 60, keep=[lock.descriptor])
    lock.release()
    pid = server.pid if killed == "server" else parent(process.pid)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not alive(pid))
    assert process.poll() is None and alive(process.pid) and not other.acquire()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.05)
    if killed == "server":
        with pytest.raises(ConnectionError):
            begin(time.sleep, 0)
    os.killpg(process.pid, signal.SIGTERM)
    code = -signal.SIGTERM if killed == "server" else LOST
    assert process.wait(30) == process.poll() == code
    assert other.acquire()
    other.release()


def a_runner(pids: Path) -> None:
    server = ForkServer([], os.environ)
    process = server.start(time.sleep, 60, stdout=1, stderr=2)
    write_json(pids, {"server": server.pid, "process": process.pid})
    time.sleep(60)


def test_a_server_ends_with_its_runner_and_its_processes_go_on(begin, tmp_path):
    runner, pids = begin(a_runner, tmp_path / "pids"), tmp_path / "pids"
    wait_for(pids.exists)
    found = read_object(pids)
    runner.send_signal(signal.SIGKILL)
    wait_for(lambda: not alive(found["server"]))
    assert alive(found["process"])
    os.kill(found["process"], signal.SIGKILL)


def test_the_local_engine_starts_another_server_where_one_is_of_no_use(tmp_path, monkeypatch):
    script = tmp_path / "script.py"
    parent_of_waiter = "open(f'/proc/{os.getppid()}/stat').read().rpartition(')')[2].split()[1]"
    script.write_text(f"import os, sys; print({parent_of_waiter}); sys.exit(3)")
    engine = LocalEngine(command=(sys.executable, str(script)), warm=())
    with (tmp_path / "lock").open("w") as lock:
        job = Job(["a"], tmp_path / "run", tmp_path / "log", lock.fileno(), tmp_path / "away")

        def server_of_a_run() -> int:
            assert engine.start(job, 0).wait() == 3
            return int(job.log.read_text().split()[-1])

        first = server_of_a_run()
        assert first == server_of_a_run() != os.getpid()
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: not alive(first))
        second = server_of_a_run()
        assert second != first
        (tmp_path / "changed.py").touch()
        (tmp_path / ".#changed.py").symlink_to("somebody@host.12:34")  # Emacs is at work
        monkeypatch.setattr(local, "PACKAGE", tmp_path)
        assert server_of_a_run() not in (first, second)


def test_a_run_whose_server_is_killed_meanwhile_starts_cold(server, tmp_path, monkeypatch):
    (tmp_path / "script.py").write_text("import sys; sys.exit(3)")
    engine = LocalEngine(command=(sys.executable, str(tmp_path / "script.py")), warm=())
    monkeypatch.setattr(engine, "_server_of", lambda modules: server)
    os.kill(server.pid, signal.SIGKILL)
    wait_for(lambda: not alive(server.pid))
    with (tmp_path / "lock").open("w") as lock:
        job = Job([], tmp_path / "run", tmp_path / "log", lock.fileno(), tmp_path / "away")
        assert engine.start(job, 0).wait() == 3
