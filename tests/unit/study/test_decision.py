"""Verdicts at planned looks: nominal levels, golden values, finality, simulated error rates."""

import itertools
import math

import numpy as np
import pytest
from scipy import special

from trl_ablate import ConfigurationError
from trl_ablate.study import Decision, decide
from trl_ablate.study.decision import LOOKS, _drawn_p, can_reach, sign_flip_p
from trl_ablate.study.nominal import error_over_looks, nominal_level
from trl_ablate.study.report.stats import Pairs, judge

STUDIES = 2000
TWO_ERRORS = 2.5 * math.sqrt(0.05 * 0.95 / STUDIES)
"""The Monte-Carlo error of a share of 5 % over the simulated studies, at 99 % on either side."""


def test_one_look_has_the_whole_level():
    assert nominal_level((5,), 0.05) == 0.05
    # the recursion itself, which is not used for one look
    assert error_over_looks((3,), 0.05) == pytest.approx(0.05, rel=1e-3)
    assert error_over_looks((12,), 0.0157) == pytest.approx(0.0157, rel=1e-3)


def test_the_level_of_four_and_of_seven_looks():
    """0.0157 and 0.0119 were simulated independently of this code, with two digits each."""
    assert nominal_level(LOOKS, 0.05) == pytest.approx(0.0157, abs=1e-4)
    assert nominal_level((3, 4, 5, 6, 8, 10, 12), 0.05) == pytest.approx(0.0119, abs=2e-4)


@pytest.mark.parametrize(("looks", "compared"), [((3, 8), 15), ((3, 10), 10), (LOOKS, 30)])
def test_many_comparisons_of_few_pairs_have_a_level(looks, compared):
    """No smaller one than an equal part for every look is needed."""
    level = 0.05 / compared
    assert level / len(looks) <= nominal_level(looks, level) * (1 + 1e-9) < level


def test_many_degrees_of_freedom_give_pococks_level():
    """Pocock (1977), Biometrika 64, table 1: two and three equally large groups at 5 % take nominal
    levels of 0.0294 and 0.0221 if the spread is known; with 20 pairs per group it nearly is."""
    assert nominal_level((20, 40), 0.05) == pytest.approx(0.0294, rel=0.025)
    assert nominal_level((20, 40, 60), 0.05) == pytest.approx(0.0221, rel=0.025)


def test_a_verdict_by_hand():
    # mean 2, s = 1, three pairs: t(2 degrees) at 0.0157 two-sided is 7.90, half width 4.56
    nominal = nominal_level(LOOKS, 0.05)
    t = float(special.stdtrit(2, 1 - nominal / 2))
    found = decide([1.0, 2.0, 3.0])
    assert (found.verdict, found.n, found.difference) == ("undecided", 3, 2.0)
    assert found.low == pytest.approx(2 - t / math.sqrt(3)) and t == pytest.approx(7.89, abs=0.02)
    assert decide([9.0, 10.0, 11.0]).verdict == "better"  # 10 > 4.56
    assert decide([-9.0, -10.0, -11.0]).verdict == "worse"
    assert decide([9.0, 10.0, 11.0]).nominal_level == nominal


def test_sign_flips_by_hand():
    """Of the 8 sums of ±1 ±2 ±3 two are as far from 0 as 6, and four as far as 4. Darwin's 15 pairs
    of maize (Fisher 1935, The Design of Experiments, section 21): 1726 of 32768 sums are as large
    in absolute value, p = 0.0527."""
    assert sign_flip_p([1.0, 2.0, 3.0]) == 2 / 8
    assert sign_flip_p([-1.0, 2.0, 3.0]) == 4 / 8
    darwin = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]
    assert sign_flip_p(darwin) == 1726 / 32768
    assert sign_flip_p([0.0, 0.0]) == 1.0
    assert sign_flip_p([0.1] * 7) == 2 / 128  # sums that differ by rounding are equal
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
    values = [-0.01, 0.01] * 4
    values = [value * math.sqrt(7 / 8) for value in values]
    assert decide(values, looks=(8,), margin=0.0066).verdict == "not decided"
    assert decide(values, looks=(8,), margin=0.0068).verdict == "equivalent"
    assert decide(values, looks=(8,)).verdict == "not decided"
    assert decide(values[:7], looks=(7,), margin=1.0).verdict == "not decided"  # too few
    assert decide([0.09, 0.10, 0.11], margin=0.5).verdict == "better"  # small, and seen


def test_differences_without_spread():
    assert decide([0.0, 0.0, 0.0]).verdict == "undecided"
    assert decide([0.0] * 12).verdict == "not decided"
    assert decide([0.0] * 8, margin=0.01).verdict == "equivalent"
    found = decide([0.1, 0.1, 0.1])
    assert (found.verdict, found.low, found.high) == ("better", 0.1, 0.1)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ({"differences": [0.1, math.nan]}, "difference 1 is nan"),
        ({"differences": [math.inf]}, "difference 0 is inf"),
        ({"looks": ()}, "looks are []"),
        ({"looks": (5, 3)}, "ascending"),
        ({"looks": (3, 3)}, "ascending"),
        ({"looks": (1, 3)}, "from 2 on"),
        ({"looks": (3.5, 5)}, "ascending"),
        ({"level": 0.0}, "level is 0.0"),
        ({"level": math.nan}, "level is nan"),
        ({"margin": 0.0}, "margin is 0.0"),
        ({"margin": math.inf}, "margin is inf"),
    ],
)
def test_what_is_refused(words, complaint):
    with pytest.raises(ConfigurationError, match=complaint.replace("[", r"\[")):
        decide(**{"differences": [], **words})


def test_where_the_exact_test_disagrees_the_verdict_is_the_weaker_one():
    """Seven differences of 1 and one of -0.4: t is large, but four of the 256 sums of flipped signs
    are at least as far from 0, p = 0.0156, and with another sign more, they are too many."""
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


@pytest.mark.parametrize("n", [30, 31, 300])
def test_mixed_pairs_are_judged_however_many_they_are(n):
    values, collapsed = [-0.5, 0.1, -0.4] * (n // 3) + [-0.5] * (n % 3), [True] + [False] * (n - 1)
    found = decide(values, looks=(n,), collapsed=collapsed)
    assert found.verdict == "worse" and found.exact_p is not None and found.exact_p < 0.001
    assert judge({"a": Pairs(values, collapsed)})["a"].verdict == "worse"
    assert decide([-0.1, 0.1] * n, looks=(2 * n,), collapsed=collapsed * 2).exact_p == 1.0


def test_drawn_flips_have_the_p_value_of_all():
    values = np.random.default_rng(1).normal(0.4, 1.0, 24)
    limit = abs(values.sum()) * (1 - 1e-9)
    assert _drawn_p(abs(values), limit) == pytest.approx(sign_flip_p(values.tolist()), abs=0.003)


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
