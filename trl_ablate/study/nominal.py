"""The nominal level of each look at a growing sample, so that all looks together keep one level.

The same smaller level at every look ("nominal", Pocock 1977) restores the total. Pocock's tables
hold for a known spread; with three pairs it is estimated from two degrees of freedom, so the level
is computed here for t statistics, without simulation:

With x_i independent and normal around 0, V_n = S_n / √Q_n, S_n the sum and Q_n the sum of squares,
is a Markov chain: V_{n+1} = V_n cos θ + sin θ, where θ has the density ∝ cos^{n-1} θ on (-π/2, π/2)
and is independent of V_n. (tan θ = x_{n+1} / √Q_n is t(n) / √n, and Q_n is independent of the
direction of the sample.) The t statistic is a function of V_n: t² = V² (n - 1) / (n - V²). So the
probability to pass all looks is a chain of one-dimensional integrals, computed backwards from the
last look, each only over the angles that pass.
"""

import functools
import math

import numpy as np
from scipy import optimize, special

GRID = 600
"""Points on [0, √n] at which the probability to pass all later looks is kept."""
NODES, FIRST_NODES = 24, 300
"""Gauss-Legendre nodes on each of the two intervals of angles that pass. The probabilities have a
kink where no angle is rejected any more; over the grid its error averages out, and the first
value, which starts from one point, has more nodes."""
FAR = 8.5
"""For large n, V_n and √n θ are near to standard normal: they are this far from 0 with 1e-17."""


@functools.cache
def nominal_level(looks: tuple[int, ...], level: float) -> float:
    """The two-sided level at each look with which all looks together reject a true null hypothesis
    with probability `level`. With one look it is `level`."""
    if len(looks) == 1:
        return level

    def excess(log_level: float) -> float:
        return math.log(error_over_looks(looks, math.exp(log_level)) / level)

    # all looks together err at least as often as one, and at most as often as their sum
    low, high = math.log(level / len(looks)), math.log(level)
    if excess(low) >= 0:  # by the error of the grid, which is coarse for few pairs and small levels
        return math.exp(low)
    return math.exp(float(np.asarray(optimize.brentq(excess, low, high, xtol=1e-6))))


def error_over_looks(looks: tuple[int, ...], nominal: float) -> float:
    """The probability that a t test over the first n pairs rejects at the nominal level at one of
    the looks n or more, if the differences are independent, normal and 0 in the mean."""
    grid, passes = _grid(looks[-1]), np.ones(GRID)
    for n in range(looks[-1] - 1, 0, -1):
        before = _grid(n) if n > 1 else np.ones(1)  # V_1 is 1 or -1
        limit = limit_of(n + 1, nominal) if n + 1 in looks else math.sqrt(n + 1)
        passes = _step_back(n, before, limit, grid, passes)
        grid = before
    return float(1 - passes[0])


def _grid(n: int) -> np.ndarray:
    return np.linspace(0.0, min(FAR, math.sqrt(n)), GRID)


def limit_of(n: int, nominal: float) -> float:
    """The |V_n| above which the t test over n values rejects."""
    t = critical_t(n, nominal)
    return t * math.sqrt(n / (n - 1 + t * t))


@functools.cache
def critical_t(n: int, nominal: float) -> float:
    return float(special.stdtrit(n - 1, 1 - nominal / 2))


_nodes = functools.cache(np.polynomial.legendre.leggauss)


def _step_back(
    n: int, before: np.ndarray, limit: float, grid: np.ndarray, passes: np.ndarray
) -> np.ndarray:
    """P(pass all looks after n | |V_n|) on the grid `before`, from the same after n + 1 values.

    V cos θ + sin θ = √(1 + V²) sin(θ + φ) with φ = atan V. So |V_{n+1}| ≤ limit holds for θ + φ
    between -a and a, and from π - a on, a = asin(limit / √(1 + V²)).
    """
    nodes, weights = _nodes(NODES if n > 1 else FIRST_NODES)
    phase, length = np.arctan(before), np.sqrt(1 + before**2)
    reach = np.arcsin(np.minimum(1.0, limit / length))
    widest = min(math.pi / 2, FAR / math.sqrt(n))
    start, end = phase - widest, phase + widest
    log_scale = special.gammaln((n + 1) / 2) - special.gammaln(n / 2) - math.log(math.pi) / 2
    found = np.zeros_like(before)
    for low, high in (
        (np.maximum(start, -reach), np.minimum(reach, end)),
        (np.maximum(np.pi - reach, start), end),
    ):
        half = np.maximum(0.0, high - low)[:, None] / 2  # 0 where no angle is left
        angle = low[:, None] + half * (nodes + 1)
        density = np.exp(log_scale) * np.cos(angle - phase[:, None]) ** (n - 1)
        later = np.interp(np.abs(length[:, None] * np.sin(angle)), grid, passes)
        found += (half * weights * density * later).sum(axis=1)
    return found
