"""Seeds until decided, of one study or of a list: which runs a pass does, what all cost, and what
the report says between looks."""

import io
import json
import re
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.support.synthetic_study import do, make_plan
from tests.support.tuned_study import tuned_plan
from trl_ablate.cli import study_runs
from trl_ablate.study import expected_hours
from trl_ablate.study.expected_hours import Share, total_of
from trl_ablate.study.outline import show_plan
from trl_ablate.study.planned import Plan
from trl_ablate.study.questions_list import LIST
from trl_ablate.study.report.making import report_study
from trl_ablate.study.runner import Outcome
from trl_ablate.study.runs import StudyRuns
from trl_ablate.study.store import RunStore

ARMS = {"grpo": {"top": 0.8}, "worse": {"top": 0.4}, "alike": {"top": 0.801}}
"""`grpo` and `alike` differ by noise alone."""
LOOKING = replace(make_plan(ARMS, range(8), looks=(3, 5, 8)), study="looking")
FIXED = replace(
    make_plan({"grpo": ARMS["grpo"], "worse": ARMS["worse"], "own": {"top": 0.6}}), study="fixed"
)


@pytest.fixture
def store(tmp_path) -> RunStore:
    return RunStore(tmp_path)


def next_pass(plan: Plan, store: RunStore, failed=()) -> list[str]:
    return StudyRuns(plan, store).of_pass(True, failed)


def seeds_of(plan: Plan, run_ids) -> dict[str, list[int]]:
    found = {arm.name: [run.seed for run in arm.runs if run.id in run_ids] for arm in plan.arms}
    return {arm: seeds for arm, seeds in found.items() if seeds}


def test_seeds_are_added_only_where_a_comparison_is_undecided(store):
    plan = LOOKING
    first = next_pass(plan, store)
    assert seeds_of(plan, first) == dict.fromkeys(ARMS, [0, 1, 2])
    assert first[:3] == [arm.runs[0].id for arm in plan.arms]  # seed by seed
    do(plan, store, first)
    assert StudyRuns(plan, store).undecided == ["alike"]
    second = next_pass(plan, store)
    assert seeds_of(plan, second) == {"grpo": [3, 4], "alike": [3, 4]}
    do(plan, store, second)
    third = next_pass(plan, store)
    assert seeds_of(plan, third) == {"grpo": [5, 6, 7], "alike": [5, 6, 7]}
    do(plan, store, third[:-1])
    assert next_pass(plan, store) == third[-1:]  # after an interruption
    do(plan, store, third[-1:])
    assert next_pass(plan, store) == []
    found = StudyRuns(plan, store).analysis.decisive
    assert (found["worse"].verdict, found["worse"].difference.n) == ("worse", 3)
    assert (found["alike"].verdict, found["alike"].difference.n) == ("not decided", 8)


def report(plan: Plan, store: RunStore) -> tuple[str, dict]:
    out = store.path / "out"
    report_study(plan, store, store.path / "study.yaml", out)
    numbers = json.loads((out / "report.json").read_text())["arms"]
    return (out / "REPORT.md").read_text(encoding="utf-8").replace("\\", ""), numbers


@pytest.mark.slow
def test_a_report_between_looks_says_what_is_final_and_a_missing_run_holds_a_look(store):
    """Later pairs do not take its place: the verdict would change when the run is done again."""
    plan = replace(LOOKING, equivalence_margin=0.1)
    do(plan, store, next_pass(plan, store))
    text, arms = report(plan, store)
    assert "Final, whatever is run later: worse." in text
    assert "worst case, comparisons undecided until 8 seeds: 19 runs: 9 done" in outline(
        plan, store
    )
    assert "Undecided, more seeds can decide: alike." in text
    assert "alike against grpo is undecided with 3 seeds" in text
    assert "the next look is at 5 seeds" in text
    runs = text.partition("## Runs")[2]
    (worse,), (alike,) = re.findall(r"\| worse .*", runs), re.findall(r"\| alike .*", runs)
    assert "to do" not in worse and "3 to 4: to do" in alike  # the runs that are needed
    do(plan, store, plan.runs())
    text, later = report(plan, store)
    assert "alike is equivalent to grpo within 0.100" in text
    assert "all comparisons have ended: no run is needed" in outline(plan, store)
    assert later["worse"] == {**arms["worse"], "collapsed": [0, 8]}
    broken = plan.arms[1].runs[1]
    store.directory(broken.id).update(status="failed", reason="out of memory")
    found = StudyRuns(plan, store).analysis.decisive["worse"]
    assert (found.verdict, found.difference.n, found.next_look) == ("undecided", 0, 3)
    assert next_pass(plan, store) == [broken.id]
    assert "worse-seed1 failed; the look at 3 seeds waits for it" in report(plan, store)[0]


