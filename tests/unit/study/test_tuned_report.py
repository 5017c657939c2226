"""Reports of studies with tuning: both answers, the trials, and the sensitivity picture."""

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tests.support.synthetic_study import do
from tests.support.tuned_study import tuned_plan
from trl_ablate.study.expected_hours import total_of
from trl_ablate.study.factors import read_design
from trl_ablate.study.kept_runs import keep, kept
from trl_ablate.study.outline import grid
from trl_ablate.study.planned import Plan
from trl_ablate.study.report.making import report_study
from trl_ablate.study.runs import StudyRuns, next_runs
from trl_ablate.study.store import RunStore

TOPS = {"ref": [0.4, 0.7, -0.8], "other": [0.701, 0.3, -0.4]}
"""Nearly equal at their own best; `other` is worse at the second value, which is best for `ref`."""


def do_all(plan: Plan, store: RunStore) -> RunStore:
    while coming := next_runs(plan, StudyRuns(plan, store).finished):
        do(plan, store, [run.id for run in coming])
    return store


def report(plan: Plan, store: RunStore, out: Path) -> tuple[str, str, str]:
    """The answer, that at the reference's value, and the part on tuning."""
    report_study(plan, store, Path("study.yaml"), out)
    text = (out / "REPORT.md").read_text(encoding="utf-8").replace("\\", "")
    answers, _, tuning = text.partition("## Tuning")
    own, _, shared = answers.partition("## Answer at the reference's lr")
    return own, shared, tuning.partition("\n## ")[0]


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> tuple[Plan, RunStore]:
    plan = tuned_plan(TOPS, seeds=range(5))
    return plan, do_all(plan, RunStore(tmp_path_factory.mktemp("tuned")))


def test_both_answers_why_they_differ_and_the_trials_they_rest_on(done, tmp_path):
    own, shared, tuning = report(*done, tmp_path)
    assert "Each arm at its own best lr (ref 2, other 1)" in own
    assert "other is not distinguishable from ref" in own
    assert "each at the lr that is best for its reference (2)" in shared
    assert "other is worse than ref" in shared
    assert "not distinguishable at its own best (1): the verdict depends on the lr." in shared
    assert "| ref | 2 * | 2 | 0 |" in tuning and "| ref | 3 | 2 | 2 | 0.000 |" in tuning
    assert "other: its best lr, 1, is at the edge of the values tried" in tuning
    assert "ref: its best" not in tuning and "(sensitivity.png)" in tuning
    with (tmp_path / "runs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["seed"] for row in rows if row["arm"] == "ref"] == ["0", "1", "2", "3", "4"]
    assert sum(row["seed"].startswith("1000") for row in rows) == 2 * 3 * 2


def test_both_answers_have_the_margin(tmp_path):
    plan = tuned_plan({"ref": [0.4, 0.7], "other": [0.41, 0.701]}, seeds=range(8))
    plan = replace(plan, equivalence_margin=0.1)
    own, shared, _ = report(plan, do_all(plan, RunStore(tmp_path / "runs")), tmp_path)
    for answer in (own, shared):
        assert "other is equivalent to ref within 0.100" in answer
    assert "the verdict depends on" not in shared


def test_a_reference_has_its_own_best_value_where_others_are_compared_with_it(tmp_path):
    """`twin` has the settings of `other`, whose best value is not that of `ref`."""
    tops = {"ref": [0.4, 0.7], "other": [0.9, 0.3], "twin": [0.9, 0.3]}
    plan = tuned_plan(tops, against={"twin": "other"})
    own, shared, _ = report(plan, do_all(plan, RunStore(tmp_path / "runs")), tmp_path)
    assert "other is better than ref" in own and "other is worse than ref" in shared
    for answer in (own, shared):
        assert "twin has the settings of other: same runs." in answer


def test_a_factorial_study_can_be_tuned(tmp_path):
    """Cells × values; both answers are about the effects."""
    design = read_design({"scale": ["group", "none"], "norm": ["mean", "constant"]}, "1", "study")
    tops = {"group--mean": [0.4, 0.7], "group--constant": [0.41, 0.71],
            "none--mean": [0.69, 0.2], "none--constant": [0.701, 0.21]}  # fmt: skip
    plan = replace(tuned_plan(tops), design=design)
    own, shared, _ = report(plan, do_all(plan, RunStore(tmp_path / "runs")), tmp_path)
    assert "scale: on average none is not distinguishable from group" in own
    assert "scale: on average none is worse than group" in shared


def test_of_trials_the_evaluations_are_kept(done, tmp_path):
    (plan, store), file = done, tmp_path / "runs.parquet"
    keep(StudyRuns(plan, store), file)
    trials = {run.id for arm in plan.arms for run in arm.runs[: plan.trials]}
    for run_id, run in kept(file).items():
        evaluated = [plan.primary_metric in row for row in run.rows]
        assert any(evaluated) and (all(evaluated) == (run_id in trials))


def test_doubts_about_a_choice_are_named(tmp_path):
    """After five of twelve trials, and at the end, of which one trial has failed."""
    plan, store = tuned_plan(TOPS), RunStore(tmp_path / "runs")
    # before any trial the estimate is that of the worst case: 3 fresh runs of `ref`, 6 of `other`
    assert len(total_of([StudyRuns(plan, store)])[1].worst.runs) == 12 + 9
    trials = [run.id for run in next_runs(plan, {})]
    do(plan, store, trials[:5])
    own, shared, tuning = report(plan, store, tmp_path)
    assert "Each arm at its own best lr (ref not known yet, other not known yet)" in own
    assert "ref: tuning is not complete, 3 of 6 trials have an outcome" in tuning and not shared
    do(plan, store, trials[5:])
    store.directory(trials[0]).update(status="failed", reason="it died")
    do_all(plan, store)
    own, _, tuning = report(plan, store, tmp_path)
    assert "ref: 1 of 6 trials have no outcome; the choice rests on the others." in tuning
    assert "other is " in own


def test_the_grid_has_no_cell_for_a_run_that_is_not_needed(done):
    """12 trials, and 5 fresh runs each of `ref` at 2, and of `other` at 1 and 2."""
    plan, store = done
    console = Console(file=io.StringIO(), width=200)
    console.print(grid(StudyRuns(plan, store)))
    shown = console.file.getvalue().partition("✓ finished")[0]
    assert shown.count("✓") == 12 + 15 and "·" not in shown
    narrow = Console(file=io.StringIO(), width=60)
    narrow.print(grid(StudyRuns(plan, store)))
    assert "seeds 10000 .. 4" in narrow.file.getvalue()  # those of trials come first
    expected = total_of([StudyRuns(plan, store)])[1].worst
    assert len(expected.runs) == len(expected.done) == 27
