"""A runner that is interrupted, or whose time is up, leaves no run behind; reasons of failures."""

import os
import signal
from dataclasses import replace
from errno import ENOSPC
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from tests.support.synthetic_study import make_plan, write_run
from trl_ablate.errors import ConfigurationError
from trl_ablate.run.directory import RunDirectory
from trl_ablate.run.json_files import write_json
from trl_ablate.run.termination import Terminated, Termination
from trl_ablate.study import runner
from trl_ablate.study.runner import Runner
from trl_ablate.study.runs import StudyRuns
from trl_ablate.study.store import RunStore


@pytest.fixture(autouse=True)
def usual_handlers():
    numbers = (signal.SIGINT, signal.SIGTERM)
    usual = {number: signal.getsignal(number) for number in numbers}
    Termination().listen()
    yield
    for number, handler in usual.items():
        signal.signal(number, handler)


@pytest.fixture
def runs(tmp_path) -> StudyRuns:
    """Of a study with one run, to do."""
    return StudyRuns(make_plan({"a": {"top": 0.8}}, seeds=[0]), RunStore(tmp_path))


def engine(start: Any, **more: Any) -> Any:
    return SimpleNamespace(start=start, slots=1, **{"in_place": True, **more})


def running(asked: list[str]) -> SimpleNamespace:
    """A process that goes on, and lists what it is asked for."""
    names = ("ask_to_save", "ask_to_end", "end")
    return SimpleNamespace(
        poll=lambda: None, **{name: partial(asked.append, name) for name in names}
    )


@pytest.mark.parametrize(("here", "words"), [(True, "save and stop"), (False, "go on where")])
def test_at_the_time_limit_runs_save_or_go_on_elsewhere(runs, monkeypatch, here, words):
    monkeypatch.setattr(runner, "POLL_SECONDS", 0.0)
    called, said = [], []
    where = engine(lambda job, slot: running(called), in_place=here)
    outcome = Runner(runs, where, max_hours=1e-4, say=said.append).run()
    assert said[-1].startswith(f"time limit reached: the runs {words}")
    assert called == ["ask_to_save", "end"] and outcome.left == [*runs.plan.runs()]


@pytest.mark.parametrize(
    ("is_new", "reason"),
    [(True, "the disk is full"), (False, "exit code 2; error: no such profile")],
)
def test_the_reason_is_that_of_this_attempt(runs, is_new, reason):
    """A start that is refused leaves the record of an earlier attempt."""
    (run,) = runs.plan.runs().values()
    ended = {"status": "failed", "reason": "the disk is full"}
    directory = write_run(runs.store, run, {"top": 0.8}, iter([]), **ended)
    written = directory.run_file.stat().st_mtime_ns

    def start(job, slot):
        job.log.write_text("error: no such profile\n")
        if is_new:
            os.utime(directory.run_file, ns=(written, written + 1))
        return SimpleNamespace(poll=lambda: 2)

    assert Runner(runs, engine(start)).run().failed == [run.id]
    assert runs.store.state(run.id).reason == reason


def test_a_run_with_other_settings_than_planned_is_not_tried_again(runs):
    """Its recipe was edited after the study was started."""
    (run,) = runs.plan.runs().values()
    started: list[str] = []

    def start(job, slot):
        started.append(job.directory.name)
        write_run(runs.store, run, {"top": 0.7}, iter([]))
        return SimpleNamespace(poll=lambda: 0)

    assert Runner(runs, engine(start)).run().failed == [run.id] and len(started) == 1
    assert "other settings, of a recipe that was edited" in (runs.store.state(run.id).reason or "")


def test_a_full_disk_keeps_no_lock(runs, monkeypatch):
    process = SimpleNamespace(poll=lambda: 1, ask_to_end=lambda: None, end=lambda: None)
    monkeypatch.setattr(RunDirectory, "update", Mock(side_effect=OSError(ENOSPC, "full")))
    with pytest.raises(OSError, match="full"):
        Runner(runs, engine(lambda job, slot: process)).run()
    assert runs.store.lock(*runs.plan.runs()).acquire()


def test_a_run_that_is_elsewhere_is_collected_by_a_command_that_works(runs, tmp_path):
    plan, store = replace(runs.plan, path="my studies/study.yaml"), RunStore(tmp_path / "my runs")
    store.path.mkdir()
    write_json(store.away(*plan.runs()), {"engine": "modal", "call": "c", "folder": "f"})
    with pytest.raises(ConfigurationError) as raised:
        Runner(StudyRuns(plan, store), engine(None, name="local")).run()
    command = f"trl-ablate study fetch 'my studies/study.yaml' --runs '{store.path}'"
    assert f"`{command}`" in str(raised.value)


@pytest.mark.parametrize(
    ("numbers", "done"),
    [
        ([signal.SIGINT], ["started", "ask_to_end", "end"]),
        ([signal.SIGTERM], ["started", "ask_to_save", "end"]),
        ([signal.SIGTERM, signal.SIGINT], []),  # the second one acts at once
    ],
)
def test_a_run_is_known_before_a_signal_acts_that_comes_while_it_is_started(runs, numbers, done):
    found: list[str] = []

    def start(job, slot):
        for number in numbers:
            os.kill(os.getpid(), number)
        found.append("started")
        return running(found)

    with pytest.raises(KeyboardInterrupt) as raised:
        Runner(runs, engine(start)).run()
    assert (raised.type is Terminated) == (numbers[-1] == signal.SIGTERM)
    assert found == done
