"""Do the runs of an arm succeed as often as those of its reference, and as well? Pure: no files.

A mean over runs of which some fail describes neither kind, so a comparison has two parts:

- the share of runs that succeed: Fisher's exact test, with exact intervals (Clopper and Pearson);
- the mean over the runs that succeed: Welch's t test, and two one-sided ones for equivalence.

A run succeeds if it reaches a threshold: one that was stated beforehand, or half of what the median
run of the reference gains over the base. Runs are not paired, so that one pool of the reference's
serves all comparisons.

The level is divided, and the errors of the parts add up to it at most, whatever the outcomes have
in common: a fifth goes to the shares, the rest to the means, and of each part the share of a look
is the growth of (n / n of the last look)³, so that early looks cost little. A false "equivalent"
and a false difference exclude each other, so both may use the level of the means.

The variance between runs is never taken below `noise`², that of one run's evaluation: runs that
agree better than the evaluation can measure agree by chance.
"""

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy import special, stats

from trl_ablate.errors import ConfigurationError
from trl_ablate.study.verdict import Verdict, finite_numbers, reference_runs

LOOKS = (8, 16, 32)
ALPHA = 0.05
SHARES_PART = 0.2
"""Of the level: what the shares get."""
FEWEST, DOUBTFUL = 8, 0.2
"""Successes of each arm from which on means are compared; and no arm is equivalent whose share of
successes differs with a p-value of this or below."""


