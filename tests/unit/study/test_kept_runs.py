"""Runs kept beside a study make the same report elsewhere, and a damaged file is one sentence."""

import json
import shutil

import pytest

from tests.support.synthetic_study import learning_rows, write_run, write_study
from trl_ablate import ConfigurationError
from trl_ablate.run.json_files import read_object, write_json
from trl_ablate.study.kept_runs import keep, kept, restore
from trl_ablate.study.report.making import report_study
from trl_ablate.study.store import RunStore

ARMS = {"a": {"top": 0.6}, "b": {"top": 0.7}}


@pytest.fixture
def study(tmp_path):
    """(plan, store) of a study with six finished runs."""
    return write_study(tmp_path / "runs", ARMS)


@pytest.fixture
def other(tmp_path):
    return RunStore(tmp_path / "other")


def test_the_report_elsewhere_is_the_same(study, other, tmp_path):
    (plan, store), file = study, tmp_path / "runs.parquet"
    assert keep(plan, store, file) == 6
    assert sorted(restore(file, other, plan.runs())) == sorted(plan.runs())
    assert restore(file, other, plan.runs()) == []
    for made_of, out in ((store, "here"), (other, "there")):
        report_study(plan, made_of, tmp_path / "study.yaml", tmp_path / out)
    for name in ("report.json", "runs.csv"):
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes()


def test_the_same_runs_are_the_same_bytes(study, other, tmp_path):
    (plan, store), first, second = study, tmp_path / "first.parquet", tmp_path / "second.parquet"
    keep(plan, store, first)
    restore(first, other, plan.runs())
    keep(plan, other, second)
    assert first.read_bytes() == second.read_bytes()


def test_only_finished_runs_are_kept(study, tmp_path):
    (plan, store), file = study, tmp_path / "runs.parquet"
    first, second, *others = plan.runs()
    for run_id, status in ((first, "failed"), (second, "running")):
        record = store.directory(run_id).run_file
        write_json(record, {**read_object(record), "status": status})
    assert keep(plan, store, file) == 4
    assert sorted(kept(file)) == sorted(others)


def test_a_run_that_is_gone_stays_kept(study, tmp_path):
    (plan, store), file = study, tmp_path / "runs.parquet"
    keep(plan, store, file)
    shutil.rmtree(store.directory(next(iter(plan.runs()))).path)
    assert keep(plan, store, file) == 6


def test_machine_and_folders_are_not_kept(study, tmp_path):
    (plan, store), file = study, tmp_path / "runs.parquet"
    run_id = next(iter(plan.runs()))
    run = store.directory(run_id)
    settings = read_object(run.config_file)
    run.write_config({**settings, "config": {"output_dir": str(run.path.resolve())}})
    record = {"host": "secret-name", "command": ["train", "--x"]}
    write_json(run.run_file, {**read_object(run.run_file), **record})
    keep(plan, store, file)
    run = kept(file)[run_id]
    whole = run.settings + run.record
    assert str(tmp_path) not in whole and "secret-name" not in whole and '"command"' not in whole
    assert json.loads(run.settings)["config"]["output_dir"] == f"runs/{run_id}"


def test_what_is_done_or_in_use_is_left_alone(study, other, tmp_path):
    (plan, store), file = study, tmp_path / "runs.parquet"
    keep(plan, store, file)
    in_use, done, *others = plan.runs()
    lock = other.lock(in_use)
    assert lock.acquire()
    (run,) = [run for run in plan.runs().values() if run.id == done]
    write_run(other, run, ARMS["a"], learning_rows(7, top=0.1))
    before = other.directory(done).metrics_file.read_bytes()
    assert sorted(restore(file, other, plan.runs())) == sorted(others)
    assert other.directory(done).metrics_file.read_bytes() == before
    assert not other.directory(in_use).path.exists()


def test_what_is_not_asked_for_is_not_written(study, other, tmp_path):
    (plan, store), file = study, tmp_path / "runs.parquet"
    keep(plan, store, file)
    first = next(iter(plan.runs().values()))
    assert restore(file, other, {first.id: first, "unknown-seed0": first}) == [first.id]
    assert [path.name for path in other.path.iterdir() if path.is_dir()] == [f"a-{first.id}"]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_a_damaged_file_is_one_sentence(study, tmp_path, share):
    (plan, store), file = study, tmp_path / "runs.parquet"
    keep(plan, store, file)
    whole = file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(ConfigurationError, match=r"runs\.parquet is damaged .* take it from git"):
        kept(file)


def test_no_file_is_no_runs(tmp_path):
    assert kept(tmp_path / "runs.parquet") == {}
