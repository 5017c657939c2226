"""A study in two parts: its file, its runs look by look after tuning, and its report."""

from dataclasses import replace

import pytest

from tests.support.synthetic_study import METRIC, flat_run, learning_rows, make_plan, write_run
from tests.support.tuned_study import tuned_plan
from trl_ablate import ConfigurationError
from trl_ablate.run.json_files import read_object
from trl_ablate.study.definition import load_study
from trl_ablate.study.outline import power_lines
from trl_ablate.study.planned import Plan
from trl_ablate.study.report.analysis import analyse
from trl_ablate.study.report.making import report_study
from trl_ablate.study.report.sections import two_part_arms_table
from trl_ablate.study.report.verdicts import agreement
from trl_ablate.study.resolution import resolve_plan
from trl_ablate.study.runs import StudyRuns, look_of
from trl_ablate.study.store import RunStore
from trl_ablate.study.verdict import Verdict

STUDY = """
question: q
arms: {grpo: grpo.yaml, std_dev_off: {recipe: std_dev_off.yaml, expect: -0.03}}
judge: two_part
decide_on: last_third
seeds: {looks: [8, 16], first: 200}
reference_seeds: 24
profile: miniature
equivalence_margin: 0.03
tune: {learning_rate: [1e-5, 3e-5], seeds: 2}
"""
# The arm that is decided last comes first: the pool has to last for it
TOPS = {"grpo": 0.8, "fails": 0.799, "worse": 0.6, "alike": 0.801}


def test_the_file(write):
    study = load_study(write(STUDY))
    assert [arm.seeds[:3] for arm in study.arms] == [(10_000, 10_001, 200)] * 4
    assert [len(arm.seeds) for arm in study.arms] == [2 + 24] * 2 + [2 + 16] * 2
    plan = resolve_plan(study, to_run=True)
    assert (plan.pool, plan.names) == (24, ["grpo", "std_dev_off"])
    lines = [line.plain for line in power_lines(plan, 0.03)]
    assert any("std_dev_off against grpo (24 runs)" in line for line in lines)


@pytest.mark.parametrize(
    ("seeds", "looks", "lowers"), [(5, (), False), (6, (), True), (12, (3, 5, 8, 12), True)]
)
def test_the_plan_says_where_an_exact_test_lowers_the_power(seeds, looks, lowers):
    plan = make_plan({"ref": {"top": 0.5}, "other": {"top": 0.6}}, range(seeds), looks=looks)
    first, *_ = power_lines(plan, 0.03)
    assert ("an exact test has to agree, which lowers it" in first.plain) == lowers


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("reference_seeds: 24", "reference_seeds: 9", "give 16 or more"),
        ("looks: [8, 16]", "looks: [2, 4]", "cannot decide any of its 1 comparisons"),
        ("profile: mini", "overrides: {eval_on_start: false}\nprofile: mini", "eval_on_start"),
    ],
)
def test_what_is_refused(write, old, new, complaint):
    with pytest.raises(ConfigurationError, match=complaint):
        resolve_plan(load_study(write(STUDY.replace(old, new))), to_run=True)


def do(plan: Plan, store: RunStore, run_ids) -> None:
    for number, arm in enumerate(plan.arms):
        for run in arm.runs:
            if run.id in run_ids:
                fails = arm.name.startswith("fails") and run.seed % 2
                top = 0.1 if fails else arm.values["top"]
                rows = learning_rows(10_000 * number + run.seed, top, questions=2000)
                write_run(store, run, arm.declared, rows)


def reported(plan: Plan, store: RunStore, out):
    report_study(plan, store, out / "study.yaml", out)
    return read_object(out / "report.json")["arms"]


@pytest.mark.slow
def test_a_study_is_tuned_and_then_decided_look_by_look(tmp_path):
    """Four arms with two candidates each, of which the second is better; looks at 8 and 16."""
    tops = {arm: [top - 0.3, top] for arm, top in TOPS.items()}
    plan, more = (tuned_plan(tops, seeds=range(number)) for number in (16, 32))
    arms, store = (*more.arms[:2], *plan.arms[2:]), RunStore(tmp_path / "runs")
    plan = replace(plan, arms=arms, judge="two_part", looks=(8, 16), equivalence_margin=0.05)
    trials, passes, looks = StudyRuns(plan, store).of_pass(True), [], []
    late = [arm.runs[n].id for arm in plan.arms if "alike" in arm.name for n in range(2)]
    without = StudyRuns(plan, RunStore(tmp_path / "failed"))
    do(plan, without.store, set(trials) - set(late))
    for run_id in late:  # an arm whose trials all fail holds up no other
        run = without.store.directory(run_id)
        run.path.mkdir()
        run.update(status="failed")
    assert len(without.of_pass(True, late)) == 8 + 8 + 16
    do(plan, store, trials[:-1])
    while wanted := StudyRuns(plan, store).of_pass(True):
        do(plan, store, wanted)
        passes.append(len(wanted))
        looks.append(look_of(plan, wanted))
    assert looks == [0, 0, 1] and len(plan.up_to(8)) == 16 + 2 * 16 + 6 * 8
    # 2 trials of 8 candidates, of which one is late; 8 runs of three arms and 16 of the pool; then
    # 8 and 16 more
    assert len(trials) == 16 and passes == [1, 40, 24]
    found = reported(plan, store, tmp_path)
    assert {name: arm["verdict"] for name, arm in found.items()} == {
        "worse": "worse", "alike": "equivalent", "fails": "fails more often"
    }  # fmt: skip
    assert found["fails"]["successes"] == [[8, 16], [32, 32]]
    assert found["alike"]["p_equivalent"] < 0.05 / 3 < found["alike"]["p_difference"]


