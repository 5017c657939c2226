"""What do several groups say together, of which each compared the same arms? Pure: no files.

- Success, by the exact conditional test of Cochran, Mantel and Haenszel: given the margins of every
  group's table, the successes of the arm are a sum of hypergeometric variables if there is no
  difference; with a common odds ratio, each outcome s is weighted by ratio^s.
- Means, by a random-effects model: the true differences of the groups vary by tau² (Paule and
  Mandel 1982), and the interval of their mean is Hartung and Knapp's, whose error is not taken
  below that of the plain model (Röver, Knapp and Friede 2015): two groups that agree by chance
  would otherwise have next to none. A new group's true difference lies in the prediction interval.

With two groups both intervals have one degree of freedom, and are as wide as that deserves.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize, special, stats

from trl_ablate.study.two_part import ALPHA, Means, Shares

TIED = 1 + 1e-7
"""Outcomes count as equally likely up to this factor, as in R's tests."""


@dataclass(frozen=True)
class PooledShares:
    """The arm's odds of success over the reference's, common to all groups."""

    p: float
    """Two-sided: all outcomes that are at most as likely as the one seen."""
    odds_ratio: float
    """The most likely one; 0 or infinite at the ends of what the margins allow."""
    low: float
    high: float


@dataclass(frozen=True)
class PooledMeans:
    """The mean over groups of the true differences."""

    difference: float
    low: float
    high: float
    p: float
    tau: float
    """The standard deviation of the true differences between groups."""
    i_squared: float
    """The share of the variance of the seen differences that is between groups."""
    predicted: tuple[float, float]
    """Where the true difference of a new group lies, with 95 %."""


def pool_shares(groups: Sequence[Shares]) -> PooledShares | None:
    """None if no outcome but the one seen was possible: nobody failed, or everybody did."""
    seen = sum(group.arm[0] for group in groups)
    least, chances = 0, np.ones(1)
    for group in groups:
        (k, n), (other, m) = group.arm, group.reference
        low, high = max(0, k + other - m), min(n, k + other)
        hypergeometric = stats.hypergeom.pmf(np.arange(low, high + 1), n + m, k + other, n)
        least, chances = least + low, np.convolve(chances, hypergeometric)
    if len(chances) == 1:
        return None
    outcomes, place = np.arange(len(chances)), seen - least

    def solved(excess: Callable[[np.ndarray], float]) -> float:
        """The ratio at which the excess, which grows or falls with it, is 0."""

        def at(log_ratio: float) -> float:
            logs = np.log(np.maximum(chances, 1e-300)) + outcomes * log_ratio
            return excess(special.softmax(logs))

        return math.exp(_root(at, -50.0, 50.0))

    ratio, low, high = 0.0, 0.0, math.inf
    if place > 0:
        low = solved(lambda w: w[place:].sum() - ALPHA / 2)
        ratio = math.inf
    if place < len(chances) - 1:
        high = solved(lambda w: w[: place + 1].sum() - ALPHA / 2)
        ratio = solved(lambda w: float(w @ outcomes) - place) if place > 0 else 0.0
    p = float(chances[chances <= chances[place] * TIED].sum())
    return PooledShares(p, ratio, low, high)


def pool_means(groups: Sequence[Means]) -> PooledMeans | None:
    """None with fewer than two groups, or with one whose runs do not differ at all."""
    seen = np.array([group.difference for group in groups])
    variances = np.array([group.error**2 for group in groups])
    degrees = len(groups) - 1
    if degrees < 1 or not variances.all():
        return None

    def spread(tau_squared: float) -> tuple[float, float, float]:
        """Cochran's Q, the mean and the sum of the weights."""
        weights = 1 / (variances + tau_squared)
        mean = float(weights @ seen / weights.sum())
        return float(weights @ (seen - mean) ** 2), mean, float(weights.sum())

    fixed, *_ = spread(0.0)
    top = float(np.ptp(seen)) ** 2 * len(groups) + 1e-12
    between = _root(lambda tau: spread(tau)[0] - degrees, 0.0, top) if fixed > degrees else 0.0
    q, mean, total = spread(between)
    error = math.sqrt(max(1.0, q / degrees) / total)
    reach = float(special.stdtrit(degrees, 1 - ALPHA / 2))
    wide = reach * math.hypot(error, math.sqrt(between))
    return PooledMeans(
        difference=mean,
        low=mean - reach * error,
        high=mean + reach * error,
        p=float(2 * special.stdtr(degrees, -abs(mean) / error)),
        tau=math.sqrt(between),
        i_squared=max(0.0, 1 - degrees / fixed) if fixed else 0.0,
        predicted=(mean - wide, mean + wide),
    )


def _root(excess: Callable[[float], float], low: float, high: float) -> float:
    return float(np.asarray(optimize.brentq(excess, low, high, full_output=False)))
