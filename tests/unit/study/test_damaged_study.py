"""Files of a study that are empty, cut off or of another shape."""

import json
import shutil
from unittest.mock import Mock

import pytest
from rich.console import Console

from tests.support.studies import run_here
from tests.support.synthetic_study import write_study
from trl_ablate.errors import ConfigurationError
from trl_ablate.run.directory import RunDirectory
from trl_ablate.study.cleaning import find_rubbish
from trl_ablate.study.definition import load_study
from trl_ablate.study.kept_runs import keep, restore
from trl_ablate.study.outline import grid, show_plan
from trl_ablate.study.planned import save_plan, saved_plan
from trl_ablate.study.report.making import report_study
from trl_ablate.study.report.sections import samples
from trl_ablate.study.runs import StudyRuns

NO_OBJECTS = ["", "{", "[]", "5", "null", '"text"', "\x00", "[" * 5000]
OBJECTS = ["{}", '{"settings": 5}', '{"made_from": 5}', '{"status": []}',
           '{"status": {"a": 1}, "seconds": "x"}']  # fmt: skip
ENTRIES = [
    {"versions": ["a"]}, {"versions": 5}, {"git": "x"}, {"git": {}}, {"git": {"commit": 5}},
    {"start_weights": ["x"]}, {"seconds": "x"}, {"reason": ["x"]}, {"profile": {"a": 1}},
    {"python": {}}, {"cpus": []},
]  # fmt: skip
ROLLOUTS = ["[]", "5", "{", '{"reward": "x"}', '{"reward": [1]}', "{}",
            '{"prompt": 5, "response": null}', '{"reward": NaN}']  # fmt: skip


@pytest.fixture
def study(tmp_path) -> StudyRuns:
    """Two arms of six finished runs each."""
    arms = {"a": {"top": 0.6}, "b": {"top": 0.7}}
    return StudyRuns(*write_study(tmp_path / "runs", arms, range(6)))


@pytest.fixture
def report(study, tmp_path):
    return lambda: report_study(study.plan, study.store, tmp_path / "study.yaml", tmp_path / "out")


def test_a_plan_that_cannot_be_read_is_made_anew(study, tmp_path):
    file = tmp_path / "made_up" / "study.yaml"
    file.parent.mkdir()
    file.write_text("question: Does it work?\narms: [grpo.yaml]\nseeds: [0, 1, 2]\n")
    file.with_name("grpo.yaml").write_text("beta: 0.0\n")
    file.with_name(".#grpo.yaml").symlink_to("somebody@host.12:34")  # Emacs is at work
    loaded, plans = load_study(file), study.store.plans
    save_plan(study.plan, loaded, plans)
    assert saved_plan(loaded, plans) == study.plan
    (kept,) = plans.iterdir()
    whole = kept.read_text()
    made_from = json.loads(whole)["made_from"]
    wrong = [json.dumps({"made_from": made_from, "arms": arms}) for arms in (5, [], [5], [{}])]
    cut = [whole[: len(whole) * part // 7] for part in range(1, 7)]
    for content in (*NO_OBJECTS, *OBJECTS, *cut, *wrong):
        kept.write_text(content)
        assert saved_plan(loaded, plans) is None, content[:40]


def test_nothing_is_removed_while_another_plan_cannot_be_read(study):
    study.store.plans.mkdir()
    for content in (*NO_OBJECTS, *OBJECTS):
        (study.store.plans / "other.json").write_text(content)
        with pytest.raises(ConfigurationError, match="other.json cannot be read.*plan` of its st"):
            find_rubbish(study, results=True)


def test_a_record_of_another_shape_is_one_sentence_or_a_run_to_do(study, report):
    names, runs = ("run.json", "resolved_config.json"), iter(study.plan.runs())
    for content in OBJECTS:
        for name in names:
            run = next(runs)
            (study.store.directory(run).path / name).write_text(content)
            assert study.store.state(run).status in ("to do", "interrupted"), (name, content)
    report()
    for name in names:
        file = study.store.directory(run).path / name
        whole = file.read_text()
        for content in NO_OBJECTS:
            file.write_text(content)
            state = study.store.state(run)
            reason = state.reason or ""
            assert state.damaged and name in reason and "\n" not in reason, content[:40]
            assert reason.endswith(f"or remove the folder {file.parent} to do the run anew")
        report()
        file.write_text(whole)


@pytest.mark.parametrize("name", ["run.json", "resolved_config.json"])
def test_a_run_that_cannot_be_read_is_left_alone_and_the_others_go_on(study, tmp_path, name):
    """It may have finished. With its folder removed, it is done anew."""
    damaged, to_do, *_ = (study.store.directory(run_id) for run_id in study.plan.runs())
    keep(study, tmp_path / "runs.parquet")
    (damaged.path / name).write_text('{"status": "fin')
    shutil.rmtree(to_do.path)
    outcome = run_here(study.store, study.plan)
    assert outcome.failed == [damaged.path.name] and len(outcome.done) == 11
    assert (damaged.path / name).read_text() == '{"status": "fin'
    assert find_rubbish(study.again()) == []
    assert restore(study.again(), tmp_path / "runs.parquet") == []
    assert len(find_rubbish(study.again(), results=True)) == 12
    shutil.rmtree(damaged.path)
    assert len(run_here(study.store, study.plan).done) == 12


def test_broken_rows_cost_the_grid_and_the_plan_no_other_run(study, capsys):
    first, *others = (study.store.directory(run).metrics_file for run in study.plan.runs())
    first.write_text("{broken\n" + first.read_text())
    show_plan(Console(width=120), study, 1)
    shown = capsys.readouterr().out
    assert shown.count("damaged") == 1 and shown.count("✓ 0.") == 11
    for file in others:
        file.write_text(file.read_text() + "{broken\n")
    assert study.unlogged == ""


def test_a_run_that_is_replaced_while_it_is_looked_at_is_to_do(study, monkeypatch):
    """Its new attempt deletes a file between the question whether it exists and its reading."""
    assert len(study.done) == 12
    for name in ("read", "metrics"):
        monkeypatch.setattr(RunDirectory, name, Mock(side_effect=FileNotFoundError))
    grid(study)
    assert {state.status for state in study.again().states.values()} == {"to do"}


def test_entries_and_rollouts_of_another_shape_cost_no_report(study, report):
    first, *_ = runs = [study.store.directory(run) for run in study.plan.runs()]
    for run, entries in zip(runs, ENTRIES, strict=False):
        run.update(**entries)
    report()
    analysis = study.analysis
    (first.path / "rollouts").mkdir()
    for wrong in ROLLOUTS:
        rows = f'{{"prompt": "p", "reward": 1.0}}\n{wrong}\n'
        (first.path / "rollouts" / "step_000020.jsonl").write_text(rows)
        samples(analysis)
