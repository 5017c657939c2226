"""Effects of a factorial study: textbook values, missing cells, a model that does not fit."""

import math
from itertools import product

import numpy as np
import pytest
from scipy import special

from trl_ablate.study.report.effects import Fit, Observation

NPK = """
    1:011=49.5 110=62.8 000=46.8 101=57.0  2:100=59.8 111=58.5 001=55.5 010=56.0
    3:010=62.8 111=55.8 100=69.5 001=55.0  4:100=62.0 111=48.8 001=45.5 010=44.2
    5:110=52.0 000=51.5 101=49.8 011=48.8  6:101=57.2 110=59.0 011=53.2 000=56.0
"""
"""R's data set `npk`: yield of peas for N, P, K in six blocks (Venables and Ripley, MASS)."""

FILTRATION = (45, 71, 48, 65, 68, 60, 80, 65, 43, 100, 45, 104, 75, 86, 70, 96)
"""Montgomery, Design and Analysis of Experiments, 8th edition, example 6.2, in standard order."""

SIMULATED = 400
SAMPLING_ERROR = 2.576 * math.sqrt(0.05 * 0.95 / SIMULATED)
"""Of a share of 5 % over the simulated studies, at 99 %."""


def effects_by_name(fit: Fit) -> dict[str, float]:
    """`AB` -> the estimate of the two-level factors A and B; None if it is left out."""
    return {
        "".join(name for name, _ in effect.term): effect.found and effect.found.estimate
        for effect in fit.effects
    }


def npk() -> Fit:
    observations, block = [], ""
    for word in NPK.split():
        block, word = word.split(":") if ":" in word else (block, word)
        codes, value = word.split("=")
        observations.append(
            Observation(dict(zip("NPK", map(int, codes), strict=True)), block, float(value))
        )
    return Fit(observations, dict.fromkeys("NPK", (0, 1)))


def test_a_design_in_blocks_as_in_r():
    """`summary(aov(yield ~ block + N*P*K, npk))` of R's example(npk): mean squares 189.28 (N), 8.40
    (P), 95.20 (K), 21.28 (N:P), 33.13 (N:K), 0.48 (P:K), residual 15.44 with 12 degrees; p-values
    below. A main effect of 24 values has the square 24 (effect / 2)^2, an interaction as a
    difference of differences 24 (effect / 4)^2."""
    fit = npk()
    assert fit.degrees == 12 and fit.sigma is not None
    assert fit.sigma**2 == pytest.approx(15.44, abs=0.005)
    found = effects_by_name(fit)
    squares = {name: 24 * (value / 2 ** len(name)) ** 2 for name, value in found.items()}
    assert squares == pytest.approx(
        {"N": 189.28, "P": 8.40, "K": 95.20, "NP": 21.28, "NK": 33.13, "PK": 0.48}, abs=0.006
    )
    p_values = [effect.found.p for effect in fit.effects]
    assert p_values == pytest.approx(
        [0.00437, 0.47490, 0.02880, 0.26317, 0.16865, 0.86275], abs=1e-5
    )
    assert found["N"] == pytest.approx(5.6167, abs=1e-4)  # model.tables(..., "means"): 57.68, 52.07
    half = special.stdtrit(12, (1 + 0.95 ** (1 / 6)) / 2) * fit.sigma / math.sqrt(6)  # all six hold
    assert fit.effects[0].found.high - found["N"] == pytest.approx(half)
    verdicts = [effect.verdict for effect in fit.effects]
    assert verdicts == ["better"] + ["not distinguishable"] * 5  # 6 x 0.00437 < 5 % < 5 x 0.0288


def filtration(cells) -> Fit:
    observations = [
        Observation(dict(zip("DCBA", codes, strict=True)), 0, float(value))
        for codes, value in zip(product((0, 1), repeat=4), FILTRATION, strict=True)
        if cells(sum(codes))
    ]
    return Fit(observations, dict.fromkeys("ABCD", (0, 1)))


def test_a_half_fraction_as_in_montgomery():
    """Example 8.1, I = ABCD: each pair of interactions has one estimate, which names both."""
    fit = filtration(lambda high: high % 2 == 0)
    found = effects_by_name(fit)
    assert {name: value and value / len(name) for name, value in found.items()} == pytest.approx(
        {"A": 19.0, "B": 1.5, "C": 14.0, "D": 16.5, "AB": -1.0, "AC": -18.5, "AD": 19.0,
         "BC": None, "BD": None, "CD": None}
    )  # fmt: skip
    contained = {
        tuple(name for name, _ in effect.term): [tuple(n for n, _ in a) for a in effect.aliases]
        for effect in fit.effects
    }
    assert contained[("A", "B")] == [("C", "D")] and contained[("C", "D")] == [("A", "B")]
    assert contained[("A", "D")] == [("B", "C")] and contained[("A",)] == []
    assert {effect.verdict for effect in fit.effects} == {"too few seeds", "not estimable"}


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
    same columns: coefficients and p-values."""
    observations = []
    for word in UNBALANCED.split():
        codes, value = word.split("=")
        a, b, c, seed = map(int, codes)
        observations.append(Observation({"a": a, "b": b, "c": c}, seed, float(value)))
    fit = Fit(observations, {"a": (0, 1), "b": (0, 1, 2), "c": (0, 1)})
    assert fit.degrees == 19 and fit.sigma == pytest.approx(0.042836809, abs=1e-9)
    expected = [  # a, b1, b2, c, a x b1, a x b2, a x c, b1 x c, b2 x c
        (0.068654787, 0.000533275), (0.071242678, 0.002855385), (0.152682729, 0.000000491),
        (-0.055344585, 0.002683367), (0.015129175, 0.719374109), (0.045582406, 0.283044510),
        (-0.093720518, 0.008338401), (0.008606885, 0.836326843), (-0.050179680, 0.227339142),
    ]  # fmt: skip
    assert [e.found.estimate for e in fit.effects] == pytest.approx(
        [estimate for estimate, _ in expected], abs=1e-9
    )
    assert [e.found.p for e in fit.effects] == pytest.approx([p for _, p in expected], abs=1e-9)


def test_an_illegal_cell_leaves_an_interaction_that_is_named():
    """Without the cell (1, 1), a is seen at b = 0 alone and b at a = 0 alone."""
    means = {(0, 0): 1.0, (0, 1): 2.0, (1, 0): 4.0}
    observations = [
        Observation({"a": a, "b": b}, seed, mean + [0.1, -0.2, 0.1][(seed + 2 * a + b) % 3])
        for (a, b), mean in means.items()
        for seed in range(3)
    ]
    a, b, both = Fit(observations, {"a": (0, 1), "b": (0, 1)}).effects
    assert (a.found.estimate, b.found.estimate) == pytest.approx((3.0, 1.0))
    assert both.found is None and both.verdict == "not estimable"
    assert both.aliases == (a.term, b.term)
    assert a.aliases == b.aliases == (both.term,)


def test_a_level_without_an_outcome_is_left_out():
    observations = [
        Observation({"a": a, "b": b}, seed, a + 2.0 * b + 0.1 * seed)
        for a, b, seed in product((0, 1), (0, 2), range(3))
    ]
    factors = {"a": (0, 1), "b": (0, 1, 2)}
    fit = Fit(observations, factors)
    assert fit.unseen == [("b", 1)]
    assert [effect.term for effect in fit.effects] == [
        (("a", 1),), (("b", 2),), (("a", 1), ("b", 2)),
    ]  # fmt: skip
    assert [effect.found.estimate for effect in fit.effects] == pytest.approx([1.0, 4.0, 0.0])


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
