"""Pooling against published worked examples, and against what chance does."""

import math

import pytest

from trl_ablate.study.pooling import pool_means, pool_shares
from trl_ablate.study.two_part import Means, Shares, welch

RABBITS = [(0, 6, 0, 5), (3, 3, 0, 6), (6, 0, 2, 4), (5, 1, 6, 0), (2, 0, 5, 0)]
"""Cured and died without and with delay, by the level of penicillin: Mantel (1963), the example of
R's `mantelhaen.test`, whose exact test has p = 0.03994 and an odds ratio of 10.36102."""

BCG = [
    (4, 119, 11, 128), (6, 300, 29, 274), (3, 228, 11, 209), (62, 13536, 248, 12619),
    (33, 5036, 47, 5761), (180, 1361, 372, 1079), (8, 2537, 10, 619), (505, 87886, 499, 87892),
    (29, 7470, 45, 7232), (17, 1699, 65, 1600), (186, 50448, 141, 27197), (5, 2493, 3, 2338),
    (27, 16886, 29, 17825),
]  # fmt: skip
"""Tuberculosis with and without vaccine: Colditz et al. (1994), the example of R's metafor."""


def pooled_shares(tables):
    return pool_shares([Shares((a, a + b), (c, c + d)) for a, b, c, d in tables])


def test_success_as_in_r():
    found = pooled_shares(RABBITS)
    assert found.p == pytest.approx(0.03994, abs=5e-6)
    assert found.odds_ratio == pytest.approx(10.36102, abs=1e-4)
    assert found.low < 1.1 and found.high == pytest.approx(530, abs=3)
    mirrored = pooled_shares([(c, d, a, b) for a, b, c, d in RABBITS])
    assert mirrored.p == pytest.approx(found.p)
    assert mirrored.low == pytest.approx(1 / found.high)


def test_groups_without_failures_say_nothing_on_success():
    assert pooled_shares([(4, 0, 4, 0), (3, 0, 5, 0)]) is None
    assert pooled_shares([*RABBITS, (4, 0, 4, 0)]) == pooled_shares(RABBITS)
    only = pooled_shares([(0, 4, 4, 0), (0, 4, 4, 0)])
    assert (only.odds_ratio, only.low) == (0.0, 0.0) and only.high < 0.3


def test_means_as_in_statsmodels():
    """statsmodels 0.15, combine_effects(method_re="iterated", use_t=True): the row "random effect
    wls", tau2 and i2."""
    risk_ratios = []
    for a, b, c, d in BCG:
        error = math.sqrt(1 / a - 1 / (a + b) + 1 / c - 1 / (c + d))
        risk_ratios.append(Means(math.log(a / (a + b)) - math.log(c / (c + d)), error, 9.0))
    found = pool_means(risk_ratios)
    assert found.difference == pytest.approx(-0.714968, abs=1e-6)
    assert (found.low, found.high) == pytest.approx((-1.109098, -0.320838), abs=1e-6)
    assert found.tau**2 == pytest.approx(0.31806845, abs=1e-7)
    assert found.i_squared == pytest.approx(0.92117347, abs=1e-7)
    # metafor's predict(rma(yi, vi, method="PM", test="knha")) by its formula
    half = 2.178813 * math.sqrt(0.31806845 + 0.180892**2)
    assert found.predicted == pytest.approx((-0.714968 - half, -0.714968 + half), abs=1e-5)


def test_groups_that_agree_are_not_more_certain_than_their_runs():
    alike = Means(0.1, 0.02, 9.0)
    found = pool_means([alike, alike])
    assert (found.tau, found.i_squared) == (0.0, 0.0)
    assert found.high - found.difference == pytest.approx(12.7062 * 0.02 / math.sqrt(2), rel=1e-4)
    assert pool_means([alike]) is None
    assert pool_means([welch([0.95] * 3, [0.7] * 3), alike]) is None  # runs without any error
