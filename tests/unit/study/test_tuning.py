"""Fair tuning: the same trials for every arm, fresh seeds after them, and what runs next."""

import random
import re

import pytest

from tests.support.tuned_study import tuned_plan
from trl_ablate import ConfigurationError
from trl_ablate.study.outline import tuning_text
from trl_ablate.study.planned import Plan
from trl_ablate.study.runs import bounds, needed, next_runs, tuned
from trl_ablate.study.tuning import make_tuning, standing, trials_per_arm


def make(values=(1, 2, 3, 4), seeds=2, halving=False, used=(0, 1, 2)):
    return make_tuning(
        {"lr": list(values)}, seeds=seeds, by="final", halving=halving, arms=["a", "b"],
        used=set(used), what="study s",
    )  # fmt: skip


def test_the_best_mean_is_chosen_when_all_trials_have_ended():
    tuning = make(values=(1, 2), seeds=2)
    scores = {(0, 0): 0.9, (0, 1): 0.1, (1, 0): 0.6, (1, 1): 0.6}  # means 0.5 and 0.6
    assert standing(tuning, scores).chosen == 1
    del scores[0, 1]
    found = standing(tuning, scores)
    assert found.chosen is None and len(found.trials) == 4


def test_a_trial_without_an_outcome_does_not_count_as_zero():
    tuning = make(values=(1, 2, 3), seeds=2)
    scores = {(0, 0): 0.5, (0, 1): None, (1, 0): 0.4, (1, 1): 0.4, (2, 0): None, (2, 1): None}
    assert standing(tuning, scores).chosen == 0
    nothing = standing(tuning, dict.fromkeys(scores))
    assert nothing.chosen is None and len(nothing.trials) == 6
    assert standing(tuning, dict.fromkeys(scores, 0.5)).chosen == 0  # of equal ones the first


def test_halving_drops_the_worse_half_after_each_seed():
    tuning = make(values=range(1, 6), seeds=3, halving=True)
    first = [(value, 0) for value in range(5)]
    assert standing(tuning, {}).trials == first
    scores = dict(zip(first, (0.1, 0.5, 0.4, 0.2, 0.3), strict=True))
    assert standing(tuning, scores).trials == [*first, (1, 1), (2, 1), (4, 1)]  # 3 of 5
    scores |= {(1, 1): 0.1, (2, 1): 0.5, (4, 1): 0.4}  # means 0.3, 0.45, 0.35
    assert standing(tuning, scores).trials[-2:] == [(2, 2), (4, 2)]
    scores |= {(2, 2): 0.0, (4, 2): 0.4}  # means 0.3, 0.367
    assert standing(tuning, scores).chosen == 4
    assert trials_per_arm(tuning) == 5 + 3 + 2
    assert trials_per_arm(make(seeds=3, halving=True)) == 4 + 2  # one is left: no third seed


def test_every_arm_has_the_same_number_of_trials_whatever_their_outcomes():
    tuning, rng = make(values=range(7), seeds=4, halving=True), random.Random(0)
    for _ in range(100):
        scores: dict = {}
        while (found := standing(tuning, scores)).chosen is None:
            scores |= {trial: rng.random() for trial in found.trials if trial not in scores}
        assert len(found.trials) == trials_per_arm(tuning)


def test_tuning_seeds_are_none_of_the_study():
    assert make(seeds=3).seeds == [10_000, 10_001, 10_002]
    assert make(seeds=2, used=(0, 10_000, 10_002)).seeds == [10_001, 10_003]


@pytest.mark.parametrize(
    ("values_of", "seeds", "complaint"),
    [
        ({}, 2, "tune has the settings none; name one"),
        ({"a": [1, 2], "b": [1, 2]}, 2, "the settings a, b; name one"),
        ({"lr": [1]}, 2, "a list of two or more different values"),
        ({"lr": [1, 1]}, 2, "different values"),
        ({"lr": 3}, 2, "tune has 3 for lr"),
        ({"lr": [1, 2]}, 0, "0 seeds; give 1 or more"),
    ],
)
def test_what_cannot_be_tuned(values_of, seeds, complaint):
    with pytest.raises(ConfigurationError, match=re.escape(complaint)):
        make_tuning(
            values_of, seeds=seeds, by="final", halving=False, arms=["a"], used=set(), what="study"
        )


