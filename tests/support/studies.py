"""Shared by tests of engines: a made-up study of the fake training, done here or by a process that
tests watch and kill: `python -m tests.support.studies RUNS ARMS_JSON [OPTIONS]`."""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.support.fake_train import alive
from tests.support.synthetic_study import METRIC, make_plan
from trl_ablate.run.termination import Termination
from trl_ablate.study.engines import Engine
from trl_ablate.study.engines.local import LocalEngine
from trl_ablate.study.planned import Plan
from trl_ablate.study.report.curves import planned_runs
from trl_ablate.study.runner import Outcome, Runner
from trl_ablate.study.runs import StudyRuns
from trl_ablate.study.store import RunStore, id_of

REPOSITORY = Path(__file__).parents[2]
DRIVER = (sys.executable, "-m", "tests.support.studies")
FAKE_PROGRAM = (str(Path(__file__).with_name("fake_train.py")),)
FAKE_TRAIN = (sys.executable, *FAKE_PROGRAM)
FAKE_IMPORTS = ("trl_ablate.run.checkpoints", "trl_ablate.study.report.curves")
SECONDS = 300
"""A deadline for what ends by itself, on a busy machine."""


def main() -> int:
    """Do a study, and end as `trl-ablate study run` does."""
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", type=Path)
    parser.add_argument("arms", type=json.loads)
    parser.add_argument("--only", action="append")
    parser.add_argument("--ray_address")
    parser.set_defaults(jobs=None, cpus_per_run=1, keep_checkpoints=False)
    options = parser.parse_args()
    Termination().listen()
    runs = StudyRuns(make_plan(options.arms), RunStore(options.runs))
    try:
        found = Runner(runs, engine(options, runs.plan), only=options.only).run()
    except KeyboardInterrupt:
        return 130
    return 1 if found.failed else 3 if found.left else 0


def engine(options: argparse.Namespace, plan: Plan) -> Engine:
    if options.ray_address is None:
        return LocalEngine(jobs=2, command=FAKE_TRAIN, warm=FAKE_IMPORTS)
    from trl_ablate.study.engines import shipping
    from trl_ablate.study.engines.ray import RayEngine

    shipping.PROGRAM = FAKE_PROGRAM
    return RayEngine(options, plan)


def drive(store: RunStore, arms: dict, *more: str) -> subprocess.Popen:
    words = [*DRIVER, str(store.path), json.dumps(arms), *more]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, cwd=REPOSITORY)


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


def numbers(store: RunStore, study: dict | Plan):
    """The study's table: the name, status and curve of every run that has one."""
    runs = planned_runs(plan_of(study), store)
    return [
        (run.name, run.status, run.series[METRIC].values) for run in runs if METRIC in run.series
    ]


def plan_of(study: dict | Plan) -> Plan:
    """The plan of a study that is given by its arms."""
    return make_plan(study) if isinstance(study, dict) else study


def run_here(
    store: RunStore,
    study: dict | Plan,
    *,
    jobs: int = 2,
    of_one_core: bool = False,
    warm: Sequence[str] | None = FAKE_IMPORTS,
    **options: Any,
) -> Outcome:
    """Do a study, or that of these arms, by processes of this machine."""
    engine = LocalEngine(jobs, of_one_core=of_one_core, command=FAKE_TRAIN, warm=warm)
    return Runner(StudyRuns(plan_of(study), store), engine, **options).run()


def undisturbed(folder: Path, study: dict | Plan):
    """The study's table where nothing is killed, and no arm of a dict pauses, in a store of its
    own."""
    if isinstance(study, dict):
        study = {name: settings | {"pause": 0.0} for name, settings in study.items()}
    run_here(store := RunStore(folder), study, jobs=3)
    return numbers(store, study)


FAILING = {
    "well": {"top": 0.8},
    "always": {"top": 0.6, "fails": 99},
    "killed": {"top": 0.5, "dies": 99},
    "nothing": {"top": 0.4, "never_starts": 99},
}


def check_failures(store: RunStore, arms: dict) -> None:
    """After a study of these failing arms, and of others: each has its reason and its attempts."""
    plan = make_plan(arms)
    states = {arm.name: [store.state(run.id) for run in arm.runs] for arm in plan.arms}
    reasons = {
        "always": "RuntimeError: out of luck",
        "killed": "killed by signal 9",
        "nothing": "exit code 1; error: no such profile",
        "refused": "exit code 2; error: template x.txt does not contain {question}; add it",
    }
    for name, found in states.items():
        assert {state.status for state in found} == {"failed" if name in reasons else "finished"}
        assert all((state.reason or "").startswith(reasons.get(name, "")) for state in found), name
    assert {state.record["attempts"] for state in states["killed"]} == {2}
    log = store.log(plan.arms[1].runs[0].id).read_text()
    assert log.count("--- attempt") == log.count("Traceback") == 2


def kill_at_random(
    kills: int, store: RunStore, start: Callable[[], subprocess.Popen]
) -> Counter[str]:
    """Kill the runner or a run with SIGKILL, as often as given, both as often; then let the study
    finish. The number of kills of each kind."""
    rng = random.Random(kills)
    targets = [("runner", "run")[n % 2] for n in range(kills)]
    rng.shuffle(targets)
    runner = start()

    def running() -> list[int]:
        nonlocal runner
        if runner.poll() is not None:
            forget_some(store, rng)
            runner = start()
        return children(store.path)

    for target in targets:
        time.sleep(rng.uniform(0.1, 0.9))
        wait_for(running, SECONDS)
        if target == "run":
            wait_for(lambda: is_killed(rng.choice(running() or [0])), SECONDS)
        else:
            runner.kill()
            runner.wait()
    runner.wait(SECONDS)
    assert start().wait(SECONDS) == 0
    return Counter(targets)


def is_killed(pid: int) -> bool:
    """Whether the kill ended the process: it may have finished just before."""
    try:
        if pid:
            os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return pid > 0


def forget_some(store: RunStore, rng: random.Random) -> None:
    """Remove a finished run, so that it is done again and there is a process to kill."""
    finished = [path.parent for path in store.path.glob("*/run.json")]
    if finished:
        directory = rng.choice(finished)
        lock = store.lock(id_of(directory.name))
        if lock.acquire():
            shutil.rmtree(directory)
            lock.release()


if __name__ == "__main__":
    sys.exit(main())
