"""Do the runs of an arm succeed as often as those of its reference, and as well? Pure: no files.

A mean over runs of which some fail describes neither kind, so a comparison has two parts:

- the share of runs that succeed: Fisher's exact test, with exact intervals (Clopper and Pearson);
- the mean over the runs that succeed: Welch's t test, and two one-sided ones for equivalence.

A run succeeds if it reaches a threshold: one that was stated beforehand, or half of what the median
run of the reference gains over the base. Runs are not paired, so the reference may have more runs
than the arm, and one pool of them serves all comparisons.

The level is divided, and the errors of the parts add up to the level at most, whatever the outcomes
have in common: a fifth goes to the shares, the rest to the means, and of each part the share of a
look is the growth of (n / n of the last look)³, so that early looks cost little. No step of this
needs more than that each single test keeps its level. A false "equivalent" and a false difference
exclude each other, so both may use the level of the means.

The variance between runs is never taken below `noise`², that of one run's evaluation: a few
runs that agree better than the evaluation can measure agree by chance. Means are compared only
over eight successes in either arm.
"""

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import special, stats

from trl_ablate.errors import ConfigurationError
from trl_ablate.study.verdict import Verdict, finite_numbers, reference_runs

LOOKS = (8, 16, 32)
ALPHA = 0.05
SHARES_PART = 0.2
"""Of the level: what the shares get."""
FEWEST = 8
"""Successes of each arm from which on means are compared."""
DOUBTFUL = 0.2
"""No arm is equivalent whose share of successes differs with a p-value below this."""


@dataclass(frozen=True)
class Shares:
    """How many runs of the arm and of the reference succeeded."""

    arm: tuple[int, int]
    """Successes, and runs."""
    reference: tuple[int, int]
    p: float
    """Of Fisher's exact test, two-sided."""

    @property
    def intervals(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """The exact 95 % intervals."""
        return clopper_pearson(*self.arm), clopper_pearson(*self.reference)


@dataclass(frozen=True)
class Means:
    """The runs that succeed: the arm minus its reference."""

    difference: float
    error: float
    """The standard error of the difference."""
    degrees: float

    @property
    def p(self) -> float:
        """Of Welch's test, two-sided."""
        return 2 * self._tail(abs(self.difference))

    def equivalence_p(self, margin: float) -> float:
        """The larger one of the two one-sided tests."""
        return self._tail(margin - abs(self.difference))

    def interval(self, level: float) -> tuple[float, float]:
        half = float(special.stdtrit(self.degrees, 1 - level / 2)) * self.error
        return self.difference - half, self.difference + half

    def _tail(self, distance: float) -> float:
        if self.error == 0:  # runs that do not vary at all show nothing
            return 0.5
        return float(special.stdtr(self.degrees, -distance / self.error))


@dataclass(frozen=True)
class TwoPart:
    """The verdict on one comparison, and the look that it rests on."""

    verdict: Verdict
    n: int
    """Runs of the arm at this look; 0 before the first."""
    threshold: float | None = None
    shares: Shares | None = None
    means: Means | None = None
    """None with fewer than eight successes in either arm."""
    everyone: Means | None = None
    """All runs, those that fail too. No verdict rests on it."""
    levels: tuple[float, float] = (0.0, 0.0)
    """Of the shares and of the means, at this look."""
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
        return self.means and self.means.interval(sides * self.levels[1])


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
    """Judge an arm against its reference, at the first look that decides; higher is better.

    Args:
        arm, reference: the outcomes of the runs, in the order of their seeds.
        base: the outcome before training, from which the threshold is found if none is given.
        threshold: the outcome from which on a run succeeds.
        looks: numbers of runs of the arm.
        pool: runs of the reference at the last look, fewer at the earlier ones in proportion;
            default: as many as the arm's.
        level: of a false claim, over parts and looks.
        margin: means within it are equivalent.
        noise: the standard error of one run's outcome as its evaluation measures it.
    """
    values, others = (
        finite_numbers(outcomes, "outcome", "runs without one", f" of the {name}")
        for name, outcomes in (("arm", arm), ("reference", reference))
    )
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
        levels = (level * SHARES_PART * share, level * (1 - SHARES_PART) * share)
        seen = _look(values[:n], others[:of], limit, levels, margin, noise)
        found = _with_p(seen, found, share, margin)
        if found.is_final:
            return found
    return replace(found, verdict=Verdict.NOT_DECIDED)


def _look(
    arm: Sequence[float],
    reference: Sequence[float],
    threshold: float,
    levels: tuple[float, float],
    margin: float | None,
    noise: float,
) -> TwoPart:
    good, best = ([x for x in values if x >= threshold] for values in (arm, reference))
    counts = (len(good), len(arm)), (len(best), len(reference))
    shares = Shares(*counts, fisher_p(*counts[0], *counts[1]))
    means = welch(good, best, noise) if min(len(good), len(best)) >= FEWEST else None
    everyone = welch(arm, reference, noise) if min(len(arm), len(reference)) > 1 else None
    verdict = Verdict.UNDECIDED
    if shares.p <= levels[0]:
        fewer = len(good) * len(reference) < len(best) * len(arm)
        verdict = Verdict.FAILS_MORE if fewer else Verdict.FAILS_LESS
    elif means and means.p <= levels[1]:
        verdict = Verdict.BETTER if means.difference > 0 else Verdict.WORSE
    elif means and margin and shares.p > DOUBTFUL and means.equivalence_p(margin) <= levels[1]:
        verdict = Verdict.EQUIVALENT
    return TwoPart(verdict, len(arm), threshold, shares, means, everyone, levels)


def _with_p(seen: TwoPart, before: TwoPart, share: float, margin: float | None) -> TwoPart:
    """The look with the p-values over all looks so far."""
    differs, same = [before.p_difference], [before.p_equivalent]
    if seen.shares:
        differs.append(seen.shares.p / (SHARES_PART * share))
    if seen.means:
        differs.append(seen.means.p / ((1 - SHARES_PART) * share))
        if margin and seen.shares and seen.shares.p > DOUBTFUL:
            same.append(seen.means.equivalence_p(margin) / ((1 - SHARES_PART) * share))
    return replace(seen, p_difference=min(differs), p_equivalent=min(same))


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
def clopper_pearson(k: int, n: int, level: float = 0.05) -> tuple[float, float]:
    """The exact interval of a share of k in n."""
    found = stats.binomtest(k, n).proportion_ci(1 - level, method="exact")
    return found.low, found.high


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """The corrected p-values: of the claims with at most 0.05, 5 % are false on average at most
    (Benjamini and Hochberg 1995), if the tests are independent or go together."""
    return [float(p) for p in stats.false_discovery_control(np.minimum(p_values, 1.0))]


@dataclass(frozen=True)
class Power:
    """What a design finds at its last look, if no run fails."""

    difference: float
    """The probability that a true difference of the margin is found."""
    equivalence: float
    """The probability that arms with equal means are found equivalent."""


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


def level_of_means(looks: Sequence[int], comparisons: int, level: float = ALPHA) -> float:
    """Of the test of the means at the last look, if so many comparisons share the level."""
    return level / max(1, comparisons) * (1 - SHARES_PART) * spent(tuple(looks))[-1]


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
