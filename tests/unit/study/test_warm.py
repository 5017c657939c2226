"""The fork server: its processes behave as normal ones, whichever process is killed. Linux only."""

import fcntl
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
from trl_ablate.study.engines import Job, local
from trl_ablate.study.engines.local import LocalEngine
from trl_ablate.study.engines.warm import LOST, SUPPORTED, ForkServer, WarmProcess

pytestmark = pytest.mark.skipif(not SUPPORTED, reason="processes are forked on Linux only")


@pytest.fixture
def server():
    path = {"PYTHONPATH": str(REPOSITORY)}
    with_path = {**os.environ, **path, "COLOUR": "green", "CUDA_VISIBLE_DEVICES": ""}
    server = ForkServer(["numpy", "no.such.module"], with_path)
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


def look(folder: str) -> int:
    """What a process can observe about itself and its server."""
    sys.stdout.write("a line\n")
    found = {
        "session": os.getsid(0) == os.getpid(),
        "folder": os.getcwd(),
        "colour": os.environ["COLOUR"],
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads of the server": len(os.listdir(f"/proc/{parent(os.getppid())}/task")),
        "imported": "numpy" in sys.modules,
        "drawn": sys.modules["numpy"].random.random(),
    }
    Path(folder, f"{os.getpid()}.json").write_text(json.dumps(found))
    return 7


def test_a_process_is_as_one_that_was_started_cold(begin, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    both = [begin(look, str(tmp_path)) for _ in range(2)]
    assert [process.wait() for process in both] == [7, 7]
    seen = [json.loads((tmp_path / f"{process.pid}.json").read_text()) for process in both]
    draws = [one.pop("drawn") for one in seen]
    assert draws[0] != draws[1]
    for one in seen:
        assert one == {
            "session": True, "folder": str(tmp_path), "colour": "green", "descriptors": 5,
            "threads of the server": 1, "imported": True,
        }  # fmt: skip
    assert (tmp_path / "printed").read_text() == "a line\n" * 2


def leave_a_thread() -> None:
    threading.Thread(target=lambda: time.sleep(0.2) or sys.stdout.write("late\n")).start()
    sys.exit("at the end")


@pytest.mark.parametrize(
    ("target", "arguments", "code", "printed"),
    [
        (int, ("on purpose",), 1, "ValueError: invalid literal for int() with base 10: "
         "'on purpose'\n"),
        (signal.raise_signal, (signal.SIGTERM,), -signal.SIGTERM, ""),
        (leave_a_thread, (), 1, "at the end\nlate\n"),  # an interpreter waits for its threads
    ],
)  # fmt: skip
def test_it_ends_as_python_does(begin, tmp_path, target, arguments, code, printed):
    process = begin(target, *arguments)
    assert process.wait(30) == process.poll() == code
    shown = (tmp_path / "printed").read_text()
    assert shown.endswith(printed) and bool(shown) == bool(printed)
    process.send_signal(signal.SIGKILL)  # no process is left
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


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


def test_a_lock_is_held_until_the_process_ends(begin, tmp_path):
    path, without_waiting = tmp_path / "lock", fcntl.LOCK_EX | fcntl.LOCK_NB
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = begin(time.sleep, 60, keep=[lock.fileno()])
    with path.open("w") as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, without_waiting)
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.05)
    process.send_signal(signal.SIGKILL)
    assert process.wait(30) == -signal.SIGKILL
    with path.open("w") as other:
        fcntl.flock(other, without_waiting)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize("killed", ["server", "waiter"])
def test_a_killed_server_or_waiter_takes_no_process_along(server, begin, killed):
    process = begin(time.sleep, 60)
    pid = server.pid if killed == "server" else parent(process.pid)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not alive(pid))
    assert process.poll() is None and alive(process.pid)
    if killed == "server":
        with pytest.raises(ConnectionError):
            begin(time.sleep, 0)
    os.killpg(process.pid, signal.SIGTERM)
    code = -signal.SIGTERM if killed == "server" else LOST
    assert process.wait(30) == process.poll() == code


RUNNER = """
import os, sys, time
from trl_ablate.study.engines.warm import ForkServer
server = ForkServer([], os.environ)
process = server.start(time.sleep, 60, stdout=1, stderr=2)
print(server.pid, process.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_server_ends_with_its_runner_and_its_processes_go_on(number):
    runner = subprocess.Popen(
        [sys.executable, "-c", RUNNER],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, start_new_session=True,
    )  # fmt: skip
    assert runner.stdout
    server, process = map(int, runner.stdout.readline().split())
    os.killpg(runner.pid, number)
    runner.wait(30)
    wait_for(lambda: not alive(server))
    assert alive(process)
    os.kill(process, signal.SIGKILL)


def test_the_local_engine_starts_another_server_where_one_is_of_no_use(tmp_path, monkeypatch):
    script = tmp_path / "script.py"
    waiter = "f'/proc/{os.getppid()}/stat'"
    parent_of_waiter = f"open({waiter}).read().rpartition(')')[2].split()[1]"
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
        monkeypatch.setattr(local, "PACKAGE", tmp_path)
        assert server_of_a_run() not in (first, second)