@dataclass(frozen=True)
class Shares:
    """How many runs of the arm and of the reference succeeded: successes, and runs."""

    arm: tuple[int, int]
    reference: tuple[int, int]

    @property
    def p(self) -> float:
        """Of Fisher's exact test, two-sided."""
        return fisher_p(*self.arm, *self.reference)

    @property
    def intervals(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """The exact 95 % intervals."""
        return clopper_pearson(*self.arm), clopper_pearson(*self.reference)

    @property
    def direction(self) -> Verdict:
        (k, n), (other, m) = self.arm, self.reference
        return Verdict.FAILS_MORE if k * m < other * n else Verdict.FAILS_LESS


@dataclass(frozen=True)
class Means:
    """The runs that succeed: the arm minus its reference, with its standard error."""

    difference: float
    error: float
    degrees: float

    @property
    def direction(self) -> Verdict:
        return Verdict.BETTER if self.difference > 0 else Verdict.WORSE

    @property
    def p(self) -> float:
        """Of Welch's test, two-sided."""
        return 2 * self._tail(abs(self.difference))

    def equivalence_p(self, margin: float) -> float:
        """The larger one of the two one-sided tests."""
        return self._tail(margin - abs(self.difference))

    def interval(self, level: float) -> tuple[float, float]:
        if self.error == 0:  # as for the tail
            return -math.inf, math.inf
        half = float(special.stdtrit(self.degrees, 1 - level / 2)) * self.error
        return self.difference - half, self.difference + half

    def _tail(self, distance: float) -> float:
        if self.error == 0:  # runs that do not vary at all show nothing
            return 0.5
        return float(special.stdtr(self.degrees, -distance / self.error))


@dataclass(frozen=True)
class TwoPart:
    """The verdict on one comparison, and the look that it rests on: `n` runs of the arm, or 0
    before the first; no `means` with fewer than eight successes in either arm."""

    verdict: Verdict
    n: int
    threshold: float | None = None
    shares: Shares | None = None
    means: Means | None = None
    everyone: Means | None = None
    """All runs, those that fail too. No verdict rests on it."""
    level_of_means: float = 0.0
    p_difference: float = 1.0
    """Of "no difference", over both parts and all looks so far: the smallest p-value of a test over
    its part of the level, so that it is valid for a correction over the claims of a page."""
    p_equivalent: float = 1.0
    """The same of "not equivalent"."""

    @property
    def is_final(self) -> bool:
        return self.verdict.is_final

    @property
    def p(self) -> float:
        """Of the claim that the verdict makes; of the difference where it makes none."""
        return self.p_equivalent if self.verdict is Verdict.EQUIVALENT else self.p_difference

    @property
    def interval(self) -> tuple[float, float] | None:
        """Of the difference of means, at the level of its test: it holds over all looks and all
        comparisons that share the level. Where the verdict is `equivalent`, the interval of the two
        one-sided tests, which lies in the margin."""
        sides = 2 if self.verdict is Verdict.EQUIVALENT else 1
        return self.means and self.means.interval(sides * self.level_of_means)


def judge_two_parts(
    arm: Sequence[float],
    reference: Sequence[float],
    *,
    base: float | None = None,
    threshold: float | None = None,
    looks: Sequence[int] = LOOKS,
    pool: int | None = None,
    level: float = ALPHA,
    margin: float | None = None,
    noise: float = 0.0,
) -> TwoPart:
    """Judge outcomes of an arm's runs against its reference's, each in the order of their seeds, at
    the first look that decides; higher is better.

    Args:
        base: the outcome before training, from which the threshold is found if none is given.
        threshold: the outcome from which on a run succeeds.
        looks: numbers of runs of the arm.
        pool: runs of the reference at the last look, fewer at the earlier ones in proportion;
            default: as many as the arm's.
        level: of a false claim, over parts and looks.
        margin: means within it are equivalent.
        noise: the standard error of one run's outcome as its evaluation measures it.
    """
    values = finite_numbers(arm, "outcome", "runs without one", " of the arm")
    others = finite_numbers(reference, "outcome", "runs without one", " of the reference")
    if base is None and threshold is None:
        raise ConfigurationError(
            "neither a base nor a threshold is given, so no run can succeed; give `base`, the "
            "outcome before training, or `threshold`"
        )
    found = TwoPart(Verdict.UNDECIDED, 0)
    for n, share in zip(looks, spent(tuple(looks)), strict=True):
        of = reference_runs(n, looks[-1], pool)
        if n > len(values) or of > len(others):
            return found
        limit = threshold if threshold is not None else half_way(others[:of], base or 0.0)
        found = _look(values[:n], others[:of], limit, noise, share, level, margin, found)
        if found.is_final:
            return found
    return replace(found, verdict=Verdict.NOT_DECIDED)


def _look(
    arm: Sequence[float], reference: Sequence[float], limit: float, noise: float,
    share: float, level: float, margin: float | None, before: TwoPart,
) -> TwoPart:  # fmt: skip
    """The look that has this share of the level, with the p-values over all looks so far."""
    shares, means = parts_of(arm, reference, limit, noise)
    failing, differing, same = shares.p / (SHARES_PART * share), math.inf, math.inf
    if means:
        differing = means.p / ((1 - SHARES_PART) * share)
        if margin and shares.p > DOUBTFUL:
            same = means.equivalence_p(margin) / ((1 - SHARES_PART) * share)
    verdict = Verdict.EQUIVALENT if same <= level else Verdict.UNDECIDED
    if failing <= level:
        verdict = shares.direction
    elif means and differing <= level:
        verdict = means.direction
    return TwoPart(
        verdict, len(arm), limit, shares, means,
        everyone=welch(arm, reference, noise) if min(len(arm), len(reference)) > 1 else None,
        level_of_means=level * (1 - SHARES_PART) * share,
        p_difference=min(before.p_difference, failing, differing),
        p_equivalent=min(before.p_equivalent, same),
    )  # fmt: skip


def parts_of(
    arm: Sequence[float], reference: Sequence[float], limit: float, noise: float, least=FEWEST
) -> tuple[Shares, Means | None]:
    """Both parts; no means with fewer than `least` successes in either arm."""
    good, best = ([x for x in values if x >= limit] for values in (arm, reference))
    shares = Shares((len(good), len(arm)), (len(best), len(reference)))
    return shares, welch(good, best, noise) if min(len(good), len(best)) >= least else None


def half_way(reference: Sequence[float], base: float) -> float:
    """The base plus half of what the median run of the reference gains; the base, if it gains
    nothing."""
    return base + max(0.0, statistics.median(reference) - base) / 2


def welch(arm: Sequence[float], reference: Sequence[float], noise: float = 0.0) -> Means:
    """The difference of means, its error and Satterthwaite's degrees of freedom, with no variance
    below noise²."""
    parts = [max(statistics.variance(x), noise**2) / len(x) for x in (arm, reference)]
    total, difference = sum(parts), statistics.fmean(arm) - statistics.fmean(reference)
    if total == 0:
        return Means(difference, 0.0, 1.0)
    below = sum(p**2 / (len(x) - 1) for p, x in zip(parts, (arm, reference), strict=True))
    return Means(difference, math.sqrt(total), total**2 / below)


@functools.cache
def spent(looks: tuple[int, ...]) -> tuple[float, ...]:
    """The share of the level that each look gets: 1/64, 7/64 and 56/64 for looks at 8, 16, 32."""
    reached = [0.0, *((n / looks[-1]) ** 3 for n in looks)]
    return tuple(after - before for before, after in zip(reached, reached[1:], strict=False))


@functools.cache
def fisher_p(k: int, n: int, other_k: int, other_n: int) -> float:
    """The two-sided p-value of Fisher's exact test of k in n against other_k in other_n."""
    return float(stats.fisher_exact([[k, n - k], [other_k, other_n - other_k]])[1])  # pyright: ignore


@functools.cache
def clopper_pearson(k: int, n: int) -> tuple[float, float]:
    """The exact 95 % interval of a share of k in n."""
    found = stats.binomtest(k, n).proportion_ci(0.95, method="exact")
    return found.low, found.high


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """The corrected p-values: of the claims with at most 0.05, 5 % are false on average at most
    (Benjamini and Hochberg 1995), if the tests are independent or go together."""
    return [float(p) for p in stats.false_discovery_control(np.minimum(p_values, 1.0))]


class Power(NamedTuple):
    """With which probability a design finds a true difference of the margin, or equal means
    equivalent, at its last look, if no run fails."""

    difference: float
    equivalence: float


def power_of(
    sd: float, margin: float, *, n: int, pool: int, level: float, is_paired: bool = False
) -> Power:
    """The power at one look with n and pool runs; paired, of the t test over n differences.

    Args:
        sd: between runs of either arm.
        level: of the test of the means.
    """
    degrees = n - 1 if is_paired else n + pool - 2
    shift = margin / (sd * math.sqrt(1 / n + 1 / pool))
    grid = (np.arange(2000) + 0.5) / 2000  # equally likely ratios of estimated and true deviation
    ratio = np.sqrt(2 * special.gammaincinv(degrees / 2, grid) / degrees)
    two, one = (special.stdtrit(degrees, 1 - share) * ratio for share in (level / 2, level))
    differs = special.ndtr(shift - two) + special.ndtr(-shift - two)
    same = np.maximum(0.0, 2 * special.ndtr(shift - one) - 1)
    return Power(float(differs.mean()), float(same.mean()) if n >= FEWEST else 0.0)


def level_of_means(looks: Sequence[int], comparisons: int) -> float:
    """Of the test of the means at the last look, if so many comparisons share the level."""
    return ALPHA / max(1, comparisons) * (1 - SHARES_PART) * spent(tuple(looks))[-1]


def check_decides(looks: Sequence[int], pool: int | None, comparisons: int, what: str) -> None:
    """Raise if no outcome could decide a comparison of the design."""
    last = looks[-1]
    of, share = reference_runs(last, last, pool), spent(tuple(looks))[-1]
    level = ALPHA / max(1, comparisons) * SHARES_PART * share
    least = fisher_p(0, last, of, of)
    if least > level or last < FEWEST:
        need = next(n for n in range(FEWEST, 1000) if fisher_p(0, n, n, n) <= level)
        raise ConfigurationError(
            f"{what} has {last} runs of an arm against {of} of its reference, which cannot decide "
            f"any of its {comparisons} comparisons: the smallest p-value of the exact test is "
            f"{least:.2g}, its level is {level:.2g}, and means are compared from {FEWEST} runs on; "
            f"plan {need} runs of each or more"
        )
