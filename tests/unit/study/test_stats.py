"""Intervals, corrections, verdicts: golden values, degenerate cases."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from trl_ablate.study.nominal import error_over_looks, nominal_level
from trl_ablate.study.report.stats import (
    Pairs,
    holm,
    judge,
    judge_at_looks,
    paired_p,
    pairs_of,
    t_interval,
)
from trl_ablate.study.verdict import Verdict

SAME = "not distinguishable"


def test_an_interval_and_a_p_value_as_scipy_has_them():
    values = [1.0, 2.0, 4.0, 4.5]
    found, theirs = t_interval(values), stats.ttest_1samp(values, 0.0)
    limits = theirs.confidence_interval(0.95)
    assert (found.n, found.mean) == (4, 2.875)
    assert (found.low, found.high) == pytest.approx((limits.low, limits.high))
    assert found.half_width == pytest.approx(limits.high - 2.875)
    assert paired_p(values) == paired_p([-v for v in values]) == pytest.approx(theirs.pvalue)
    one, equal = t_interval([0.5]), t_interval([0.1, 0.1, 0.1])
    assert t_interval([]).mean is None
    assert (one.mean, one.low, one.high, one.half_width) == (0.5, None, None, None)
    assert (equal.low, equal.high) == pytest.approx((0.1, 0.1), abs=1e-12)
    assert (paired_p([0.0, 0.0, 0.0]), paired_p([0.1, 0.1, 0.1])) == (1.0, 0.0)


def test_p_values_of_a_page_are_those_of_the_tests():
    values, margin = [0.01, 0.03, -0.02, 0.02, 0.0, 0.04, -0.01, 0.02, 0.01], 0.04
    alone = judge({"a": Pairs(values)}, margin)["a"]
    below = stats.ttest_1samp(values, margin, alternative="less").pvalue
    assert alone.p_values == pytest.approx((stats.ttest_1samp(values, 0).pvalue, below))
    assert judge({"a": Pairs(values[:5])}, margin)["a"].p_values[1] == 1.0


@pytest.mark.slow
def test_p_values_over_looks_say_what_the_verdict_says():
    rng, looks = np.random.default_rng(0), (3, 5, 8, 12)
    least = error_over_looks(looks, 2 * nominal_level(looks, 0.05)) / 2
    assert least == pytest.approx(0.05, abs=0.006)
    kinds = Counter()
    for shift, spread in ((0.0, 0.02), (0.0, 0.2), (0.1, 0.1), (-0.05, 0.05)) * 15:
        found = judge_at_looks({"a": Pairs(rng.normal(shift, spread, 12).tolist())}, looks, 0.05)
        (differs, same), verdict = found["a"].p_values, found["a"].verdict
        kinds[verdict] += 1
        assert (differs <= 0.05) == (verdict.differs or found["a"].exact_disagrees)
        assert (same <= least * 1.001) == (verdict is Verdict.EQUIVALENT) or verdict.differs
    assert kinds[Verdict.EQUIVALENT] > 5 and kinds[Verdict.BETTER] > 5 and len(kinds) == 4


def test_holm_by_hand():
    # sorted 0.01 x 3, 0.03 x 2, 0.04 x 1 = 0.03, 0.06, 0.04, the last raised to 0.06 before it
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_verdicts():
    reference = [0.70, 0.72, 0.71]
    arms = {
        "better": [0.80, 0.83, 0.81],
        "worse": [0.50, 0.53, 0.51],
        "same": [0.71, 0.71, 0.71],
        "itself": reference,
        "few": [0.1, 0.1, None],
        "none": [None, None, None],
    }
    verdicts = judge({name: pairs_of(reference, values) for name, values in arms.items()})
    found = [comparison.verdict for comparison in verdicts.values()]
    assert found == ["better", "worse", SAME, SAME, "too few seeds", "too few seeds"]
    assert verdicts["none"].difference.n == 0
    assert verdicts["few"].p is None and verdicts["few"].difference.n == 2
    assert verdicts["itself"].difference.mean == 0.0
    # the smallest p-value of four: the fifth arm has none and does not count
    assert verdicts["worse"].p_corrected == pytest.approx(4 * verdicts["worse"].p)


def test_small_differences_are_equivalent_within_a_margin():
    """Two one-sided tests: mean 0.002, s = 0.01, nine pairs; half width t(0.95, 8) s / sqrt(9)."""
    pairs = Pairs([0.002, 0.002 + 0.01 * math.sqrt(4 / 3), 0.002 - 0.01 * math.sqrt(4 / 3)] * 3)
    half = stats.t.ppf(0.95, 8) * 0.01 / math.sqrt(9)
    for margin, verdict in ((0.002 + half + 1e-6, "equivalent"), (0.002 + half - 1e-6, SAME)):
        assert judge({"a": pairs}, margin)["a"].verdict == verdict
    mixed = replace(pairs, collapsed=[True, *[False] * 8])
    assert judge({"a": mixed}, 1.0)["a"].verdict == judge({"a": pairs})["a"].verdict == SAME
    few = Pairs(pairs.differences[:6])
    assert judge({"a": few}, 1.0)["a"].verdict == SAME