def test_a_report_between_looks_has_the_verdicts_of_the_run(tmp_path):
    """The first look takes 16 of the 64 runs of the reference; no run of an arm succeeds."""
    arms = {"grpo": {"top": 0.8}, "one": {"top": 0.1}, "two": {"top": 0.11}}
    plan, more = (make_plan(arms, range(number), looks=(8, 16, 32)) for number in (32, 64))
    plan = replace(plan, arms=(*more.arms[:1], *plan.arms[1:]), judge="two_part")
    store = RunStore(tmp_path / "runs")
    do(plan, store, StudyRuns(plan, store).of_pass(True))
    assert StudyRuns(plan, store).of_pass(True) == []
    found = reported(plan, store, tmp_path)
    assert {arm["verdict"] for arm in found.values()} == {"fails more often"}
    assert found["one"]["successes"] == [[0, 8], [16, 16]]


def test_the_last_third_and_the_noise_of_its_evaluations():
    run = flat_run("a", 0, [0.0] * 7 + [0.6, 0.8, 1.0, 0.8])
    # steps 7 to 10
    assert run.outcome(METRIC).last_third == pytest.approx((0.6 / 2 + 0.8 + 1.0 + 0.8 / 2) / 3)
    errors = replace(run.series[METRIC], values=[0.5] * 7 + [0.02] * 4)
    run.series[f"{METRIC}_stderr"] = errors
    assert run.noise(METRIC, "last_third") == pytest.approx(0.02 * 2.5**0.5 / 3)
    assert run.noise(METRIC, "final") == 0.02
    stopped = flat_run("a", 0, [0.0, 0.5, 0.4])
    stopped.planned_steps = 9.0
    assert stopped.outcome(METRIC).last_third == pytest.approx(0.4)


def test_a_base_is_needed_for_a_gain():
    runs = [flat_run(arm, seed, [0.5]) for arm in "ab" for seed in range(8)]
    for run in runs:
        run.series[METRIC].steps[0] = 5.0
    with pytest.raises(ConfigurationError, match="no eval_reward at step 0"):
        analyse(runs, METRIC, judge="two_part")
    found = analyse(runs, METRIC, judge="two_part", threshold=0.4).decisive["b"]
    assert found.two_part.threshold == 0.4


def test_arms_succeed_by_the_threshold_of_their_reference():
    ends = {"a": 0.9, "low": 0.4, "low2": 0.42}
    runs = [flat_run(arm, seed, [0.1, end]) for arm, end in ends.items() for seed in range(8)]
    analysis = analyse(runs, METRIC, against={"low2": "low"}, judge="two_part")
    (grid,) = two_part_arms_table(analysis).blocks
    found = {row[0]: row[2].partition(" [")[0] for row in grid.rows}
    assert found == {"a": "8 of 8", "low": "0 of 8", "low2": "8 of 8"}
    assert grid.note.startswith("A run succeeds from 0.500 on, and against low from 0.250 on.")


@pytest.mark.parametrize(
    ("expected", "found", "agrees"),
    [
        (0.05, Verdict.BETTER, "yes"),
        (-0.05, Verdict.BETTER, "no"),
        (0.02, Verdict.EQUIVALENT, "yes"),
        (0.05, Verdict.NOT_DECIDED, "open"),
        ("fails", Verdict.FAILS_MORE, "yes"),
        (-0.05, Verdict.FAILS_MORE, "yes"),
        (0.05, Verdict.FAILS_MORE, "no"),
        ("fails", Verdict.COLLAPSE, "yes"),
        ("better", Verdict.FAILS_LESS, "yes"),
        (0.05, Verdict.FAILS_LESS, "yes"),
        ("better", Verdict.COLLAPSE, "no"),
        ("collapse", Verdict.UNDECIDED, "open"),
        ("collapse", Verdict.SAME, "no"),
    ],
)
def test_what_was_expected(expected, found, agrees):
    assert agreement(expected, found, 0.03) == agrees
