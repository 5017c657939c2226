"""Runs kept beside a study are the same elsewhere, and a damaged file is one sentence."""

import json
import shutil
from dataclasses import replace

import pytest
from pyarrow import parquet

from tests.support.synthetic_study import learning_rows, write_run, write_study
from trl_ablate import ConfigurationError
from trl_ablate.cli.study import main
from trl_ablate.run.json_files import append_jsonl, read_object, write_json
from trl_ablate.study.kept_runs import keep, kept, restore
from trl_ablate.study.runs import StudyRuns
from trl_ablate.study.store import RunStore

ARMS = {"a": {"top": 0.6}, "b": {"top": 0.7}}


@pytest.fixture
def study(tmp_path) -> StudyRuns:
    """A study with six finished runs."""
    return StudyRuns(*write_study(tmp_path / "runs", ARMS))


@pytest.fixture
def file(tmp_path):
    return tmp_path / "runs.parquet"


def test_what_is_restored_elsewhere_is_kept_as_the_same_bytes(study, file, tmp_path):
    elsewhere = StudyRuns(study.plan, RunStore(tmp_path / "other"))
    assert keep(study, file) == 6
    assert sorted(restore(elsewhere, file)) == sorted(study.plan.runs())
    assert restore(elsewhere, file) == []
    keep(elsewhere, tmp_path / "again.parquet")
    assert (tmp_path / "again.parquet").read_bytes() == file.read_bytes()


def test_a_run_with_other_values_is_named_and_left_as_it_is(study, file):
    keep(study, file)
    first = study.store.directory(min(study.plan.runs())).metrics_file
    text, said = first.read_text().replace('"eval_reward": 0', '"eval_reward": 1'), []
    first.write_text(text)
    assert restore(study.again(), file, said.append) == [] and first.read_text() == text
    assert len(said) == 1 and "has other values than the run that" in said[0]


def test_large_values_are_the_same_but_for_rounding(study, file):
    for run_id in study.plan.runs():
        row = {"step": 60, "seconds": 9.0, "eval_reward": 123.4567891}
        append_jsonl(study.store.directory(run_id).metrics_file, row)
    keep(study, file)
    said = []
    assert restore(study.again(), file, said.append) == said == []


def test_two_studies_with_other_metrics_keep_what_they_have_of_the_same_runs(study, file, tmp_path):
    """Restored into one store, in either order, and kept again."""
    other = StudyRuns(replace(study.plan, primary_metric="eval_other"), study.store)
    for run_id in study.plan.runs():
        metrics = study.store.directory(run_id).metrics_file
        append_jsonl(metrics, {"step": 60, "seconds": 9.0, "eval_other": 0.25})
    keep(study, file), keep(other.again(), tmp_path / "other.parquet")
    store = RunStore(tmp_path / "both")
    both = StudyRuns(study.plan, store), StudyRuns(other.plan, store)
    assert len(restore(both[0], file)) == len(restore(both[1], tmp_path / "other.parquet")) == 6
    assert restore(both[0].again(), file) == []
    for one, name in zip(both, ("eval_reward", "eval_other"), strict=True):
        keep(one.again(), tmp_path / "again.parquet")
        runs = kept(tmp_path / "again.parquet").values()
        assert len(runs) == 6 and all(any(name in row for row in run.rows) for run in runs)


def test_only_finished_runs_are_kept_and_stay_kept(study, file):
    assert kept(file) == {}
    first, second, third, *others = study.plan.runs()
    for run_id, status in ((first, "failed"), (second, "running")):
        study.store.directory(run_id).update(status=status)
    assert keep(study.again(), file) == 4
    assert sorted(kept(file)) == sorted([third, *others])
    shutil.rmtree(study.store.directory(third).path)
    assert keep(study.again(), file) == 4


