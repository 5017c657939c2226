"""The grader's processes: killed, starved, forked, and never left behind. Linux only."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import psutil
import pytest

from tests.conftest import REPOSITORY
from tests.support.fake_train import alive
from tests.support.studies import wait_for
from tests.unit.rewards.test_grader import equal_in_other_words
from trl_ablate.rewards import MathGrader
from trl_ablate.rewards.grading import pool

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="looks processes up in /proc"),
]


def children(pid: int) -> list[int]:
    """All living descendants."""
    return [below.pid for below in psutil.Process(pid).children(recursive=True)]


def descendants(grader: MathGrader) -> list[int]:
    """A grader's processes: the watchers and their forks."""
    return [*grader.pids, *[fork for watcher in grader.pids for fork in children(watcher)]]


@pytest.fixture
def one():
    """A grader whose only worker runs."""
    with MathGrader(workers=1, timeout=5.0) as grader:
        assert grader.grade(["(x-1)(x+1)"], ["x^2-1"]) == [True]
        yield grader


@pytest.mark.parametrize("victim", ["watchers", "forks"])
def test_a_killed_worker_loses_no_item(one, victim):
    answers, golds = equal_in_other_words(60)
    with ThreadPoolExecutor() as threads:
        graded = threads.submit(one.grade, answers, golds)
        pids = one.pids if victim == "watchers" else children(*one.pids)
        time.sleep(0.1)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
    assert graded.result() == [True] * 60
    assert one.restarts >= 1


def test_a_stopped_worker_is_replaced(monkeypatch):
    """It cannot keep the deadline itself."""
    monkeypatch.setattr(pool, "_GRACE_SECONDS", 1.0)
    monkeypatch.setattr(pool, "_SECONDS_TO_QUIT", 0.1)
    with MathGrader(workers=1, timeout=1.0) as grader:
        grader.grade(["(x-1)(x+1)"], ["x^2-1"])
        (pid,) = grader.pids
        os.kill(pid, signal.SIGSTOP)
        assert grader.grade(["(x-2)(x+2)"], ["x^2-4"]) == [True]
        assert pid not in grader.pids and not alive(pid)


def test_a_giant_integer_finds_no_memory_and_the_machine_keeps_its_own():
    with MathGrader(workers=1, timeout=20.0, memory_limit_mb=128) as grader:
        answers = ["2^{10000000000}+x", "(x-1)(x+1)"]  # above a gigabyte
        assert grader.grade(answers, ["x+5", "x^2-1"]) == [False, True]
        assert grader.timeouts == 0


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_uses_workers_of_its_own(one):
    parents, context = set(one.pids), multiprocessing.get_context("fork")
    queue = context.Queue()

    def work():
        queue.put((one.grade(["(x-2)(x+2)"], ["x^2-4"]), one.pids))

    child = context.Process(target=work)
    child.start()
    verdicts, pids = queue.get(timeout=60)
    child.join(10)
    assert verdicts == [True] and not parents & set(pids)
    assert one.grade(["(x-3)(x+3)"], ["x^2-9"]) == [True]
    assert set(one.pids) == parents


def test_processes_start_with_answers_that_need_algebra_and_end_with_the_grader():
    """A training that needs none has none; a few answers need no more processes than answers."""
    with MathGrader(workers=3) as grader:
        assert grader.grade(["7", "1/2", "8"], ["7", "0.5", "9"]) == [True, True, False]
        assert grader.pids == []
        answers, golds = equal_in_other_words(4)
        assert grader.grade(answers[:1], golds[:1]) == [True]
        (first,) = grader.pids
        assert grader.grade(answers[1:2], golds[1:2]) == [True]
        assert grader.pids == [first]
        assert b"PYTHONHASHSEED=0" in Path(f"/proc/{first}/environ").read_bytes()  # same verdicts
        assert grader.grade(answers[2:], golds[2:]) == [True, True]
        wait_for(lambda: len(descendants(grader)) == 4)  # two watchers, two forks
        pids = descendants(grader)
    wait_for(lambda: not any(map(alive, pids)))  # the forks end by signal


# A script as a user would write it: no __main__ guard, no close.
SCRIPT = """
import sys, threading, time
print("started", flush=True)
from trl_ablate.rewards import MathGrader
grader = MathGrader(workers=1, timeout=60.0)
print(grader.grade(["(x-1)(x+1)"], ["x^2-1"]), flush=True)
sys.stdin.readline()
if "hang" in sys.argv:
    hang = threading.Thread(target=lambda: grader.grade(["9^{9^{9^{9}}}+1"], ["5"]), daemon=True)
    hang.start()
    time.sleep(0.5)
print("torch" in sys.modules, flush=True)
if "raise" in sys.argv:
    raise ValueError("on purpose")
if "wait" in sys.argv:
    time.sleep(60)
"""


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("end", "busy"), [*product(("exit", "raise", "SIGTERM", "SIGINT", "SIGKILL"), (False, True))]
)
def test_nothing_is_left_behind(tmp_path, end, busy):
    script = tmp_path / "user_script.py"
    script.write_text(SCRIPT)
    arguments = ["hang"] * busy + [{"exit": "", "raise": "raise"}.get(end, "wait")]
    process = subprocess.Popen(
        [sys.executable, str(script), *arguments], text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    assert process.stdout is not None and process.stdin is not None
    lines = [process.stdout.readline().strip() for _ in range(2)]
    assert lines == ["started", "[True]"]
    below = wait_for(lambda: len(found := children(process.pid)) == 2 and found)
    process.stdin.write("go on\n")
    process.stdin.flush()
    last = process.stdout.readline().strip()
    if end.startswith("SIG"):
        process.send_signal(getattr(signal, end))
    process.wait(20)
    wait_for(lambda: not any(map(alive, below)), 5)
    assert last == "False"  # no torch
    assert "started" not in process.stdout.read()  # the script ran once
