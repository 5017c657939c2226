"""Verdicts on pairs, at planned looks and over all of them: levels, golden values, finality,
simulated error rates."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from trl_ablate import ConfigurationError
from trl_ablate.study import Decision, decide
from trl_ablate.study.decision import LOOKS, can_reach, sign_flip_p
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

STUDIES = 2000
TWO_ERRORS = 2.5 * math.sqrt(0.05 * 0.95 / STUDIES)
"""The Monte-Carlo error of a share of 5 % over the simulated studies, at 99 % on either side."""


def test_the_level_of_each_look():
    """0.0157 was simulated independently of this code, with two digits; Pocock (1977), Biometrika
    64, table 1, has 0.0221 for a known spread. Many comparisons of few pairs have a level, too."""
    assert nominal_level((5,), 0.05) == 0.05
    assert nominal_level(LOOKS, 0.05) == pytest.approx(0.0157, abs=1e-4)
    assert nominal_level((20, 40, 60), 0.05) == pytest.approx(0.0221, abs=5e-4)
    for looks, level in (((3, 8), 0.05 / 15), (LOOKS, 0.05 / 30)):
        assert level / len(looks) <= nominal_level(looks, level) * (1 + 1e-9) < level


def test_a_verdict_by_hand():
    # mean 2, s = 1, three pairs: t(2 degrees) at 0.0157 two-sided is 7.90, half width 4.56
    found, nominal = decide([1.0, 2.0, 3.0]), nominal_level(LOOKS, 0.05)
    half = stats.t.ppf(1 - nominal / 2, 2) / math.sqrt(3)
    assert half == pytest.approx(4.56, abs=0.02)
    assert (found.low, found.high) == pytest.approx((2 - half, 2 + half))
    assert (found.verdict, found.n, found.difference) == ("undecided", 3, 2.0)
    assert found.nominal_level == nominal
    assert decide([9.0, 10.0, 11.0]).verdict == "better"  # 10 > 4.56
    assert decide([-9.0, -10.0, -11.0]).verdict == "worse"


@pytest.mark.parametrize(("n", "error"), [(3, 1e-12), (30, 1e-12), (31, 1e-3), (300, 1e-3)])
def test_sign_flips_of_equal_sizes_are_a_binomial_test(n, error):
    """From 31 pairs on they are drawn."""
    values = [0.1] * (n - n // 4) + [-0.1] * (n // 4)
    assert sign_flip_p(values) == pytest.approx(stats.binomtest(n // 4, n).pvalue, abs=error)


def test_sign_flips_of_other_sizes():
    """Darwin's 15 pairs of maize (Fisher 1935, The Design of Experiments, section 21): 1726 of
    32768 sums are as large in absolute value. Sums that differ by rounding to float32 are equal."""
    darwin = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]
    assert sign_flip_p(darwin) == 1726 / 32768
    assert sign_flip_p([0.0, 0.0]) == 1.0
    kept = np.float32([0.41, 0.43, 0.44, 0.46, 0.47, 0.49, 0.52, 0.53])
    other = np.float32([0.43, 0.45, 0.46, 0.48, 0.49, 0.51, 0.5, 0.55])
    assert sign_flip_p((other.astype(float) - kept).tolist()) == 18 / 256
    assert can_reach(6, 0.05) and not can_reach(5, 0.05)


def test_pairs_between_looks_do_not_count():
    first = [1.0, 2.0, 3.0]
    assert decide([*first, 1e6]) == decide(first)
    level = decide([]).nominal_level
    assert decide([0.1, 0.2]) == Decision("undecided", 0, None, None, None, level)
    found = decide([1.0, -1.0, 1.0, -1.0, 1.0] * 3)
    assert (found.verdict, found.n) == ("not decided", 12)


def test_a_final_verdict_stays_whatever_comes_later():
    rng = np.random.default_rng(0)
    for _ in range(300):
        values = list(rng.normal(rng.choice([0.0, 0.6, 2.0]), 1.0, 12))
        margin = float(rng.choice([0.5, 1.5]))
        found = [decide(values[:n], margin=margin) for n in range(13)]
        for earlier, later in itertools.pairwise(found):
            assert later == earlier or not earlier.is_final
        if found[8].is_final:
            assert decide([*values[:8], *[-100.0] * 4], margin=margin) == found[12]


def test_equivalence_is_two_one_sided_tests():
    # of eight, s = 0.01; half the interval at 1 - 2 * 0.05: t(7 degrees) = 1.895, so 0.0067
    values = [value * math.sqrt(7 / 8) for value in [-0.01, 0.01] * 4]
    assert decide(values, looks=(8,), margin=0.0066).verdict == "not decided"
    assert decide(values, looks=(8,), margin=0.0068).verdict == "equivalent"
    assert decide(values, looks=(8,)).verdict == "not decided"
    assert decide(values[:7], looks=(7,), margin=1.0).verdict == "not decided"  # too few
    assert decide([0.09, 0.10, 0.11], margin=0.5).verdict == "better"  # small, and seen


def test_differences_without_spread():
    assert decide([0.0, 0.0, 0.0]).verdict == "undecided"
    assert decide([0.0] * 8, margin=0.01).verdict == "equivalent"
    almost = [0.9 - 0.8, 1.0 - 0.9, 0.8 - 0.7]  # equal but for rounding: p = 2 / 2^3
    for equal in ([0.1] * 3, almost):
        found, (of_judge,) = decide(equal), judge({"a": Pairs(equal)}).values()
        assert (found.verdict, found.low, found.high) == ("undecided", None, None)
        assert (of_judge.verdict, of_judge.p, of_judge.difference.low) == (SAME, 0.25, None)
        assert paired_p(equal) == 0.25
    found = decide([0.1] * 8, looks=(8,))
    assert (found.verdict, found.low, found.high) == ("better", 0.1, 0.1)
    assert judge({"a": Pairs([0.0] * 3)})["a"].difference.low == 0.0


def test_a_verdict_at_a_look_of_two_pairs_has_its_p_value():
    found = judge_at_looks({"a": Pairs([0.5, 0.5001])}, (2, 3))["a"]
    assert found.verdict == "better" and found.p_values[0] < 0.001


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ({"differences": [0.1, math.nan]}, "difference 1 is nan"),
        ({"looks": ()}, r"looks are \[\]"),
        ({"looks": (1, 3)}, "from 2 on"),
        ({"looks": (3.5, 5)}, "ascending"),
        ({"looks": (3, 3)}, "ascending"),
        ({"level": 0.0}, "level is 0.0"),
        ({"margin": 0.0}, "margin is 0.0"),
        ({"margin": math.inf}, "margin is inf"),
        ({"margn": 0.1, "pool": 3}, "with differences, decide takes no margn, pool"),
    ],
)
def test_what_is_refused(words, complaint):
    with pytest.raises(ConfigurationError, match=complaint):
        decide(**{"differences": [], **words})


def test_where_the_exact_test_disagrees_the_verdict_is_the_weaker_one():
    """Seven differences of 1 and one of -0.45: t is large, but four of the 256 sums of flipped
    signs are at least as far from 0, p = 0.0156, and with another sign more, they are too many."""
    values = [1.0, 1.0, 1.0, 1.0, 1.0, -0.45, 1.0, 1.0]
    found = decide(values, looks=(8,), level=0.01)
    assert found.exact_p == 4 / 256 and found.exact_disagrees
    assert found.verdict == "not decided" and found.leans_on == "an exact sign-flip test"
    assert decide(values, looks=(8,), level=0.02).verdict == "better"
    assert decide(values[:3], looks=(3,), level=0.01).leans_on == "near-normal differences"


def test_a_mixture_where_the_mean_misleads():
    """The arm is better by 0.1 where it does not collapse, and one of its three seeds collapses; or
    all three do. Near-normal differences cannot be assumed of the first."""
    mixed = decide([-0.70, -0.71, -0.69], collapsed=[True, True, False])
    assert mixed.verdict == "undecided" and mixed.exact_disagrees and mixed.is_mixed
    assert decide([-0.70, -0.71, -0.69], collapsed=[True] * 3).verdict == "worse"
    eight = [0.1] * 7 + [0.01]
    assert decide(eight, looks=(8,), collapsed=[False] * 7 + [True]).verdict == "better"
    assert decide([0.0] * 3, margin=0.1, collapsed=[True, False, False]).verdict == "undecided"
    many = [-0.5, 0.1, -0.4] * 100  # whose sign flips are drawn
    assert decide(many, looks=(300,), collapsed=[True] + [False] * 299).verdict == "worse"
    assert judge({"a": Pairs(many, [True] + [False] * 299)})["a"].verdict == "worse"


def outcomes(kind: str, rng: np.random.Generator, n: int) -> np.ndarray:
    if kind in ("normal", "exponential"):
        return getattr(rng, kind)(size=n)
    collapsed = rng.random(n) < float(kind)  # in that share of the runs
    return np.where(collapsed, rng.normal(0.05, 0.01, n), rng.normal(0.8, 0.03, n))


@pytest.mark.parametrize("kind", ["normal", "exponential", "0.2", "0.5"])
def test_false_alarms_over_all_looks(kind):
    """Two arms with the same outcomes. Collapse in half of the runs is the hardest mixture: three
    pairs of the same sign look like a steady difference."""
    rng = np.random.default_rng(0)
    pairs = (outcomes(kind, rng, 12) - outcomes(kind, rng, 12) for _ in range(STUDIES))
    alarms = sum(decide(differences.tolist()).verdict.differs for differences in pairs) / STUDIES
    assert alarms <= 0.05 + TWO_ERRORS
    if kind == "normal":
        assert alarms >= 0.05 - TWO_ERRORS  # the levels are not wasted


def test_false_equivalence_at_the_margin():
    rng = np.random.default_rng(3)
    found = [decide((rng.normal(size=12) + 1.5).tolist(), margin=1.5) for _ in range(STUDIES)]
    share = sum(each.verdict == "equivalent" for each in found) / STUDIES
    assert share <= 0.05 + TWO_ERRORS


SAME = "not distinguishable"


def test_an_interval_and_a_p_value_as_scipy_has_them():
    values = [1.0, 2.0, 4.0, 4.5]
    found, theirs = t_interval(values), stats.ttest_1samp(values, 0.0)
    limits = theirs.confidence_interval(0.95)
    assert (found.n, found.mean, found.half_width) == (4, 2.875, pytest.approx(limits.high - 2.875))
    assert (found.low, found.high) == pytest.approx((limits.low, limits.high))
    assert paired_p(values) == paired_p([-v for v in values]) == pytest.approx(theirs.pvalue)
    one, equal = t_interval([0.5]), t_interval([0.1, 0.1, 0.1])
    assert t_interval([]).mean is None
    assert (one.mean, one.low, one.high, one.half_width) == (0.5, None, None, None)
    assert (equal.low, equal.high) == pytest.approx((0.1, 0.1), abs=1e-12)
    assert (paired_p([0.0, 0.0, 0.0]), paired_p([-0.1] * 6)) == (1.0, 2 / 2**6)


def test_holm_by_hand():
    # sorted 0.01 x 3, 0.03 x 2, 0.04 x 1 = 0.03, 0.06, 0.04, the last raised to 0.06 before it
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_verdicts_over_all_pairs():
    reference = [0.70, 0.72, 0.71]
    arms = {
        "better": [0.80, 0.83, 0.81],
        "worse": [0.50, 0.53, 0.51],
        "same": [0.71, 0.71, 0.71],
        "itself": reference,
        "few": [0.1, 0.1, None],
        "none": [None, None, None],
    }
    found = judge({name: pairs_of(reference, values) for name, values in arms.items()})
    verdicts = [comparison.verdict for comparison in found.values()]
    assert verdicts == ["better", "worse", SAME, SAME, "too few seeds", "too few seeds"]
    assert found["none"].difference.n == 0 and found["itself"].difference.mean == 0.0
    assert found["few"].p is None and found["few"].difference.n == 2
    # the smallest p-value of four: the fifth arm has none and does not count
    assert found["worse"].p_corrected == pytest.approx(4 * found["worse"].p)


def test_small_differences_are_equivalent_within_a_margin():
    """Two one-sided tests, as scipy has them."""
    values = [0.01, 0.03, -0.02, 0.02, 0.0, 0.04, -0.01, 0.02, 0.01]
    for margin in (0.0227, 0.0229):  # the mean of 0.0111, and t(0.95, 8) s / 3 = 0.0117 more
        found = judge({"a": Pairs(values)}, margin)["a"]
        below = stats.ttest_1samp(values, margin, alternative="less").pvalue
        assert found.p_values == pytest.approx((stats.ttest_1samp(values, 0).pvalue, below))
        assert found.verdict == ("equivalent" if below < 0.05 else SAME)
    assert found.verdict == "equivalent"
    mixed = Pairs(values, collapsed=[True, *[False] * 8])
    few = judge({"a": Pairs(values[:6])}, 1.0)["a"]
    assert judge({"a": mixed}, 1.0)["a"].verdict == few.verdict == SAME
    assert few.p_values[1] == 1.0


@pytest.mark.slow
def test_p_values_over_looks_say_what_the_verdict_says():
    rng, looks = np.random.default_rng(0), (3, 5, 8, 12)
    least = error_over_looks(looks, 2 * nominal_level(looks, 0.05)) / 2
    assert least == pytest.approx(0.05, abs=0.006)
    kinds = Counter()
    for shift, spread in ((0.0, 0.02), (0.0, 0.2), (0.1, 0.1), (-0.05, 0.05)) * 7:
        found = judge_at_looks({"a": Pairs(rng.normal(shift, spread, 12).tolist())}, looks, 0.05)
        (differs, same), verdict = found["a"].p_values, found["a"].verdict
        kinds[verdict] += 1
        assert (differs <= 0.05) == (verdict.differs or found["a"].exact_disagrees)
        assert (same <= least * 1.001) == (verdict is Verdict.EQUIVALENT) or verdict.differs
    assert kinds[Verdict.EQUIVALENT] > 2 and kinds[Verdict.BETTER] > 2 and len(kinds) == 4
