"""The two-part rule: its tests against scipy, its looks, its power, and planted truths."""

import math

import numpy as np
import pytest
from scipy import stats

from tests.support.planted_truths import ARMS, TRUTHS, false_claims, power
from trl_ablate import ConfigurationError
from trl_ablate.study import decide
from trl_ablate.study.two_part import (
    SHARES_PART,
    check_decides,
    clopper_pearson,
    fisher_p,
    half_way,
    power_of,
    spent,
    welch,
)
from trl_ablate.study.verdict import Verdict

GOOD = [0.80, 0.81, 0.79, 0.82, 0.78, 0.80, 0.81, 0.79]
"""Eight runs of one arm."""


def test_exact_intervals_and_tests_as_r_has_them():
    """`binom.test(682, 925)` of R's own example (Mendel's peas); none in n: 1 - 0.025^(1/n).
    `fisher.test`: convictions of like-sex twins."""
    assert clopper_pearson(682, 925) == pytest.approx((0.7076683, 0.7654066), abs=1e-7)
    assert clopper_pearson(0, 5) == (0.0, pytest.approx(1 - 0.025 ** (1 / 5)))
    assert fisher_p(2, 17, 10, 13) == pytest.approx(0.0005367, abs=5e-8)


def test_welch_as_scipy_has_it():
    rng = np.random.default_rng(0)
    for n, other, sd in ((8, 16, 0.1), (32, 64, 3.0), (9, 8, 1.0)):
        arm, reference = rng.normal(0.3, sd, n), rng.normal(0, 1, other)
        ours, theirs = welch(arm, reference), stats.ttest_ind(arm, reference, equal_var=False)
        assert ours.p == pytest.approx(theirs.pvalue)
        assert ours.interval(0.1) == pytest.approx(theirs.confidence_interval(0.9))
        above = stats.ttest_ind(arm - 0.7, reference, equal_var=False, alternative="less").pvalue
        below = stats.ttest_ind(arm + 0.7, reference, equal_var=False, alternative="greater").pvalue
        assert ours.equivalence_p(0.7) == pytest.approx(max(above, below))


def test_the_level_is_spent_once():
    assert spent((8, 16, 32)) == (1 / 64, 7 / 64, 56 / 64)
    for looks in ((5,), (8, 12, 13), (3, 30, 300)):
        assert sum(spent(looks)) == pytest.approx(1)


@pytest.mark.parametrize(
    ("arm", "reference", "verdict", "n"),
    [
        (GOOD * 4, GOOD * 8, Verdict.EQUIVALENT, 8),
        ([x + 0.1 for x in GOOD] * 4, GOOD * 8, Verdict.BETTER, 8),
        ([x - 0.1 for x in GOOD] * 4, GOOD * 8, Verdict.WORSE, 8),
        ([0.1, *GOOD[1:]] * 4, GOOD * 8, Verdict.NOT_DECIDED, 32),  # 28 of 32: p = 0.011
        ([0.1, 0.2, *GOOD[2:]] * 4, GOOD * 8, Verdict.FAILS_MORE, 32),  # 24 of 32: p = 0.0001
        ([0.1] * 32, GOOD * 8, Verdict.FAILS_MORE, 8),  # p = 1 / C(24, 8) = 1.4e-6
        (GOOD * 4, [0.3, 0.2, 0.4, *GOOD[3:]] * 8, Verdict.FAILS_LESS, 32),
        (GOOD * 2, GOOD, Verdict.UNDECIDED, 0),  # the first look takes 16 of the reference
    ],
)
def test_verdicts(arm, reference, verdict, n):
    found = decide(arm=arm, reference=reference, threshold=0.6, pool=64, margin=0.03)
    assert (found.verdict, found.n) == (verdict, n)
    if found.shares:
        assert found.shares.arm == (sum(x >= 0.6 for x in arm[:n]), n)
        (low, high), _ = found.shares.intervals
        assert low <= found.shares.arm[0] / n <= high
        of = found.shares.reference[1]
        assert found.everyone == welch(arm[:n], reference[:of])
    assert (found.p <= 0.05) == found.is_final


def test_agreement_below_the_noise_of_evaluation_is_no_equivalence():
    """The audited error: a few runs with a sd far below what their evaluation can measure."""
    alike = [0.8 + 0.0001 * n for n in range(8)]
    assert decide(arm=alike, reference=alike, threshold=0.6, looks=(8,), margin=0.01).is_final
    found = decide(arm=alike, reference=alike, threshold=0.6, looks=(8,), margin=0.01, noise=0.015)
    assert found.verdict is Verdict.NOT_DECIDED
    assert found.means is not None and found.means.error == pytest.approx(0.015 * math.sqrt(2 / 8))
    assert not decide(
        arm=alike[:7], reference=alike[:7], threshold=0.6, looks=(7,), margin=0.5
    ).is_final


def test_runs_that_do_not_vary_show_nothing():
    for arm in ([0.9] * 8, [0.901] * 8):
        found = decide(arm=arm, reference=[0.9] * 8, threshold=0.6, looks=(8,), margin=0.03)
        assert found.verdict is Verdict.NOT_DECIDED and found.p == 1.0
        assert found.interval == (-math.inf, math.inf)


def test_the_threshold_is_half_of_what_the_median_gains():
    assert half_way([0.2, 0.7, 0.8], base=0.3) == pytest.approx(0.5)
    assert half_way([0.1, 0.2, 0.3], base=0.3) == 0.3
    found = decide(arm=[0.5] * 8, reference=[0.2] * 3 + [0.7] * 5, base=0.3, looks=(8,))
    assert found.shares is not None and found.shares.arm == (8, 8)


def test_power_at_the_last_look_is_that_of_simulated_studies():
    """Earlier looks add little, so the simulation is at most slightly above the formula."""
    level = 0.05 / ARMS * (1 - SHARES_PART) * spent((8, 16, 32))[-1]
    expected = power_of(0.031, 0.03, n=32, pool=64, level=level)
    better, same, _ = power(0.031, 60)
    assert better == pytest.approx(expected.difference, abs=0.04)
    assert same == pytest.approx(expected.equivalence, abs=0.06)


def test_fewer_than_eight_pairs_are_never_equivalent():
    found = (power_of(0.01, 0.05, n=n, pool=n, level=0.05, is_paired=True) for n in (7, 8))
    assert [each.equivalence > 0 for each in found] == [False, True]


def test_a_design_that_cannot_decide_is_refused():
    check_decides((8, 16, 32), 64, 16, "study s")
    with pytest.raises(ConfigurationError, match="plan 8 runs of each"):
        check_decides((3,), None, 2, "study s")
    with pytest.raises(ConfigurationError, match="outcome 0 of the arm is nan"):
        decide(arm=[math.nan], reference=GOOD, threshold=0.5)
    with pytest.raises(ConfigurationError, match="give `base`"):
        decide(arm=GOOD, reference=GOOD)


@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.parametrize("name", TRUTHS)
def test_few_false_claims(name):
    """5 % of the studies, plus the error of this simulation; planted_truths.py takes thousands."""
    of_studies, of_pages = false_claims(TRUTHS[name], 800)
    assert of_studies <= 0.05 + 2.5 * math.sqrt(0.05 * 0.95 / 800)
    assert of_pages <= 0.05 + 0.01
