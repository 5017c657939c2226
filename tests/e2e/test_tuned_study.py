"""A study with tuning, from its first trial to its last run: interrupted, killed, on engines."""

import sys

import pytest

from tests.support.drive_study import FAKE_IMPORTS, FAKE_TRAIN
from tests.support.studies import starts
from tests.support.synthetic_study import METRIC
from tests.support.tuned_study import tuned_plan
from tests.support.warm import warm
from trl_ablate.study.engines import Job, Process
from trl_ablate.study.engines.local import LocalEngine
from trl_ablate.study.planned import Plan
from trl_ablate.study.report.curves import planned_runs
from trl_ablate.study.runner import Outcome, Runner
from trl_ablate.study.runs import StudyRuns, next_runs, tuned
from trl_ablate.study.store import RunStore

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks processes up in /proc")

TOPS = {"ref": [0.4, 0.8], "own": [0.7, 0.3], "collapses": [0.5, -0.9]}
"""`collapses` has the highest top at the second value, and does not keep it."""
CHOSEN = {"ref": "ref--lr_2", "own": "own--lr_1", "collapses": "collapses--lr_1"}
RUNS = 3 * 2 * 2 + (1 + 2 + 2) * 3


def run_here(plan: Plan, store: RunStore, **options) -> Outcome:
    engine = LocalEngine(6, command=FAKE_TRAIN, warm=FAKE_IMPORTS)
    return Runner(plan, store, engine, **options).run()


def chosen(plan: Plan, store: RunStore) -> dict[str, str | None]:
    return {each.arm: each.best for each in tuned(plan, StudyRuns(plan, store).finished)}


def numbers(plan: Plan, store: RunStore) -> list:
    """Every run's name, status and curve."""
    runs = planned_runs(plan, store)
    return [
        (run.name, run.status, run.series[METRIC].values) for run in runs if METRIC in run.series
    ]


@pytest.fixture(scope="module")
def calm(tmp_path_factory) -> tuple[Plan, RunStore]:
    """The study without any interruption."""
    plan, store = tuned_plan(TOPS, pause=0.0), RunStore(tmp_path_factory.mktemp("calm"))
    outcome = run_here(plan, store)
    assert len(outcome.done) == RUNS and not outcome.failed and not outcome.left
    return plan, store


def test_trials_first_then_the_runs_that_follow_from_them(calm):
    plan, store = calm
    assert chosen(plan, store) == CHOSEN
    assert set(starts(store.path).values()) == {1} and len(starts(store.path)) == RUNS
    assert StudyRuns(plan, store).next == []
    again = run_here(plan, store)
    assert len(again.done) == RUNS and set(starts(store.path).values()) == {1}


@pytest.mark.slow
def test_a_time_limit_between_trials_and_what_follows(tmp_path, calm):
    plan, store = tuned_plan(TOPS, pause=0.0), RunStore(tmp_path)
    trials = {run.id for run in next_runs(plan, {})}
    assert not run_here(plan, store, only=trials).left
    assert {name for name in starts(store.path)} == trials
    outcome = run_here(plan, store, max_hours=0)
    assert len(outcome.left) == len(trials)  # nothing was looked at
    outcome = run_here(plan, store)
    assert len(outcome.done) == RUNS and set(starts(store.path).values()) == {1}
    assert numbers(plan, store) == numbers(*calm)


def test_a_trial_that_always_fails_leaves_the_choice_to_the_others(tmp_path):
    plan = tuned_plan(TOPS, pause=0.0, fails={"ref--lr_2": 99})
    store = RunStore(tmp_path)
    outcome = run_here(plan, store, retries=0)
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
        Runner(plan, store, engine, stay=False).run()
        calls.append(engine.started - before)
        assert len(calls) < 9
    assert [call for call in calls if call] == [12, 15]
    assert numbers(plan, store) == numbers(*calm)


class Detached:
    """Starts runs that end before the runner looks again, as a service's would."""

    in_place, slots = False, 99

    def __init__(self, store: RunStore):
        self._local = LocalEngine(99, command=FAKE_TRAIN, warm=FAKE_IMPORTS)
        self.started = 0

    def start(self, job: Job, slot: int) -> "Left":
        self.started += 1
        return Left(self._local.start(job, slot))


class Left:
    """A process that has not ended when the runner looks, and is not stopped by it."""

    def __init__(self, process: Process):
        self._process = process

    def poll(self) -> None:
        return None

    def wait(self) -> int:
        return self._process.wait()

    def ask_to_end(self) -> None:
        """It continues."""

    def ask_to_save(self) -> None:
        """It continues."""

    def end(self, patience: float = 0.0) -> None:
        self._process.wait()


STUDY = """
question: Which one, each at its best?
arms: [grpo.yaml, std_dev_off.yaml]
tune: {learning_rate: [3e-5, 1e-5], seeds: 1}
seeds: [0]
profile: miniature
overrides: {grpo_steps: 3, eval_size: 64, report_to: none, grader_workers: 1,
  generation_batch_size: 32, optimizer_batch_size: 32, per_device_train_batch_size: 32}
"""


@pytest.mark.long
def test_a_real_one_from_plan_to_report(tmp_path):
    study = tmp_path / "study.yaml"
    study.write_text(STUDY)

    def command(name: str) -> str:
        ended = warm("study", name, study, "--runs", tmp_path / "runs").wait()
        assert ended.code == 0, ended.printed
        return " ".join(ended.stdout.split())

    assert "6 to 7 runs in all" in command("plan")
    command("run")
    command("report")
    text = (tmp_path / "REPORT.md").read_text(encoding="utf-8")
    assert "Each arm at its own best learning_rate" in text and "not known yet" not in text
    assert "## Answer at the reference's learning_rate" in text
    assert (tmp_path / "sensitivity.png").is_file()
    assert "done; next: trl-ablate study report" in command("run")
