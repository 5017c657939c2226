"""The runs of a study: their states, what is cleaned, and what they cost."""

import fcntl
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.fake_train import save
from tests.support.synthetic_study import learning_rows, make_plan, write_run, write_study
from trl_ablate import ConfigurationError
from trl_ablate.run.json_files import write_json
from trl_ablate.study.cleaning import find_rubbish, remove
from trl_ablate.study.engines.local import LocalEngine
from trl_ablate.study.expected_hours import PROBE_STEPS, measure, probe, probe_name, total_of
from trl_ablate.study.planned import PlannedRun
from trl_ablate.study.runner import Runner
from trl_ablate.study.runs import StudyRuns
from trl_ablate.study.store import RunStore

ARMS = {"a": {"top": 0.8}, "b": {"top": 0.5}}


def estimate(runs: StudyRuns):
    return total_of([runs])[0][0].worst


def test_states_of_a_run(tmp_path):
    settings, other = {"top": 0.8}, {"top": 0.7}  # another configuration under this name
    plan, store = make_plan({"a": settings}, seeds=range(6)), RunStore(tmp_path)
    runs = plan.arms[0].runs
    for run, given, status, reason in (
        (runs[0], settings, "finished", None),
        (runs[1], settings, "stopped", "loss is not finite"),
        (runs[2], settings, "stopped", "interrupted from the keyboard"),
        (runs[3], settings, "running", None),
        (runs[4], other, "finished", None),
    ):
        write_run(store, run, given, learning_rows(0, 0.8), status=status, reason=reason)
    found = [store.state(run.id).status for run in runs]
    assert found == ["finished", "stopped", "interrupted", "interrupted", "to do", "to do"]
    lock = store.lock(runs[3].id)
    assert lock.acquire()
    assert store.state(runs[3].id).status == "running"
    assert not store.lock(runs[3].id).acquire()
    lock.release()
    assert store.state(runs[3].id).status == "interrupted"


def test_who_looks_at_a_run_keeps_nobody_from_it(tmp_path, monkeypatch):
    """The look ends while the other process tries again."""
    lock = RunStore(tmp_path).lock("0123456789-seed0")
    assert lock.acquire()
    lock.release()
    with (tmp_path / "0123456789-seed0.lock").open() as look:
        fcntl.flock(look, fcntl.LOCK_SH)
        assert not lock.acquire(tries=1)
        monkeypatch.setattr(time, "sleep", lambda seconds: look.close())
        assert lock.acquire()


@pytest.mark.parametrize(("top", "option"), [(0.8, "--resume"), (0.7, "--overwrite")])
def test_only_a_run_with_these_settings_is_resumed(tmp_path, top, option):
    plan, store = make_plan({"a": {"top": 0.8}}), RunStore(tmp_path)
    run = plan.arms[0].runs[0]
    directory = write_run(store, run, {"top": top}, learning_rows(0, 0.8), status="running")
    save(directory.path / "checkpoint-5")
    assert Runner(StudyRuns(plan, store), LocalEngine(1))._taking_up(run.id) == option


def test_cleaning_keeps_files_of_the_user_in_a_run(tmp_path):
    study = StudyRuns(*write_study(tmp_path / "runs", ARMS))
    mine, whole, *_ = (study.store.directory(run).path for run in study.plan.runs())
    (mine / "checkpoint-10").mkdir()
    kept = ("checkpoint-2.bak/model.safetensors", "README.md", "rollouts/step_final.jsonl")
    for name in kept:
        (mine / name).parent.mkdir(exist_ok=True)
        (mine / name).write_text("mine")
    (rubbish,) = find_rubbish(study, checkpoints=True)
    assert rubbish.paths == (mine / "checkpoint-10",)
    (whole / ".running").touch()
    (whole / "README.md").write_text("---\ntags:\n- generated_from_trainer\n---\n")
    for rubbish in find_rubbish(study, results=True):
        assert remove(rubbish, study.store)
    left = {str(path.relative_to(mine)) for path in mine.rglob("*") if path.is_file()}
    assert left == {*kept} and not whole.exists()


def test_a_copy_of_a_run_is_refused_and_a_run_with_other_settings_kept(tmp_path):
    plan, store = write_study(tmp_path / "runs", ARMS)
    first, *_ = plan.runs()
    store.directory(first).write_config({"settings": {"top": 0.7}})
    assert find_rubbish(StudyRuns(plan, store)) == []
    store.path.joinpath(f".{first}.old").mkdir()  # left by a kill
    store.path.joinpath(f"._a-{first}").touch()  # left by a copy on macOS
    assert store.directory(first).path.name == first
    store.path.joinpath(f"backup-{first}").mkdir()
    with pytest.raises(ConfigurationError, match=f"two folders of .*: {first} and backup-{first}"):
        RunStore(store.path).directory(first)


