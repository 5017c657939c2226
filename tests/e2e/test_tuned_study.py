"""A study with tuning, from its first trial to its last run, by processes of this machine."""

import sys

import pytest

from tests.support.studies import FAKE_IMPORTS, FAKE_TRAIN, numbers, run_here, starts
from tests.support.tuned_study import tuned_plan
from trl_ablate.study.engines import Job, Process
from trl_ablate.study.engines.local import LocalEngine
from trl_ablate.study.planned import Plan
from trl_ablate.study.runner import Runner
from trl_ablate.study.runs import StudyRuns, tuned
from trl_ablate.study.store import RunStore

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks processes up in /proc")

TOPS = {"ref": [0.4, 0.8], "own": [0.7, 0.3], "collapses": [0.5, -0.9]}
"""`collapses` has the highest top at the second value, and does not keep it."""
CHOSEN = {"ref": "ref--lr_2", "own": "own--lr_1", "collapses": "collapses--lr_1"}
RUNS = 3 * 2 * 2 + (1 + 2 + 2) * 3


def chosen(plan: Plan, store: RunStore) -> dict[str, str | None]:
    return {each.arm: each.best for each in tuned(plan, StudyRuns(plan, store).finished)}


@pytest.fixture(scope="module")
def calm(tmp_path_factory) -> tuple[Plan, RunStore]:
    """The study without any interruption."""
    plan, store = tuned_plan(TOPS, pause=0.0), RunStore(tmp_path_factory.mktemp("calm"))
    outcome = run_here(store, plan, jobs=6)
    assert len(outcome.done) == RUNS and not outcome.failed and not outcome.left
    return plan, store


@pytest.mark.slow
def test_trials_first_then_the_runs_that_follow_from_them(calm):
    plan, store = calm
    assert chosen(plan, store) == CHOSEN
    assert set(starts(store.path).values()) == {1} and len(starts(store.path)) == RUNS
    assert StudyRuns(plan, store).next == []
    again = run_here(store, plan, jobs=6)
    assert len(again.done) == RUNS and set(starts(store.path).values()) == {1}


@pytest.mark.slow
def test_a_trial_that_always_fails_leaves_the_choice_to_the_others(tmp_path):
    plan = tuned_plan(TOPS, pause=0.0, fails={"ref--lr_2": 99})
    store = RunStore(tmp_path)
    outcome = run_here(store, plan, retries=0)
    assert len(outcome.failed) == 2 and not outcome.left
    assert chosen(plan, store) == CHOSEN | {"ref": "ref--lr_1"}
    assert len(outcome.done) == 10 + (1 + 1 + 1) * 3  # all have their best at the same value


@pytest.mark.slow
def test_an_engine_whose_runs_outlive_the_runner_takes_a_call_for_each_stage(tmp_path, calm):
    """`stay=False` collects what has ended and starts what can start, also what follows."""
    plan, store = tuned_plan(TOPS, pause=0.0), RunStore(tmp_path)
    engine = Detached(store)
    calls = []
    while StudyRuns(plan, store).next:
        before = engine.started
        Runner(StudyRuns(plan, store), engine, stay=False).run()
        calls.append(engine.started - before)
        assert len(calls) < 9
    assert [call for call in calls if call] == [12, 15]
    assert numbers(store, plan) == numbers(calm[1], plan)


class Detached:
    """Starts runs that end before the runner looks again, as a service's would."""

    in_place, slots = False, 99

    def __init__(self, store: RunStore):
        self._local = LocalEngine(99, command=FAKE_TRAIN, warm=FAKE_IMPORTS)
        self.started = 0

    def start(self, job: Job, slot: int) -> "Left":
        self.started += 1
        return Left(self._local.start(job, slot))


class Left(Process):
    """A process that has not ended when the runner looks, and is not stopped by it."""

    def __init__(self, process: Process):
        self._process = process

    def poll(self) -> None:
        return None

    def ask_to_end(self) -> None:
        """It continues."""

    def end(self, patience: float = 0.0) -> None:
        self._process.wait()
