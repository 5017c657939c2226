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


def running(asked: list[str]) -> SimpleNamespace:
    """A process that goes on, and lists what it is asked for."""
    names = ("ask_to_save", "ask_to_end", "end")
    return SimpleNamespace(
        poll=lambda: None, **{name: partial(asked.append, name) for name in names}
    )


@pytest.mark.parametrize(("here", "words"), [(True, "save and stop"), (False, "go on where")])
def test_at_the_time_limit_runs_save_or_go_on_elsewhere(tmp_path, monkeypatch, here, words):
    monkeypatch.setattr(runner, "POLL_SECONDS", 0.0)
    plan, called = make_plan({"a": {"top": 0.8}}, seeds=[0]), []
    process = running(called)
    engine: Any = SimpleNamespace(start=lambda job, slot: process, slots=1, in_place=here)
    runs, said = StudyRuns(plan, RunStore(tmp_path)), []
    outcome = Runner(runs, engine, max_hours=1e-4, say=said.append).run()
    assert said[-1].startswith(f"time limit reached: the runs {words}")
    assert called == ["ask_to_save", "end"] and outcome.left == [*plan.runs()]


@pytest.mark.parametrize(
    ("is_new", "reason"),
    [(True, "the disk is full"), (False, "exit code 2; error: no such profile")],
)
def test_the_reason_is_that_of_this_attempt(tmp_path, is_new, reason):
    """A start that is refused leaves the record of an earlier attempt."""
    plan, store = make_plan({"a": {"top": 0.8}}, seeds=[0]), RunStore(tmp_path)
    (run,) = plan.arms[0].runs
    ended = {"status": "failed", "reason": "the disk is full"}
    directory = write_run(store, run, {"top": 0.8}, iter([]), **ended)
    written = directory.run_file.stat().st_mtime_ns

    def start(job, slot):
        job.log.write_text("error: no such profile\n")
        if is_new:
            os.utime(directory.run_file, ns=(written, written + 1))
        return SimpleNamespace(poll=lambda: 2)

    engine: Any = SimpleNamespace(start=start, slots=1, in_place=True)
    assert Runner(StudyRuns(plan, store), engine).run().failed == [run.id]
    assert store.state(run.id).reason == reason


def test_a_run_with_other_settings_than_planned_is_not_tried_again(tmp_path):
    """Its recipe was edited after the study was started."""
    plan, store = make_plan({"a": {"top": 0.8}}, seeds=[0]), RunStore(tmp_path)
    (run,) = plan.arms[0].runs
    started: list[str] = []

    def start(job, slot):
        started.append(job.directory.name)
        write_run(store, run, {"top": 0.7}, iter([]))
        return SimpleNamespace(poll=lambda: 0)

    engine: Any = SimpleNamespace(start=start, slots=1, in_place=True)
    assert Runner(StudyRuns(plan, store), engine).run().failed == [run.id] and len(started) == 1
    assert "other settings, of a recipe that was edited" in (store.state(run.id).reason or "")


def test_a_full_disk_keeps_no_lock(tmp_path, monkeypatch):
    plan, store = make_plan({"a": {"top": 0.8}}, seeds=[0]), RunStore(tmp_path)
    process = SimpleNamespace(poll=lambda: 1, ask_to_end=lambda: None, end=lambda: None)
    engine: Any = SimpleNamespace(start=lambda job, slot: process, slots=1, in_place=True)
    monkeypatch.setattr(RunDirectory, "update", Mock(side_effect=OSError(ENOSPC, "full")))
    with pytest.raises(OSError, match="full"):
        Runner(StudyRuns(plan, store), engine).run()
    assert store.lock(*plan.runs()).acquire()


def test_a_run_that_is_elsewhere_is_collected_by_a_command_that_works(tmp_path):
    plan = replace(make_plan({"a": {"top": 0.8}}, seeds=[0]), path="my studies/study.yaml")
    store = RunStore(tmp_path / "my runs")
    store.path.mkdir()
    write_json(store.away(*plan.runs()), {"engine": "modal", "call": "c", "folder": "f"})
    engine: Any = SimpleNamespace(slots=1, name="local", in_place=True)
    with pytest.raises(ConfigurationError) as raised:
        Runner(StudyRuns(plan, store), engine).run()
    command = f"trl-ablate study fetch 'my studies/study.yaml' --runs '{store.path}'"
    assert f"`{command}`" in str(raised.value)


def started_while(tmp_path, *numbers: int) -> list[str]:
    """What a runner does with its run if these signals come while the run is started."""
    done: list[str] = []

    def start(job, slot):
        for number in numbers:
            os.kill(os.getpid(), number)
        done.append("started")
        return running(done)

    engine: Any = SimpleNamespace(start=start, slots=1, in_place=True)
    plan = make_plan({"a": {"top": 0.8}}, seeds=[0])
    with pytest.raises(KeyboardInterrupt) as raised:
        Runner(StudyRuns(plan, RunStore(tmp_path)), engine).run()
    assert (raised.type is Terminated) == (numbers[-1] == signal.SIGTERM)
    return done


@pytest.mark.parametrize(
    ("number", "asked"), [(signal.SIGINT, "ask_to_end"), (signal.SIGTERM, "ask_to_save")]
)
def test_the_run_is_known_before_the_signal_acts(tmp_path, number, asked):
    assert started_while(tmp_path, number) == ["started", asked, "end"]


def test_a_second_signal_acts_at_once(tmp_path):
    assert started_while(tmp_path, signal.SIGTERM, signal.SIGINT) == []
