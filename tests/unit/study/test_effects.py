"""Effects of a factorial study: textbook values, missing cells, a model that does not fit."""

import math
from itertools import product

import numpy as np
import pytest
from scipy import stats

from trl_ablate.study.report.effects import Fit, Observation

FILTRATION = (45, 71, 48, 65, 68, 60, 80, 65, 43, 100, 45, 104, 75, 86, 70, 96)
"""Montgomery, Design and Analysis of Experiments, 8th edition, example 6.2, in standard order."""

SIMULATED = 400
SAMPLING_ERROR = 2.576 * math.sqrt(0.05 * 0.95 / SIMULATED)
"""Of a share of 5 % over the simulated studies, at 99 %."""


def filtration(cells) -> Fit:
    observations = [
        Observation(dict(zip("DCBA", codes, strict=True)), 0, float(value))
        for codes, value in zip(product((0, 1), repeat=4), FILTRATION, strict=True)
        if cells(sum(codes))
    ]
    return Fit(observations, dict.fromkeys("ABCD", (0, 1)))


def test_a_half_fraction_as_in_montgomery():
    """Example 8.1, I = ABCD: each pair of interactions has one estimate, which names both. The book
    has half of an interaction."""
    effects = filtration(lambda high: high % 2 == 0).effects
    names = ["".join(name for name, _ in effect.term) for effect in effects]
    found = {
        name: effect.found and effect.found.estimate / len(name)
        for name, effect in zip(names, effects, strict=True)
    }
    assert found == pytest.approx(
        {"A": 19.0, "B": 1.5, "C": 14.0, "D": 16.5, "AB": -1.0, "AC": -18.5, "AD": 19.0,
         "BC": None, "BD": None, "CD": None}
    )  # fmt: skip
    aliases = {name: effect.aliases for name, effect in zip(names, effects, strict=True)}
    assert aliases["AB"] == (effects[names.index("CD")].term,)
    assert aliases["CD"] == (effects[names.index("AB")].term,)
    assert aliases["AD"] == (effects[names.index("BC")].term,) and aliases["A"] == ()
    assert {effect.verdict for effect in effects} == {"too few seeds", "not estimable"}


def test_three_levels_by_hand():
    """Cell means over a (rows 0, 1) and b (columns 0, 1, 2), without noise:

    1 2 6     a: (3 + 4 + 14) / 3 - (1 + 2 + 6) / 3 = 4
    3 4 14    b1: 3 - 2 = 1; b2: 10 - 2 = 8; a x b1: (4 - 3) - (2 - 1) = 0; a x b2: 11 - 5 = 6
    """
    means = {(0, 0): 1, (0, 1): 2, (0, 2): 6, (1, 0): 3, (1, 1): 4, (1, 2): 14}
    fit = Fit(
        [Observation({"a": a, "b": b}, seed, mean + seed) for (a, b), mean in means.items()
         for seed in (0, 1)],
        {"a": (0, 1), "b": (0, 1, 2)},
    )  # fmt: skip
    assert [effect.found.estimate for effect in fit.effects] == pytest.approx([4, 1, 8, 0, 6])
    assert fit.sigma == 0.0
    assert [effect.found.p for effect in fit.effects] == [0, 0, 0, 1, 0]
    for given, expected in ((0, 2.0), (1, 2.0), (2, 8.0)):
        assert fit.simple_effect(("a", 1), ("b", given)).estimate == pytest.approx(expected)
    assert fit.simple_effect(("b", 2), ("a", 1)).estimate == pytest.approx(11.0)
    assert [fit.level_mean(("b", j)) for j in range(3)] == pytest.approx([2.5, 3.5, 10.5])


UNBALANCED = """
    0000=.434 0001=.521 0010=.472 0100=.564 0101=.502 0102=.560 0110=.546 0111=.519 0200=.628
    0201=.571 0202=.641 0210=.587 0211=.591 0212=.601 1000=.585 1001=.580 1002=.532 1011=.559
    1012=.400 1100=.595 1101=.652 1102=.638 1110=.598 1111=.587 1112=.533 1200=.772 1201=.822
    1202=.742 1210=.570 1211=.668 1212=.609
"""
"""Levels of a (2), b (3), c (2), then the seed: 31 of 36 runs, drawn for this test."""


def test_missing_runs_and_three_levels_as_in_statsmodels():
    """statsmodels 0.15.0, `ols("y ~ C(seed) + (a1 + b1 + b2 + c1) + two-way products")` with the
    same columns: coefficients and p-values. The intervals hold for all nine at once; the fifth
    smallest p-value passes by Holm's step, and would not by Bonferroni's."""
    observations = []
    for word in UNBALANCED.split():
        codes, value = word.split("=")
        a, b, c, seed = map(int, codes)
        observations.append(Observation({"a": a, "b": b, "c": c}, seed, float(value)))
    fit = Fit(observations, {"a": (0, 1), "b": (0, 1, 2), "c": (0, 1)})
    assert fit.degrees == 19 and fit.sigma == pytest.approx(0.042836809, abs=1e-9)
    expected = [
        (0.068654787, 0.000533275, "better"),  # a
        (0.071242678, 0.002855385, "better"),  # b1
        (0.152682729, 0.000000491, "better"),  # b2
        (-0.055344585, 0.002683367, "worse"),  # c
        (0.015129175, 0.719374109, "not distinguishable"),  # a x b1
        (0.045582406, 0.283044510, "not distinguishable"),
        (-0.093720518, 0.008338401, "worse"),  # a x c
        (0.008606885, 0.836326843, "not distinguishable"),  # b1 x c
        (-0.050179680, 0.227339142, "not distinguishable"),
    ]
    for effect, (estimate, p, verdict) in zip(fit.effects, expected, strict=True):
        found, error = effect.found, abs(estimate) / stats.t.isf(p / 2, 19)
        assert (found.estimate, found.p) == pytest.approx((estimate, p), abs=1e-9)
        half = stats.t.ppf((1 + 0.95 ** (1 / 9)) / 2, 19) * error
        assert found.estimate - found.low == pytest.approx(half, abs=1e-4)
        assert found.high - found.estimate == pytest.approx(half, abs=1e-4)
        assert effect.verdict == verdict


def test_a_model_that_does_not_fit_is_noticed():
    """A three-way interaction of 4 against unit noise; without it, 5 % of studies have p < 0.05."""
    rng = np.random.default_rng(3)
    cells = list(product((0, 1), repeat=3))

    def p_of(three_way: float) -> float:
        fit = Fit(
            [Observation(dict(zip("ABC", c, strict=True)), s, three_way * math.prod(c)
                         + rng.normal()) for c in cells for s in range(5)],
            dict.fromkeys("ABC", (0, 1)),
        )  # fmt: skip
        return fit.threes()["A", "B", "C"]

    assert np.mean([p_of(4.0) < 0.05 for _ in range(100)]) > 0.8
    assert filtration(lambda high: True).threes() == {}  # no cell is repeated
    calm = np.mean([p_of(0.0) < 0.05 for _ in range(SIMULATED)])
    assert abs(calm - 0.05) < SAMPLING_ERROR
