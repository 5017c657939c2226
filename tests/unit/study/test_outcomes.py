"""Collapse as an outcome, interquartile means, probability of improvement."""

import numpy as np
import pytest

from tests.support.synthetic_study import METRIC, flat_run
from trl_ablate.study.report.analysis import analyse
from trl_ablate.study.report.outcomes import (
    collapses,
    improvement_interval,
    interquartile_mean,
    middle_interval,
    outcomes_table,
    sentences,
    wins,
)
from trl_ablate.study.two_part import clopper_pearson, fisher_p


def test_exact_intervals_and_tests_as_r_has_them():
    """`binom.test(682, 925)` of R's own example (Mendel's peas); none in n: 1 - 0.025^(1/n).
    `fisher.test`: convictions of like-sex twins; all five against none of five: 2 / C(10, 5)."""
    assert clopper_pearson(682, 925) == pytest.approx((0.7076683, 0.7654066), abs=1e-7)
    assert clopper_pearson(0, 5) == (0.0, pytest.approx(1 - 0.025 ** (1 / 5)))
    assert clopper_pearson(5, 5) == (pytest.approx(0.025 ** (1 / 5)), 1.0)
    assert fisher_p(2, 17, 10, 13) == pytest.approx(0.0005367, abs=5e-8)
    assert fisher_p(5, 5, 0, 5) == pytest.approx(2 / 252)
    assert fisher_p(0, 5, 0, 5) == 1.0


def test_means_and_chances_by_hand():
    assert interquartile_mean(np.array([0.0, 1.0, 2.0, 9.0])) == 1.5
    assert interquartile_mean(np.array([1.0, 2.0, 6.0])) == 3.0  # nothing is a whole quarter
    # 1 beats 0; 2 beats 0 and ties twice; 3 beats all: (1 + 1 + 2 * 0.5 + 3) / 9
    assert wins([1, 2, 3], [0, 2, 2]).mean() == pytest.approx(6 / 9)


def study():
    runs = [flat_run("grpo", seed, [0.1, 0.8, 0.8 + 0.01 * seed]) for seed in range(5)]
    for seed in range(5):
        values = [0.1, 0.9, 0.92 + 0.01 * seed] if seed < 2 else [0.1, 0.9, 0.02, 0.01]
        runs.append(flat_run("mixed", seed, values))
    return analyse(runs, METRIC)


def test_a_mean_over_both_kinds_is_never_the_only_number():
    """Three of five runs collapse, two end higher than the reference: the mean of 0.38 describes
    none of them."""
    analysis = study()
    found = collapses(analysis)["mixed"]
    assert found.reference is analysis.reference
    assert found.others.n == 2 and found.others.mean == pytest.approx(0.925)
    assert found.p == pytest.approx(fisher_p(3, 5, 0, 5)) == pytest.approx(1 / 6)
    (sentence,) = sentences(analysis)
    assert sentence.startswith("mixed: 3 of 5 runs collapsed (95 % interval of the rate 0.147 to")
    assert "0 of 5 of grpo (Fisher's exact test: p = 0.167)" in sentence
    assert "the mean over the runs that did not collapse is 0.925 ± " in sentence
    # five pairs, some of them collapsed: too few for the test that could tell
    assert analysis.decisive["mixed"].verdict == "not distinguishable"
    (grid,) = outcomes_table(analysis).blocks
    row = dict(zip(grid.header, grid.rows[1], strict=True))
    assert row["collapsed"] == "3 of 5" and row["P(better)"].startswith("0.400 [0.000, 0.8")


def test_all_runs_collapsed():
    runs = [flat_run("a", s, [0.1, 0.8, 0.8]) for s in range(3)]
    runs += [flat_run("b", s, [0.1, 0.8, 0.01 * s, 0.0]) for s in range(3)]
    analysis = analyse(runs, METRIC)
    assert sentences(analysis)[0].endswith("(Fisher's exact test: p = 0.100).")
    assert analysis.decisive["b"].verdict == "worse"  # all pairs alike: nothing is mixed


def test_a_bootstrap_repeats_and_resamples_each_arm_by_itself():
    first, second = [0.1, 0.2, 0.4], [0.0, 0.3, 0.2]
    assert improvement_interval(first, second) == improvement_interval(first, second)
    assert improvement_interval([1.0, 2.0], [0.0, 0.5]) == (1.0, 1.0)  # no arm gets the other's
    assert improvement_interval([1.0, 2.0], [0.0, 3.0]) == (0.0, 1.0)  # the reference is drawn, too
    assert middle_interval([0.5, 0.5, 0.5]) == (0.5, 0.5)
    # of 27 resamples of three runs, one has the lowest value alone: 3.7 % > 2.5 %
    assert middle_interval([0.0, 1.0, 2.0]) == (0.0, 2.0)
