"""The study runner: every run is done once, whatever is killed, and trials before all others; and
a real study, end to end."""

import json
import os
import signal
import sys
from argparse import Namespace

import pytest

from tests.support.studies import (
    FAILING,
    FAKE_IMPORTS,
    FAKE_TRAIN,
    SECONDS,
    check_failures,
    children,
    drive,
    kill_at_random,
    numbers,
    run_here,
    starts,
    undisturbed,
    wait_for,
)
from tests.support.synthetic_study import METRIC, make_plan
from tests.support.tuned_study import tuned_plan
from trl_ablate.cli.study import main
from trl_ablate.run.directory import INTERRUPTED, RunDirectory
from trl_ablate.study.engines import Job, local
from trl_ablate.study.engines.local import LocalEngine, LocalProcess, free_gpus, make
from trl_ablate.study.planned import Plan
from trl_ablate.study.report.analysis import analyse
from trl_ablate.study.report.curves import planned_runs
from trl_ablate.study.runner import Runner
from trl_ablate.study.runs import StudyRuns, tuned
from trl_ablate.study.store import RunStore

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks processes up in /proc")


@pytest.fixture
def store(tmp_path) -> RunStore:
    return RunStore(tmp_path / "runs")


def test_every_run_once_and_then_none(store):
    arms = {"a": {"top": 0.8}, "b": {"top": 0.5}, "a_again": {"top": 0.8}}
    outcome = run_here(store, arms)
    assert len(outcome.done) == 6 and not outcome.failed and not outcome.left
    again = run_here(store, arms)
    assert sorted(again.done) == sorted(outcome.done)
    assert list(starts(store.path).values()) == [1] * 6
    first, _, shared = analyse(planned_runs(make_plan(arms), store), METRIC).arms
    assert first.values("final") == shared.values("final")


@pytest.mark.slow
def test_failures_are_retried_recorded_and_do_not_stop_the_others(store):
    """Each run in an interpreter of its own. One that is refused is not tried again."""
    arms = FAILING | {"once": {"top": 0.7, "fails": 1}, "refused": {"refused": 99}}
    outcome = run_here(store, arms, retries=1, warm=None)
    check_failures(store, arms)
    assert len(outcome.failed) == 12 and len(outcome.done) == 6 and not outcome.left
    assert sorted(starts(store.path).values()) == [1] * 6 + [2] * 12


def test_a_run_of_another_runner_is_waited_for(store):
    arms = {"a": {"top": 0.8, "pause": 0.02}}
    other = drive(store, arms)
    wait_for(lambda: children(store.path))
    outcome = run_here(store, arms)
    assert other.wait(SECONDS) == 0
    assert len(outcome.done) == 3
    assert set(starts(store.path).values()) == {1} and not (store.path / "twice").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)]
)
def test_a_stopped_runner_takes_its_runs_along_and_goes_on_later(tmp_path, store, number):
    waits = {"waits_for": str(tmp_path / "stopped")}
    arms = {"a": {"top": 0.8, **waits}, "b": {"top": 0.5, **waits}}
    runner = drive(store, arms)
    wait_for(lambda: list(store.path.glob("*/checkpoint-5/sealed.json")))
    runner.send_signal(number)
    assert runner.wait(SECONDS) == 130
    assert not children(store.path)
    (tmp_path / "stopped").touch()
    states = {store.state(run_id).status for run_id in make_plan(arms).runs()}
    assert states <= {"interrupted", "to do"} and "interrupted" in states
    assert len(run_here(store, arms).done) == 6
    said = "".join(log.read_text() for log in store.path.glob("*.log"))
    assert "goes on behind step 5" in said
    assert numbers(store, arms) == undisturbed(tmp_path / "calm", arms)


@pytest.mark.slow
@pytest.mark.parametrize("kills", [4, pytest.param(12, marks=pytest.mark.long)])
def test_killed_at_random_it_ends_with_the_same_numbers(tmp_path, store, kills):
    """kill -9 of the runner or of a run at random moments: every run once, nothing else changed."""
    arms = {"a": {"top": 0.8, "pause": 0.01}, "b": {"top": 0.5, "pause": 0.01, "collapse": 8}}
    killed = kill_at_random(kills, store, lambda: drive(store, arms))
    assert set(killed) == {"runner", "run"} and killed.total() == kills
    assert numbers(store, arms) == undisturbed(tmp_path / "calm", arms)
    assert not (store.path / "twice").exists() and not children(store.path)


