"""The grader's processes: killed, starved, forked, and never left behind. Linux only."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import product
from pathlib import Path

import psutil
import pytest

from tests.conftest import REPOSITORY
from tests.support.fake_train import alive
from tests.support.studies import wait_for
from tests.unit.rewards.test_grader import HANGS, equal_in_other_words
from trl_ablate.rewards import MathGrader

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks processes up in /proc")


def children(pid: int) -> list[int]:
    """All living descendants."""
    return [below.pid for below in psutil.Process(pid).children(recursive=True)]


def descendants(grader: MathGrader) -> list[int]:
    """A grader's processes: the watchers and their forks."""
    return [*grader.pids, *[fork for watcher in grader.pids for fork in children(watcher)]]


def wait_for_the_end(pids: list[int], seconds: float = 20.0) -> None:
    wait_for(lambda: not any(map(alive, pids)), seconds)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["watchers", "forks"])
def test_a_killed_worker_loses_no_item(victim):
    answers, golds = equal_in_other_words(60)
    workers = 1 if victim == "watchers" else 2  # a new watcher loads sympy: two seconds each
    with MathGrader(workers=workers, timeout=5.0) as grader:
        grader.grade(*equal_in_other_words(workers))
        with ThreadPoolExecutor() as threads:
            graded = threads.submit(grader.grade, answers, golds)
            watchers = grader.pids
            forks = [fork for watcher in watchers for fork in children(watcher)]
            time.sleep(0.1)
            for pid in watchers if victim == "watchers" else forks:
                os.kill(pid, signal.SIGKILL)
                time.sleep(0.1)
        assert graded.result() == [True] * 60
        assert grader.restarts >= 1


@pytest.mark.slow
def test_a_stopped_worker_is_replaced():
    """It cannot keep the deadline itself."""
    with MathGrader(workers=1, timeout=2.0) as grader:
        grader.grade(["(x-1)(x+1)"], ["x^2-1"])
        (pid,) = grader.pids
        os.kill(pid, signal.SIGSTOP)
        assert grader.grade(["(x-2)(x+2)"], ["x^2-4"]) == [True]
        assert pid not in grader.pids and not alive(pid)


@pytest.mark.slow
def test_an_item_that_kills_its_worker_every_time_is_given_up():
    with MathGrader(workers=1, timeout=60.0) as grader:
        grader.grade(["(x-1)(x+1)"], ["x^2-1"])
        with ThreadPoolExecutor() as threads:
            graded = threads.submit(grader.grade, [HANGS], ["5"])
            while not graded.done():
                for pid in set(descendants(grader)) - set(grader.pids):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                time.sleep(0.005)
        assert graded.result() == [None]
        assert (grader.timeouts, grader.ungraded) == (0, 1)
        assert grader.grade(["(x-2)(x+2)"], ["x^2-4"]) == [True]


@pytest.mark.slow
def test_a_giant_integer_ends_a_worker_and_not_the_machine():
    with MathGrader(workers=1, timeout=20.0, memory_limit_mb=128) as grader:
        assert grader.grade(
            [r"\lfloor 10^{10^{9}}\rfloor + x", "(x-1)(x+1)"], ["x+5", "x^2-1"]
        ) == [None, True]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_uses_workers_of_its_own():
    grader = MathGrader(workers=1, timeout=5.0)
    grader.grade(["(x-1)(x+1)"], ["x^2-1"])
    parents, context = set(grader.pids), multiprocessing.get_context("fork")
    queue = context.Queue()

    def work():
        queue.put((grader.grade(["(x-2)(x+2)"], ["x^2-4"]), grader.pids))

    child = context.Process(target=work)
    child.start()
    verdicts, pids = queue.get(timeout=60)
    child.join(10)
    assert verdicts == [True] and not parents & set(pids)
    assert grader.grade(["(x-3)(x+3)"], ["x^2-9"]) == [True]
    assert set(grader.pids) == parents


@pytest.mark.slow
def test_processes_start_with_the_first_answers_that_need_algebra():
    """A training that needs none has none; a few answers need no more processes than answers."""
    with MathGrader(workers=3) as grader:
        assert grader.grade(["7", "1/2", "8"], ["7", "0.5", "9"]) == [True, True, False]
        assert grader.pids == []
        answers, golds = equal_in_other_words(2)
        assert grader.grade(answers[:1], golds[:1]) == [True]
        (first,) = grader.pids
        assert grader.grade(answers[1:], golds[1:]) == [True]
        assert grader.pids == [first]
        assert b"PYTHONHASHSEED=0" in Path(f"/proc/{first}/environ").read_bytes()  # same verdicts


@pytest.mark.slow
def test_closing_ends_every_process():
    with MathGrader(workers=2) as grader:
        grader.grade(*equal_in_other_words(2))
        wait_for(lambda: len(descendants(grader)) == 4)  # two watchers, two forks
        pids = descendants(grader)
    wait_for_the_end(pids)  # the forks end by signal


# A script as a user would write it: no __main__ guard, no close.
SCRIPT = """
import os, sys, threading, time
print("started", flush=True)
from trl_ablate.rewards import MathGrader
grader = MathGrader(workers=2, timeout=60.0)
print(grader.grade(["(x-1)(x+1)", "(x-2)(x+2)"], ["x^2-1", "x^2-4"]), flush=True)
sys.stdin.readline()
if "hang" in sys.argv:
    hang = threading.Thread(
        target=lambda: grader.grade(["9^{9^{9^{9}}}+1", "8^{8^{8^{8}}}+1"], ["5", "5"]), daemon=True
    )
    hang.start()
    time.sleep(0.5)
print("torch" in sys.modules, flush=True)
if "raise" in sys.argv:
    raise ValueError("on purpose")
if "wait" in sys.argv:
    time.sleep(60)
"""


@pytest.mark.slow
@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("end", "busy"),
    [*product(("exit", "raise", "SIGTERM", "SIGINT", "SIGKILL"), (False, True))],
)
def test_nothing_is_left_behind(tmp_path, end, busy):
    script = tmp_path / "user_script.py"
    script.write_text(SCRIPT)
    arguments = ["hang"] * busy + [{"exit": "", "raise": "raise"}.get(end, "wait")]
    process = subprocess.Popen(
        [sys.executable, str(script), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert process.stdout is not None and process.stdin is not None
    lines = [process.stdout.readline().strip() for _ in range(2)]
    assert lines == ["started", "[True, True]"]
    wait_for(lambda: len(children(process.pid)) == 4)
    below = children(process.pid)
    process.stdin.write("go on\n")
    process.stdin.flush()
    last = process.stdout.readline().strip()
    if end.startswith("SIG"):
        process.send_signal(getattr(signal, end))
    process.wait(20)
    wait_for_the_end(below, 5)
    assert last == "False"  # no torch
    assert "started" not in process.stdout.read()  # the script ran once
