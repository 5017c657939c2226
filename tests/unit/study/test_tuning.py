"""Fair tuning: the same trials for every arm, fresh seeds after them, and what runs next."""

import random

import pytest

from tests.support.tuned_study import tuned_plan
from trl_ablate.study.runs import bounds, needed, next_runs, tuned
from trl_ablate.study.tuning import make_tuning, standing, trials_per_arm


def make(values=(1, 2, 3, 4), seeds=2, halving=False, used=(0, 1, 2)):
    return make_tuning(
        {"lr": list(values)}, seeds=seeds, by="final", halving=halving, arms=["a", "b"],
        used=set(used), what="study s",
    )  # fmt: skip


def test_the_best_mean_is_chosen_when_all_trials_have_ended():
    """A trial without an outcome does not count as zero."""
    tuning = make(values=(1, 2), seeds=2)
    scores = {(0, 0): 0.9, (0, 1): 0.1, (1, 0): 0.6, (1, 1): 0.6}  # means 0.5 and 0.6
    assert standing(tuning, scores).chosen == 1
    assert standing(tuning, scores | {(0, 1): None}).chosen == 0  # means 0.9 and 0.6
    assert standing(tuning, dict.fromkeys(scores)).chosen is None
    assert standing(tuning, dict.fromkeys(scores, 0.5)).chosen == 0  # of equal ones the first
    del scores[0, 1]
    found = standing(tuning, scores)
    assert found.chosen is None and len(found.trials) == 4


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


def test_tuning_seeds_are_none_of_the_study():
    assert make(seeds=3).seeds == [10_000, 10_001, 10_002]
    assert make(seeds=2, used=(0, 10_000, 10_002)).seeds == [10_001, 10_003]


def outcomes(tops: dict[str, list[float]], runs) -> dict[str, float | None]:
    """What the runs would end with: the top of their arm and value."""
    found = {}
    for run in runs:
        arm, _, value = run.arm.partition("--lr_")
        found[run.id] = tops[arm][int(value) - 1]
    return found


def test_what_runs_next_from_the_first_trial_to_the_last_run():
    """An arm waits for no trials of others; it also runs at the best of its own reference."""
    tops = {"ref": [0.5, 0.8, 0.2], "own": [0.9, 0.3, 0.1], "of_own": [0.41, 0.7, 0.6]}
    plan = tuned_plan(tops, against={"of_own": "own"})
    trials = next_runs(plan, {})
    assert len(trials) == 3 * 3 * 2 and {run.seed for run in trials} == {10_000, 10_001}
    some = outcomes(tops, [run for run in trials if run.arm.startswith("own")])
    coming = {run.arm for run in next_runs(plan, some) if run.seed < 10_000}
    assert coming == {"own--lr_1", "of_own--lr_1"}
    finished = outcomes(tops, trials)
    fresh = next_runs(plan, finished)
    assert {run.seed for run in fresh} == {0, 1, 2}  # disjoint from those of tuning
    assert len(fresh) == 3 * (1 + 2 + 2)
    found = {each.arm: (each.best, each.at_reference) for each in tuned(plan, finished)}
    assert found == {
        "ref": ("ref--lr_2", "ref--lr_2"),
        "own": ("own--lr_1", "own--lr_2"),
        "of_own": ("of_own--lr_2", "of_own--lr_1"),
    }
    finished |= outcomes(tops, fresh)
    assert next_runs(plan, finished) == []
    assert len(needed(plan, finished)) == 18 + 15


@pytest.mark.parametrize("halving", [False, True])
def test_the_bounds_hold_and_trials_are_as_many_whatever_they_show(halving):
    rng, sizes = random.Random(1), set()
    plan = tuned_plan({"a": [1, 2, 3], "b": [4, 5, 6], "c": [7, 8, 9]}, halving=halving)
    least, most = (len(runs) for runs in bounds(plan, {}))
    for _ in range(60):
        finished: dict[str, float | None] = {}
        while coming := next_runs(plan, finished):
            finished |= {run.id: rng.random() for run in coming}
        sizes.add(len(needed(plan, finished)))
        assert bounds(plan, finished)[0] == bounds(plan, finished)[1]
        trials = {len(each.standing.trials) for each in tuned(plan, finished)}
        assert trials == {trials_per_arm(plan.tuning)}
    assert (least, most) == (min(sizes), max(sizes))
