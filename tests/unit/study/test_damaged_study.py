"""Files of a study that are empty, cut off or of another shape; a person's files beside ours."""

import json

import pytest

from tests.support.synthetic_study import write_study
from trl_ablate.errors import ConfigurationError
from trl_ablate.study.cleaning import find_rubbish
from trl_ablate.study.definition import load_study
from trl_ablate.study.planned import save_plan, saved_plan
from trl_ablate.study.report.making import report_study
from trl_ablate.study.runs import StudyRuns

ARMS = {"a": {"top": 0.6}, "b": {"top": 0.7}}
CONTENTS = ["", "{", "[]", "5", "null", '"text"', "{}", '{"settings": 5}', '{"made_from": 5}',
            "\x00", "[" * 5000, '{"status": []}',
            '{"status": {"a": 1}, "seconds": "x"}']  # fmt: skip
ENTRIES = [
    {"versions": ["a"]}, {"versions": 5}, {"git": "x"}, {"git": {}}, {"git": {"commit": 5}},
    {"seconds": "x"}, {"reason": ["x"]}, {"profile": {"a": 1}}, {"python": {}}, {"cpus": []},
]  # fmt: skip
ROLLOUTS = ["[]", "5", "{", '{"reward": "x"}', '{"reward": [1]}', "{}",
            '{"prompt": 5, "response": null}', '{"reward": NaN}']  # fmt: skip


@pytest.fixture
def study(tmp_path):
    """(study, plan, store) with the plan kept."""
    plan, store = write_study(tmp_path / "runs", ARMS)
    file = tmp_path / "made_up" / "study.yaml"
    file.parent.mkdir()
    (file.parent / "here.yaml").write_text("learning_rate: 1.0\n")
    file.write_text("question: Does it work?\narms: [here.yaml]\nseeds: [0, 1, 2]\n")
    loaded = load_study(file)
    save_plan(plan, loaded, store.plans)
    return loaded, plan, store


def cut(text):
    return [text[: len(text) * part // 7] for part in range(1, 7)]


def test_a_plan_that_cannot_be_read_is_made_anew(study):
    loaded, plan, store = study
    file = store.plans / f"{plan.study}.json"
    whole = file.read_text()
    assert saved_plan(loaded, store.plans) == plan
    made_from = json.loads(whole)["made_from"]
    wrong = [json.dumps({"made_from": made_from, "arms": arms}) for arms in (5, [], [5], [{}])]
    for content in (*CONTENTS, *cut(whole), *wrong):
        file.write_text(content)
        assert saved_plan(loaded, store.plans) is None, content[:40]


@pytest.mark.parametrize("content", CONTENTS[:8])
def test_nothing_is_removed_while_another_plan_cannot_be_read(study, content):
    _, plan, store = study
    (store.plans / "other.json").write_text(content)
    with pytest.raises(ConfigurationError, match="other.json cannot be read"):
        find_rubbish(StudyRuns(plan, store), results=True)


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", ["run.json", "resolved_config.json"])
@pytest.mark.parametrize("content", CONTENTS)
def test_a_record_of_another_shape_is_one_sentence_or_a_run_to_do(study, tmp_path, name, content):
    _, plan, store = study
    run = plan.arms[0].runs[0]
    (store.directory(run.id).path / name).write_text(content)
    try:
        report_study(plan, store, tmp_path / "study.yaml", tmp_path / "out")
    except ConfigurationError as error:
        assert name in str(error) and "\n" not in str(error)
    else:
        assert store.state(run.id).status in ("to do", "interrupted")


@pytest.mark.sample(3)
@pytest.mark.parametrize("wrong", [*ENTRIES, *ROLLOUTS], ids=str)
def test_entries_and_rollouts_of_another_shape_cost_no_report(study, tmp_path, wrong):
    _, plan, store = study
    run = store.directory(plan.arms[0].runs[0].id)
    if isinstance(wrong, dict):
        run.update(**wrong)
    else:
        (run.path / "rollouts").mkdir()
        rows = f'{{"prompt": "p", "reward": 1.0}}\n{wrong}\n'
        (run.path / "rollouts" / "step_000020.jsonl").write_text(rows)
    report_study(plan, store, tmp_path / "study.yaml", tmp_path / "out")
