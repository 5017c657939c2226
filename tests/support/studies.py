"""Shared by tests of engines: a made-up study in its own process, watched and killed."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.support.drive_study import FAKE_IMPORTS, FAKE_TRAIN
from tests.support.fake_train import alive
from tests.support.synthetic_study import METRIC, make_plan
from trl_ablate.study.engines.local import LocalEngine
from trl_ablate.study.report.curves import planned_runs
from trl_ablate.study.runner import Runner
from trl_ablate.study.store import RunStore, id_of

DRIVER = Path(__file__).with_name("drive_study.py")
SECONDS = 300
"""A deadline for what ends by itself, on a busy machine."""


def drive(store: RunStore, arms: dict, *more: str) -> subprocess.Popen:
    words = [sys.executable, str(DRIVER), str(store.path), json.dumps(arms), *more]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL)


def starts(folder: Path) -> dict[str, int]:
    """How often each run was started, by its id."""
    files = sorted(_starts_files(folder))
    return {id_of(path.stem): len(path.read_text().split()) for path in files}


def children(folder: Path) -> list[int]:
    """Process ids of the fake trainings that are alive, of those that write below the folder."""
    pids = [int(line) for path in _starts_files(folder) for line in path.read_text().split()]
    return [pid for pid in pids if alive(pid)]


def _starts_files(folder: Path) -> list[Path]:
    """`os.walk`, unlike `rglob`, goes on where a folder vanishes meanwhile."""
    found = [Path(place, name) for place, _, names in os.walk(folder) for name in names]
    return [path for path in found if path.suffix == ".starts"]


def wait_for(condition, seconds: float = 30.0):
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until, "it never came to that"
        time.sleep(0.02)
    return found


def numbers(store: RunStore, arms: dict):
    """The study's table: every run's name, status and curve."""
    runs = planned_runs(make_plan(arms), store)
    return [(run.name, run.status, run.series[METRIC].values) for run in runs]


def undisturbed(folder: Path, arms: dict):
    """The study's table when processes of this machine do it, in a store of its own."""
    store = RunStore(folder)
    Runner(make_plan(arms), store, LocalEngine(jobs=3, command=FAKE_TRAIN, warm=FAKE_IMPORTS)).run()
    return numbers(store, arms)


def kill_at_random(
    kills: int,
    store: RunStore,
    start: Callable[[], subprocess.Popen],
    folder: Path,
    a_node: Callable[[], None] | None = None,
    pause: tuple[float, float] = (0.1, 0.9),
) -> Counter[str]:
    """Kill the runner, a run (one that writes below the folder), or a node with SIGKILL, as often
    as given; then let the study finish. The number of kills of each kind; the seed decides it."""
    rng, killed = random.Random(kills), Counter()
    runner = start()

    def running() -> list[int]:
        nonlocal runner
        if runner.poll() is not None:
            forget_some(store, rng)
            runner = start()
        return children(folder)

    for _ in range(kills):
        time.sleep(rng.uniform(*pause))
        target = rng.choice(["runner", "run", "node"] if a_node else ["runner", "run"])
        killed[target] += 1
        wait_for(running, SECONDS)
        if target == "run":
            wait_for(lambda: is_killed(rng.choice(running() or [None])), SECONDS)
        elif target == "node" and a_node:
            a_node()
        else:
            runner.kill()
            runner.wait()
    runner.wait(SECONDS)
    assert start().wait(SECONDS) == 0
    return killed


def is_killed(pid: int | None) -> bool:
    """Whether the kill ended the process: it may have finished just before."""
    try:
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return pid is not None


def forget_some(store: RunStore, rng: random.Random) -> None:
    """Remove a finished run, so that it is done again and there is a process to kill."""
    finished = [path.parent for path in store.path.glob("*/run.json")]
    if finished:
        directory = rng.choice(finished)
        lock = store.lock(directory.name)
        if lock.acquire():
            shutil.rmtree(directory)
            lock.release()
