"""Seeds until decided: which runs the next look needs, what the report says between looks."""

import json
import math
import random
import re

import pytest

from tests.support.synthetic_study import METRIC, flat_run, learning_rows, make_plan, write_run
from trl_ablate import ConfigurationError
from trl_ablate.study.definition import load_study
from trl_ablate.study.estimate import estimate
from trl_ablate.study.planned import Plan
from trl_ablate.study.report.analysis import analyse
from trl_ablate.study.report.making import report_study
from trl_ablate.study.runs import StudyRuns
from trl_ablate.study.store import RunStore

LOOKS = (3, 5, 8)
ARMS = {"grpo": {"top": 0.8}, "worse": {"top": 0.4}, "alike": {"top": 0.801}}


@pytest.fixture
def plan() -> Plan:
    return make_plan(ARMS, range(LOOKS[-1]), looks=LOOKS)


def do(plan: Plan, store: RunStore, run_ids) -> None:
    """Do these runs. The arms `grpo` and `alike` differ by noise alone."""
    for number, arm in enumerate(plan.arms):
        for run in arm.runs:
            if run.id in run_ids:
                write_run(store, run, ARMS[arm.name],
                          learning_rows(1000 * number + run.seed, **ARMS[arm.name]))  # fmt: skip


def names(plan: Plan, run_ids) -> dict[str, list[int]]:
    return {
        arm.name: [run.seed for run in arm.runs if run.id in run_ids]
        for arm in plan.arms
        if any(run.id in run_ids for run in arm.runs)
    }


def test_seeds_are_added_only_where_a_comparison_is_undecided(plan, tmp_path):
    store = RunStore(tmp_path)
    first = StudyRuns(plan, store).of_pass(True)
    assert names(plan, first) == {"grpo": [0, 1, 2], "worse": [0, 1, 2], "alike": [0, 1, 2]}
    assert first[:3] == [arm.runs[0].id for arm in plan.arms]  # seed by seed
    do(plan, store, first)
    assert StudyRuns(plan, store).undecided == ["alike"]
    second = StudyRuns(plan, store).of_pass(True)
    assert names(plan, second) == {"grpo": [3, 4], "alike": [3, 4]}
    do(plan, store, second)
    third = StudyRuns(plan, store).of_pass(True)
    assert names(plan, third) == {"grpo": [5, 6, 7], "alike": [5, 6, 7]}
    do(plan, store, third[:-1])
    assert StudyRuns(plan, store).of_pass(True) == third[-1:]  # after an interruption
    do(plan, store, third[-1:])
    assert StudyRuns(plan, store).of_pass(True) == []
    found = StudyRuns(plan, store).analysis.decisive
    assert (found["worse"].verdict, found["worse"].difference.n) == ("worse", 3)
    assert (found["alike"].verdict, found["alike"].difference.n) == ("not decided", 8)


def test_a_run_that_is_missing_holds_the_look(plan, tmp_path):
    """Later pairs do not take its place: the verdict would change when the run is done again."""
    store = RunStore(tmp_path)
    do(plan, store, {run.id for arm in plan.arms for run in arm.runs})
    whole = StudyRuns(plan, store).analysis.decisive["worse"]
    broken = plan.arms[1].runs[1]
    store.directory(broken.id).update(status="failed", reason="out of memory")
    found = StudyRuns(plan, store).analysis.decisive["worse"]
    assert (found.verdict, found.difference.n, found.next_look) == ("undecided", 0, 3)
    assert StudyRuns(plan, store).of_pass(True) == [broken.id]
    report_study(plan, store, tmp_path / "study.yaml", tmp_path / "out")
    assert "worse-seed1 failed; the look at 3 seeds waits for it" in report(tmp_path)
    store.directory(broken.id).update(status="finished")
    assert StudyRuns(plan, store).analysis.decisive["worse"] == whole


def report(folder) -> str:
    return (folder / "out" / "REPORT.md").read_text(encoding="utf-8").replace("\\", "")


def test_a_report_between_looks_says_what_is_final(plan, tmp_path):
    store = RunStore(tmp_path)
    do(plan, store, StudyRuns(plan, store).of_pass(True))
    report_study(plan, store, tmp_path / "study.yaml", tmp_path / "out")
    text = report(tmp_path)
    assert "Final, whatever is run later: worse." in text
    assert "Undecided, more seeds can decide: alike." in text
    assert "alike against grpo is undecided with 3 seeds" in text
    assert "the next look is at 5 seeds" in text
    assert "worse is worse than grpo (−0.4" in text
    assert "this assumes near-normal differences, as 3 pairs show little" in text
    assert "worse-seed3" not in text and "alike-seed3" in text  # the runs that are needed
    arms = json.loads((tmp_path / "out" / "report.json").read_text())["arms"]
    assert arms["worse"]["verdict"] == "worse" and arms["worse"]["pairs"] == 3
    assert arms["alike"]["verdict"] == "undecided"
    do(plan, store, {run.id for arm in plan.arms for run in arm.runs[3:]})
    report_study(plan, store, tmp_path / "study.yaml", tmp_path / "out")
    assert "alike against grpo is not decided with 8 seeds (" in report(tmp_path)
    later = json.loads((tmp_path / "out" / "report.json").read_text())["arms"]["worse"]
    assert later == {**arms["worse"], "collapsed": [0, 8]}