def test_the_passes_of_a_tuned_study_are_its_trials_and_then_its_fresh_seeds(store):
    """A trial that failed is tried again by the next command: before it has failed in this one,
    nothing may be chosen without it."""
    plan = tuned_plan({"grpo": [0.4, 0.8], "b": [0.5, 0.9]})
    first, *others = trials = next_pass(plan, store)
    assert len(trials) == 2 * 2 * 2
    do(plan, store, others)
    do(plan, store, [first], status="failed")
    again = next_pass(plan, store)
    assert first in again and len(again) == 1 + 3  # and the fresh seeds of the other arm
    fresh = next_pass(plan, store, failed=[first])
    assert first not in fresh and len(fresh) == 6
    store.directory(first).update(status="finished")
    do(plan, store, next_pass(plan, store))
    assert next_pass(plan, store) == []


def outline(plan: Plan, store: RunStore) -> str:
    printed = io.StringIO()
    show_plan(Console(file=printed, width=10_000), StudyRuns(plan, store), 1)
    return printed.getvalue()


def counts(share: Share) -> list[int]:
    """Of a share: its runs at best and at worst, the new ones among them, and those done."""
    return [*share.runs, len(share.best.runs), len(share.worst.runs), len(share.worst.done)]


def test_a_run_that_is_done_costs_nothing_in_either_case(store, monkeypatch):
    """All that is done is with the first study, in both cases."""
    several = make_plan(ARMS, range(8))
    do(several, store, several.runs())
    monkeypatch.setattr(expected_hours, "measure", lambda store, run_id: None)  # as if restored
    (_, second), whole = total_of([StudyRuns(plan, store) for plan in (LOOKING, several)])
    assert counts(second) == [24, 24, 0, 0, 0] and second.best.hours() == second.worst.hours() == 0
    assert whole.best.hours() == whole.worst.hours(1) == 0 and len(whole.worst.done) == 24


def test_runs_that_studies_share_are_counted_once(store):
    shares, whole = total_of([StudyRuns(plan, store) for plan in (LOOKING, FIXED)])
    assert whole.best.hours() is whole.worst.hours(2) is shares[1].best.hours() is None
    assert [counts(share) for share in shares] == [[9, 24, 9, 24, 0], [9, 9, 3, 3, 0]]
    assert counts(whole) == [12, 27, 12, 27, 0]
    do(LOOKING, store, next_pass(LOOKING, store))
    shares, whole = total_of([StudyRuns(plan, store) for plan in (LOOKING, FIXED)])
    assert [len(share.worst.done) for share in (whole, *shares)] == [9, 9, 0]
    least, most, half = whole.best.hours(), whole.worst.hours(), whole.worst.hours(2)
    assert counts(shares[0]) == [9 + 2 * 2, 9 + 2 * 5, 9 + 2 * 2, 9 + 2 * 5, 9]  # `alike` is open
    assert least == pytest.approx((4 + 3) * 60 / 3600, rel=0.2)  # and the runs of the arm `own`
    assert most == pytest.approx((10 + 3) * 60 / 3600, rel=0.2)
    assert "best case, all comparisons decided with 5 seeds: 13 runs" in outline(LOOKING, store)
    assert most and half == pytest.approx(most / 2, rel=0.1)


@pytest.fixture
def all_of(store, monkeypatch):
    """`study run --all` over the two studies: its exit code, and (study, number of runs) of each
    pass."""

    def all_of(until="decided", fails=(), stops_after=99, of=LIST) -> tuple[int, list]:
        calls = []

        def executed(runs, engine, *, only, **how) -> Outcome:
            assert engine == f"engine of {runs.plan.study}"
            calls.append((runs.plan.study, len(only)))
            if len(calls) > stops_after:
                return Outcome(left=list(only))
            failed = [run for run in only if run in fails]
            do(runs.plan, runs.store, [run for run in only if run not in failed])
            return Outcome(failed=failed)

        monkeypatch.setattr(study_runs, "executed", executed)
        options = Namespace(until=until, max_hours=None, retries=1, runs=store.path, all=of)
        engine_of: Any = lambda plan: f"engine of {plan.study}"  # noqa: E731
        studies = [StudyRuns(plan, store) for plan in (LOOKING, FIXED)]
        return study_runs.run_all(studies, engine_of, options), calls

    return all_of


def test_every_question_has_its_first_look_before_any_has_its_second(all_of, capsys):
    assert all_of(stops_after=1) == (3, [("looking", 9), ("fixed", 3)])
    assert "rerun this command to continue" in " ".join(capsys.readouterr().out.split())
    assert all_of() == (0, [("fixed", 3), ("looking", 4), ("looking", 6)])
    printed = " ".join(capsys.readouterr().out.split())
    assert "looking: 4 runs undecided: alike looking: 6 runs no comparison is" in printed
    assert "done; next: trl-ablate findings --runs" in printed
    assert all_of(of=Path("my list.yaml")) == (0, [])
    printed = " ".join(capsys.readouterr().out.split())
    assert "done; next: trl-ablate findings 'my list.yaml' --runs" in printed


def test_a_run_that_fails_ends_nothing_and_without_until_all_runs_are_made(all_of):
    failing = FIXED.arms[2].runs[1].id
    done = [("looking", 9), ("fixed", 3), ("looking", 4), ("looking", 6)]
    assert all_of(fails=[failing]) == (1, done)
    assert all_of(until=None) == (0, [("looking", 5), ("fixed", 1)])