def outcomes(plan: Plan, tops: dict[str, list[float]], runs) -> dict[str, float]:
    """What the runs would end with: the top of their arm and value."""
    found = {}
    for run in runs:
        name = run.words[run.words.index("--arm") + 1]
        arm, _, value = name.partition("--lr_")
        found[run.id] = tops[arm][int(value) - 1]
    return found


def test_what_runs_next_from_the_first_trial_to_the_last_run():
    tops = {"ref": [0.5, 0.8, 0.2], "own": [0.9, 0.3, 0.1], "same": [0.41, 0.7, 0.6]}
    plan = tuned_plan(tops)
    finished: dict[str, float | None] = {}
    trials = next_runs(plan, finished)
    assert len(trials) == 3 * 3 * 2 and {run.seed for run in trials} == {10_000, 10_001}
    finished |= outcomes(plan, tops, trials)
    fresh = next_runs(plan, finished)
    assert {run.seed for run in fresh} == {0, 1, 2}  # disjoint from those of tuning
    assert len(fresh) == 3 * (1 + 2 + 1)  # `own` at its own best, and at the reference's
    found = {each.arm: (each.best, each.at_reference) for each in tuned(plan, finished)}
    assert found == {
        "ref": ("ref--lr_2", "ref--lr_2"),
        "own": ("own--lr_1", "own--lr_2"),
        "same": ("same--lr_2", "same--lr_2"),
    }
    finished |= outcomes(plan, tops, fresh)
    assert next_runs(plan, finished) == []
    assert len(needed(plan, finished)) == 18 + 12


def test_an_arm_does_not_wait_for_the_trials_of_others():
    tops = {"ref": [0.5, 0.8], "own": [0.9, 0.3]}
    plan = tuned_plan(tops)
    trials = next_runs(plan, {})
    mine = [run for run in trials if "own--" in run.words[2]]
    coming = next_runs(plan, outcomes(plan, tops, mine))
    assert {run.words[2] for run in coming} == {"ref--lr_1", "ref--lr_2", "own--lr_1"}


def test_an_arm_is_also_run_at_the_best_of_its_own_reference():
    tops = {"ref": [0.9, 0.5], "match": [0.1, 0.6], "arm": [0.7, 0.3]}
    plan = tuned_plan(tops, against={"arm": "match"})
    finished = outcomes(plan, tops, next_runs(plan, {}))
    assert {each.arm: each.at_reference for each in tuned(plan, finished)} == {
        "ref": "ref--lr_1", "match": "match--lr_1", "arm": "arm--lr_2",
    }  # fmt: skip


def test_the_bounds_hold_whatever_the_trials_show():
    rng = random.Random(1)
    for halving in (False, True):
        empty = tuned_plan({"a": [1, 2, 3], "b": [4, 5, 6], "c": [7, 8, 9]}, halving=halving)
        least, most = (len(runs) for runs in bounds(empty, {}))
        sizes = set()
        for _ in range(60):
            finished: dict[str, float | None] = {}
            while coming := next_runs(empty, finished):
                finished |= {run.id: rng.random() for run in coming}
            sizes.add(len(needed(empty, finished)))
            assert bounds(empty, finished)[0] == bounds(empty, finished)[1]
        assert (least, most) == (min(sizes), max(sizes))
    plan = tuned_plan({"a": [1, 2, 3], "b": [4, 5, 6]})
    text = tuning_text(plan, plan.tuning, {})
    assert "6 runs of each of 2 arms" in text and "18 to 21 runs in all" in text