def test_cleaning_keeps_results_and_what_others_need(tmp_path):
    plan, store = write_study(tmp_path / "runs", ARMS)
    finished, failed = plan.arms[0].runs[0], plan.arms[1].runs[0]
    store.directory(failed.id).update(status="failed", reason="it died")

    def found(plan=plan, **how) -> list[str]:
        return [rubbish.run_id for rubbish in find_rubbish(StudyRuns(plan, store), **how)]

    assert found() == [failed.id] and found(results=True) == [*plan.runs()]
    others = [run for run in plan.runs() if run != finished.id]
    kept, file = {"arms": [{"runs": [{"id": finished.id}]}]}, store.plans / "another.json"
    store.plans.mkdir()
    write_json(file, kept)
    assert found(results=True) == others
    elsewhere = tmp_path / f"{plan.study}.json"  # of a study of the same name
    elsewhere.touch()
    file.unlink()
    write_json(store.plans / elsewhere.name, {**kept, "path": str(elsewhere)})
    assert found(replace(plan, path=str(tmp_path)), results=True) == others
    (rubbish,) = find_rubbish(StudyRuns(plan, store))
    lock = store.lock(failed.id)
    assert lock.acquire() and not remove(rubbish, store)  # another process uses it
    lock.release()
    store.directory(failed.id).update(status="finished", reason=None)
    assert not remove(rubbish, store)  # it was done again
    store.directory(failed.id).update(status="failed")
    assert remove(rubbish, store) and store.state(failed.id).status == "to do"


@pytest.mark.parametrize("logging_steps", [1, 10])
def test_estimates_come_from_finished_runs(tmp_path, logging_steps):
    plan, store = make_plan(ARMS), RunStore(tmp_path)
    assert estimate(StudyRuns(plan, store)).hours() is None
    rows = (row for row in learning_rows(0, 0.8)
            if row["step"] % logging_steps == 0 or "time/eval" in row)  # fmt: skip
    write_run(store, plan.arms[0].runs[0], ARMS["a"], rows)
    measured = measure(store, plan.arms[0].runs[0].id)
    # 20 steps of 1.4 s and 6 evaluations of 0.4 s in a run of 60 s: 29.6 s are overhead
    assert measured is not None and measured.overhead == pytest.approx(29.6)
    assert measured.seconds(plan.arms[0]) == pytest.approx(60.0)
    foreseen = estimate(StudyRuns(plan, store))
    assert (len(foreseen.runs), len(foreseen.done), foreseen.unmeasured) == (6, 1, ("b",))
    assert foreseen.hours() == pytest.approx(5 * 60 / 3600)
    assert foreseen.hours(2) == pytest.approx(3 * 60 / 3600)  # five runs on two slots
    arms = (replace(arm, optimizer_steps=0, evaluations=1) for arm in plan.arms)
    in_epochs = StudyRuns(replace(plan, arms=tuple(arms)), store)
    assert estimate(in_epochs).hours() == pytest.approx(5 * 60 / 3600)


def test_one_run_is_probed_and_all_are_estimated(tmp_path):
    """A later plan needs no probe."""
    runs = StudyRuns(make_plan(ARMS | {"c": {"top": 0.3}}), store := RunStore(tmp_path))
    started, said = [], []

    def start(job, slot):
        started.append(job)
        name = str(job.directory.relative_to(tmp_path))
        if len(started) > 1:  # the first probe fails
            write_run(store, PlannedRun(name, 0, ()), {}, learning_rows(0, top=0.5, steps=2))
        return SimpleNamespace(
            wait=lambda: int(len(started) == 1), ask_to_end=lambda: None, end=lambda: None
        )

    engine: Any = SimpleNamespace(start=start, slots=1)
    (tmp_path / "probes").mkdir()
    probe(runs, engine, said.append)
    probed = [job.directory.relative_to(tmp_path).as_posix() for job in started]
    assert probed == [probe_name(arm.runs[0]) for arm in runs.plan.arms[:2]]
    assert {f"--grpo_steps={PROBE_STEPS}", "--max_steps=-1"} <= {*started[0].words}
    assert said[1] == "a: probe failed: it printed nothing"
    found = estimate(runs.again())
    # 20 steps of 1.4 s and 6 evaluations of 0.4 s, without what is outside of both
    assert 9 * (28 + 2.4) / 3600 <= (found.hours() or 0) < 9 * 90 / 3600
    assert found.unmeasured == ("a", "c") and len(found.runs) == 9
    arms = tuple(replace(arm, optimizer_steps=0) for arm in runs.plan.arms)  # in epochs
    assert estimate(StudyRuns(replace(runs.plan, arms=arms), store)).hours() is None
    probe(runs.again(), engine, said.append)
    assert len(started) == 2
    started[1].log.touch()
    lock = store.lock(probed[1])
    assert lock.acquire() and find_rubbish(runs) == []  # it goes on
    lock.release()
    (rubbish,) = find_rubbish(runs)
    assert remove(rubbish, store) and not [*(tmp_path / "probes").iterdir()]