def test_equivalence_within_the_margin_is_a_verdict(tmp_path):
    plan = make_plan(ARMS, range(8), looks=LOOKS, equivalence_margin=0.1)
    store = RunStore(tmp_path)
    do(plan, store, {run.id for arm in plan.arms for run in arm.runs})
    report_study(plan, store, tmp_path / "study.yaml", tmp_path / "out")
    assert "alike is equivalent to grpo within 0.100" in report(tmp_path)
    arm = json.loads((tmp_path / "out" / "report.json").read_text())["arms"]["alike"]
    assert arm["verdict"] == "equivalent" and arm["equivalence_margin"] == 0.1
    assert -0.1 < arm["low"] < arm["high"] < 0.1


def test_the_best_and_the_worst_case(plan, tmp_path):
    store = RunStore(tmp_path)
    do(plan, store, {arm.runs[0].id for arm in plan.arms})
    best, worst = (estimate(StudyRuns(plan, store), seeds) for seeds in (LOOKS[0], None))
    assert (len(best.runs), len(best.done), len(worst.runs)) == (9, 3, 24)
    assert best.hours() == pytest.approx(6 * 60 / 3600)
    assert worst.hours() == pytest.approx(21 * 60 / 3600)


def test_fixed_seeds_have_nothing_to_add(tmp_path):
    with pytest.raises(ConfigurationError, match="its seeds are fixed, so --until decided"):
        StudyRuns(make_plan(ARMS), RunStore(tmp_path)).check_has_looks()


def written(tmp_path, text: str):
    (tmp_path / "a.yaml").write_text("learning_rate: 1.0e-5\n")
    (tmp_path / "b.yaml").write_text("learning_rate: 2.0e-5\n")
    path = tmp_path / "study.yaml"
    path.write_text(f"question: q\nprofile: miniature\n{text}")
    return path


def test_a_study_with_looks(tmp_path):
    study = load_study(written(tmp_path, (
        "arms:\n  a: a.yaml\n  b: {recipe: b.yaml, against: a, expect: worse}\n"
        "seeds: {looks: [2, 4]}\nequivalence_margin: 0.02\nexpect: {a: collapse}\n"
    )))  # fmt: skip
    assert (study.seeds, study.looks) == ((0, 1, 2, 3), (2, 4))
    assert study.equivalence_margin == 0.02
    assert study.expect == {"a": "collapse", "b": "worse"} and study.against == {"b": "a"}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("seeds: {look: [3]}\n", "unknown key 'look'; did you mean 'looks'?"),
        ("seeds: {looks: [5, 3]}\n", "seeds: looks are [5, 3]; allowed: ascending"),
        ("seeds: {}\n", "has no `seeds`"),
        ("seeds: [0]\nequivalence_margin: -1\n", "equivalence_margin is -1.0; allowed: a positive"),
        ("seeds: [0]\nexpect: {c: better}\n", "expect has 'c', which is not an arm"),
        ("seeds: [0]\nexpect: {a: beter}\n", "expect: a is the text 'beter'"),
    ],
)
def test_what_a_study_file_refuses(tmp_path, text, complaint):
    with pytest.raises(ConfigurationError, match=re.escape(complaint)):
        load_study(written(tmp_path, f"arms: [a.yaml, b.yaml]\n{text}"))


@pytest.mark.slow
@pytest.mark.parametrize("arms", [2, 4])
def test_false_alarms_of_an_aa_study_with_looks(arms):
    """Whole studies of equal arms, some of whose runs collapse, through the analysis of a report:
    a false difference of any arm at any look counts."""
    rng, studies, alarms = random.Random(7), 600, 0
    for _ in range(studies):
        runs = []
        for arm in range(arms):
            for seed in range(12):
                end = rng.gauss(0.7, 0.03)
                values = [0.1, 0.8 * end, end, end]
                if rng.random() < 0.2:
                    values = [0.1, 0.8 * end, 0.02, 0.01]
                runs.append(flat_run(f"arm{arm}", seed, values))
        found = analyse(runs, METRIC, looks=(3, 5, 8, 12)).decisive.values()
        alarms += any(each.verdict in ("better", "worse") for each in found)
    assert alarms / studies <= 0.05 + 2.5 * math.sqrt(0.05 * 0.95 / studies)
