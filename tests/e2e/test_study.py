"""The study runner: every run is done once, whatever is killed; and a real study, end to end."""

import json
import os
import signal
import sys
from argparse import Namespace

import pytest

from tests.support.studies import (
    FAILING,
    FAKE_IMPORTS,
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
from tests.support.warm import warm
from trl_ablate.run.directory import INTERRUPTED, RunDirectory
from trl_ablate.study.engines.local import LocalEngine, free_gpus, make
from trl_ablate.study.report.analysis import analyse
from trl_ablate.study.report.curves import planned_runs
from trl_ablate.study.store import RunStore

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks processes up in /proc")
WARM_OR_COLD = pytest.mark.parametrize(
    "start",
    [pytest.param(FAKE_IMPORTS, id="warm"), pytest.param(None, id="cold", marks=pytest.mark.slow)],
)


@pytest.fixture
def store(tmp_path) -> RunStore:
    return RunStore(tmp_path / "runs")


@WARM_OR_COLD
def test_every_run_once_and_then_none(store, start):
    arms = {"a": {"top": 0.8}, "b": {"top": 0.5}, "a_again": {"top": 0.8}}
    outcome = run_here(store, arms, warm=start)
    assert len(outcome.done) == 6 and not outcome.failed and not outcome.left
    assert set(starts(store.path).values()) == {1}
    again = run_here(store, arms, warm=start)
    assert sorted(again.done) == sorted(outcome.done)
    assert set(starts(store.path).values()) == {1}
    first, _, shared = analyse(planned_runs(make_plan(arms), store), METRIC).arms
    assert first.values("final") == shared.values("final")


@pytest.mark.slow
@WARM_OR_COLD
def test_failures_are_retried_recorded_and_do_not_stop_the_others(store, start):
    arms = FAILING | {"once": {"top": 0.7, "fails": 1}}
    outcome = run_here(store, arms, retries=1, warm=start)
    check_failures(store, arms)
    assert len(outcome.failed) == 9 and len(outcome.done) == 6
    assert sorted(starts(store.path).values()) == [1] * 3 + [2] * 12


@pytest.mark.slow
def test_a_run_that_is_refused_is_not_tried_again(store):
    outcome = run_here(store, {"a": {"top": 0.8}, "b": {"refused": 99}}, retries=3)
    assert len(outcome.done) == len(outcome.failed) == 3 and not outcome.left
    assert set(starts(store.path).values()) == {1}
    reasons = {store.state(run_id).reason for run_id in outcome.failed}
    assert reasons == {"exit code 2; error: template x.txt does not contain {question}; add it"}


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
def test_the_time_is_up(store):
    arms = {"a": {"top": 0.8, "pause": 0.05}}
    outcome = run_here(store, arms, jobs=1, max_hours=1.5 / 3600)
    assert len(outcome.left) + len(outcome.done) == 3 and outcome.left
    assert not children(store.path)
    assert len(run_here(store, arms).done) == 3


@pytest.mark.slow
@pytest.mark.parametrize("kills", [5, pytest.param(12, marks=pytest.mark.long)])
def test_killed_at_random_it_ends_with_the_same_numbers(tmp_path, store, kills):
    """kill -9 of the runner or of a run at random moments: every run once, nothing else changed."""
    arms = {"a": {"top": 0.8, "pause": 0.01}, "b": {"top": 0.5, "pause": 0.01, "collapse": 8}}
    killed = kill_at_random(kills, store, lambda: drive(store, arms), store.path)
    assert set(killed) == {"runner", "run"} and killed.total() == kills
    assert numbers(store, arms) == undisturbed(tmp_path / "calm", arms)
    assert not (store.path / "twice").exists() and not children(store.path)


@pytest.mark.parametrize(
    ("of_one_core", "threads"), [(False, "2"), pytest.param(True, "1", marks=pytest.mark.slow)]
)
def test_runs_share_the_cores(store, monkeypatch, of_one_core, threads):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    run_here(store, {"a": {"top": 0.8}}, jobs=4, of_one_core=of_one_core)
    files = store.path.glob("*/resolved_config.json")
    written = [json.loads(path.read_text()) for path in files]
    assert [config["threads"] for config in written] == [threads] * 3


def test_free_gpus_are_those_that_nobody_uses(tmp_path, monkeypatch):
    fake = tmp_path / "nvidia-smi"
    fake.write_text(
        "#!/bin/sh\nprintf '0, 4, 81559\\n1, 60000, 81559\\n2, 0, 81559\\n3, [N/A], [N/A]\\n'\n"
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert free_gpus() == ["0", "2", "3"]
    assert LocalEngine(on_gpu=True).slots == 3
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,2")
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
def test_a_real_study_from_plan_to_report(tmp_path):
    study = tmp_path / "smoke" / "study.yaml"
    study.parent.mkdir()
    study.write_text(
        "question: Does the whole way work?\narms: [grpo.yaml, std_dev_off.yaml]\nseeds: [0]\n"
        "profile: miniature\noverrides: {grpo_steps: 3, eval_size: 64, report_to: none,\n"
        "  generation_batch_size: 32, optimizer_batch_size: 32, per_device_train_batch_size: 32,\n"
        "  grader_workers: 1}\n"
    )

    def command(name: str, *words: str) -> str:
        ended = warm("study", name, study, "--runs", tmp_path / "runs", *words).wait()
        assert ended.code == 0, ended.printed
        return ended.stdout

    assert "not measured yet; add --probe" in command("plan")
    assert not list((tmp_path / "runs").glob("*/run.json"))
    command("run")
    assert "2 done, 0 to do" in command("plan")
    assert command("status").count("✓") == 3  # two runs and the legend
    command("report")
    assert "std_dev_off" in (study.parent / "REPORT.md").read_text(encoding="utf-8")
    records = {path: path.read_bytes() for path in (tmp_path / "runs").glob("*/run.json")}
    command("run")  # nothing to do
    assert {path: path.read_bytes() for path in records} == records
    assert "0.00 GiB" in command("clean")


@pytest.mark.slow
def test_folders_carry_the_arm_and_folders_of_former_stores_are_used(tmp_path):
    """Formerly a folder was named by the id alone."""
    arms = {"b": {"top": 0.5}, "a": {"top": 0.8}, "a/x": {"top": 0.8}}
    runs, store = make_plan(arms).runs(), RunStore(tmp_path)
    run_here(store, arms)
    folders = {run.id: path.name for path in tmp_path.iterdir() for run in runs.values()
               if path.is_dir() and path.name.endswith(run.id)}  # fmt: skip
    assert len(folders) == len(runs) == 6
    assert all(name in (f"b-{run_id}", f"a_x-{run_id}") for run_id, name in folders.items())
    finished, stopped = list(runs)[:2]
    for run_id in (finished, stopped):
        (tmp_path / folders[run_id]).rename(tmp_path / run_id)
    RunDirectory(tmp_path / stopped).update(status="stopped", reason=INTERRUPTED[0])
    before = starts(tmp_path)
    assert len(run_here(RunStore(tmp_path), arms).done) == 6
    assert starts(tmp_path) == before | {stopped: 1}
    assert "goes on behind step 20" in store.log(stopped).read_text()
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {
        *folders.values(), finished, stopped
    } - {folders[finished], folders[stopped]}  # fmt: skip