@pytest.mark.parametrize(
    ("of_one_core", "chosen", "threads"),
    [
        (False, {}, ["2", "2"]),
        (True, {}, ["1", "1"]),
        (False, {"OMP_NUM_THREADS": "3"}, ["3", "3"]),
        (False, {"OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "4"}, ["3", "4"]),
    ],
)
def test_runs_share_the_cores(store, monkeypatch, of_one_core, chosen, threads):
    """Unless the user has chosen threads; PyTorch listens to MKL's number first."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, number in chosen.items():
        monkeypatch.setenv(name, number)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    plan = make_plan({"a": {"top": 0.8}}, seeds=[0])
    run_here(store, plan, jobs=4, of_one_core=of_one_core)
    (written,) = store.path.glob("*/resolved_config.json")
    assert json.loads(written.read_text())["threads"] == threads


def test_free_gpus_are_those_that_nobody_uses(tmp_path, monkeypatch):
    fake = tmp_path / "nvidia-smi"
    fake.write_text(
        "#!/bin/sh\nprintf '0, 4, 81559\\n1, 60000, 81559\\n2, 0, 81559\\n3, [N/A], [N/A]\\n'\n"
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert free_gpus() == ["0", "2", "3"]
    asked = "import os; print(*map(os.getenv, ('CUDA_DEVICE_ORDER', 'CUDA_VISIBLE_DEVICES')))"
    engine = LocalEngine(on_gpu=True, command=(sys.executable, "-c", asked))
    assert engine.slots == 3
    with (tmp_path / "lock").open("w") as lock:
        job = Job((), tmp_path, tmp_path / "log", lock.fileno(), tmp_path / "away")
        assert engine.start(job, 1).wait() == 0
    assert job.log.read_text().startswith("PCI_BUS_ID 2")
    for visible in ("1,2", "2, 1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert free_gpus() == ["2"]
    fake.write_text("#!/bin/sh\nexit 9\n")
    assert free_gpus() == [] and LocalEngine(on_gpu=True).slots == 1


@pytest.mark.parametrize(("cores", "slots"), [(1, 1), (2, 2), (64, 8)])
def test_runs_of_the_miniature_take_a_core_each(monkeypatch, cores, slots):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))

    def slots_of(jobs: int | None, of_one_core: bool) -> int:
        return make(Namespace(jobs=jobs), Namespace(for_gpu=False, of_one_core=of_one_core)).slots

    assert slots_of(None, True) == slots and slots_of(3, True) == 3 and slots_of(None, False) == 1


@pytest.mark.slow
def test_a_real_study_from_plan_to_report(tmp_path, capsys):
    study, runs = tmp_path / "smoke" / "study.yaml", tmp_path / "runs"
    study.parent.mkdir()
    study.write_text(
        "question: Does the whole way work?\narms: [grpo.yaml, std_dev_off.yaml]\nseeds: [0]\n"
        "profile: miniature\noverrides: {grpo_steps: 2, eval_size: 16, report_to: none,\n"
        "  generation_batch_size: 16, optimizer_batch_size: 16, per_device_train_batch_size: 16,\n"
        "  grader_workers: 1}\n"
    )

    def command(name: str) -> str:
        assert main([name, str(study), "--runs", str(runs)]) == 0
        return capsys.readouterr().out

    assert "not measured yet; add --probe" in command("plan") and not list(runs.glob("*/run.json"))
    command("run")
    records = {path: path.read_bytes() for path in runs.glob("*/run.json")}
    assert len(records) == 2 and command("status").count("✓") == 3  # and the legend
    command("report")
    assert "std_dev_off" in (study.parent / "REPORT.md").read_text(encoding="utf-8")
    command("run")  # nothing to do
    assert {path: path.read_bytes() for path in records} == records
    assert "0.00 GiB" in command("clean")


def test_folders_carry_the_arm_and_folders_of_former_stores_are_used(store):
    """Formerly a folder was named by the id alone."""
    plan = make_plan({"a/x": {"top": 0.8}}, seeds=[0, 1])
    run_here(store, plan)
    folders = [store.path / f"a_x-{run_id}" for run_id in plan.runs()]
    former = [
        folder.rename(store.path / run_id)
        for run_id, folder in zip(plan.runs(), folders, strict=True)
    ]
    RunDirectory(former[0]).update(status="stopped", reason=INTERRUPTED[0])
    assert len(run_here(RunStore(store.path), plan).done) == 2
    assert "goes on behind step 20" in store.log(former[0].name).read_text()
    assert {path.parent for path in store.path.glob("*/run.json")} == {*former}


TOPS = {"ref": [0.4, 0.8], "own": [0.7, 0.3], "collapses": [0.5, -0.9]}
"""Of a tuned study: `collapses` has the highest top at the second value, and does not keep it."""
CHOSEN = {"ref": "ref--lr_2", "own": "own--lr_1", "collapses": "collapses--lr_1"}
TRIALS, RUNS = 3 * 2 * 2, (1 + 2 + 2) * 3


def chosen(plan: Plan, store: RunStore) -> dict[str, str | None]:
    return {each.arm: each.best for each in tuned(plan, StudyRuns(plan, store).finished)}


@pytest.mark.slow
def test_a_trial_that_always_fails_leaves_the_choice_to_the_others(store):
    plan = tuned_plan(TOPS, pause=0.0, fails={"ref--lr_2": 99})
    outcome = run_here(store, plan, retries=0)
    assert len(outcome.failed) == 2 and not outcome.left
    assert chosen(plan, store) == CHOSEN | {"ref": "ref--lr_1"}
    assert len(outcome.done) == 10 + (1 + 1 + 1) * 3  # all have their best at the same value


class Left(LocalProcess):
    """A process that has not ended when the runner looks, and is not stopped by it."""

    def poll(self) -> None:
        return None

    def ask_to_end(self) -> None:
        """It continues."""

    def end(self, patience: float = 0.0) -> None:
        self.wait()


@pytest.mark.slow
def test_trials_come_first_also_where_runs_outlive_the_runner(tmp_path, store, monkeypatch):
    """`stay=False` collects what has ended and starts what can start, also what follows: it takes a
    call for each stage, and gives what one call of an engine of this machine gives."""
    plan, calls = tuned_plan(TOPS, pause=0.0), [0]
    calm = undisturbed(tmp_path / "calm", plan)
    monkeypatch.setattr(local, "LocalProcess", Left)
    monkeypatch.setattr(LocalEngine, "in_place", False)
    engine = LocalEngine(99, command=FAKE_TRAIN, warm=FAKE_IMPORTS)
    while StudyRuns(plan, store).of_pass(False) and len(calls) < 9:
        Runner(StudyRuns(plan, store), engine, stay=False).run()
        calls.append(sum(starts(store.path).values()))
    assert sorted({*calls}) == [0, TRIALS, TRIALS + RUNS]
    assert set(starts(store.path).values()) == {1}
    assert chosen(plan, store) == CHOSEN and numbers(store, plan) == calm