@pytest.mark.parametrize(
    ("judge", "looks", "with_norms"),
    [("paired", (), 3), ("two_part", (), 3), ("two_part", (2, 3), 2)],
)
def test_the_place_of_a_run_says_which_metrics_are_kept(study, file, judge, looks, with_norms):
    """The first run of an arm has its mechanism; of two parts, those up to the first look have
    gradient norms. Of two equal columns one is written, and both come back as logged."""
    row = {"step": 99, "style/full": 0.5, "grad_norm": 0.5, "reward": 0.82, "answer_reward": 0.82}
    for run_id in study.plan.runs():
        for each in ({"step": 98, "grad_norm": None}, row):  # it was not finite
            append_jsonl(study.store.directory(run_id).metrics_file, each)
    keep(StudyRuns(replace(study.plan, judge=judge, looks=looks), study.store), file)
    rows = {run_id: run.rows[-1] for run_id, run in kept(file).items()}
    for arm in study.plan.arms:
        for place, run in enumerate(arm.runs):
            dropped = {"style/full": bool(place), "grad_norm": place >= with_norms}
            assert rows[run.id] == {key: of for key, of in row.items() if not dropped.get(key)}
    assert len({"reward", "answer_reward"} & set(parquet.read_schema(file).names)) == 1


@pytest.mark.parametrize("made", ["here", "elsewhere"])
def test_machine_and_folders_are_not_kept(study, file, tmp_path, made):
    run_id = next(iter(study.plan.runs()))
    run = study.store.directory(run_id)
    settings = read_object(run.config_file)
    folder = run.path.resolve() if made == "here" else tmp_path / "other" / run_id
    run.write_config({**settings, "config": {"output_dir": str(folder)}})
    record = {"host": "secret-name", "command": ["train", "--x"]}
    write_json(run.run_file, {**read_object(run.run_file), **record})
    keep(study.again(), file)
    run = kept(file)[run_id]
    whole = run.settings + run.record
    assert str(tmp_path) not in whole and "secret-name" not in whole and '"command"' not in whole
    assert json.loads(run.settings)["config"]["output_dir"] == f"runs/{run_id}"


def test_what_is_done_in_use_or_not_asked_for_is_left_alone(study, file, tmp_path):
    keep(study, file)
    wanted, other = replace(study.plan, arms=study.plan.arms[:1]), RunStore(tmp_path / "other")
    in_use, done, asked = wanted.runs()
    assert other.lock(in_use).acquire()
    write_run(other, wanted.runs()[done], ARMS["a"], learning_rows(7, top=0.1))
    before = other.directory(done).metrics_file.read_bytes()
    other.away(asked).touch()  # as where a service does it
    assert restore(StudyRuns(wanted, other), file) == []
    other.away(asked).unlink()
    assert restore(StudyRuns(wanted, other), file) == [asked]
    assert other.directory(done).metrics_file.read_bytes() == before
    folders = [path.name for path in other.path.iterdir() if path.is_dir()]
    assert sorted(folders) == sorted([done, f"a-{asked}"])


@pytest.mark.parametrize("name", ["checkpoint-5", "thesis"])
def test_a_folder_with_files_of_the_user_is_named_and_left_alone(study, file, tmp_path, name):
    keep(study, file)
    other, said = RunStore(tmp_path / "other"), []
    mine = other.directory(next(iter(study.plan.runs()))).path / name
    mine.mkdir(parents=True)
    (mine / "x").touch()
    assert len(restore(StudyRuns(study.plan, other), file, said.append)) == 5
    assert str(mine.parent) in said.pop() and (mine / "x").is_file()


def test_a_list_of_which_no_run_is_kept_is_named(tmp_path, capsys):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "study.yaml").touch()
    (tmp_path / "list.yaml").write_text("rows: [{question: q, part: question, study: one}]\n")
    assert main(["restore", "--all", str(tmp_path / "list.yaml")]) == 2
    assert f"no run is kept of any study of {tmp_path}/list.yaml;" in capsys.readouterr().err


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_damaged_file_is_one_sentence(study, file, share):
    keep(study, file)
    whole = file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(ConfigurationError, match=r"runs\.parquet is damaged .* take it from git"):
        kept(file)
