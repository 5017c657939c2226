"""One comparison, judged at planned looks at a growing number of seeds. Pure: no files, no torch.

At each look the paired t test over the first n pairs is made at a nominal level (`nominal`) with
which all looks together keep the level that was asked for. A verdict is final at the first look
that reaches it: later pairs never change it. Equivalence within a margin is two one-sided t tests
at the same nominal level, where there is no difference to report: a false one needs the test on one
side to err, so it is no more frequent than a false difference.

With few pairs a verdict leans on near-normal differences. From the number of pairs at which an
exact sign-flip test can reach the nominal level, that test has to agree. Where some pairs have a
collapsed run and others do not, differences are not near to normal, and the sign-flip test decides
alone. It needs no more than symmetry, which differences of two arms with the same outcomes have.

Several comparisons of one study share the level (`level / m`, Bonferroni): however arms correlate
and seeds are chosen, the errors add up to the level at most. Holm's step would give a decided arm's
share to the others; with equivalence as a second way to be decided, their sum is then no longer
bounded, so it is left out.

Runs that are not paired, of which some fail, are judged in two parts: see `two_part`.
"""

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np

from trl_ablate.errors import ConfigurationError
from trl_ablate.study.nominal import critical_t, nominal_level
from trl_ablate.study.two_part import FEWEST, TwoPart, judge_two_parts
from trl_ablate.study.two_part import LOOKS as TWO_PART_LOOKS
from trl_ablate.study.verdict import LOOKS, Verdict, check_looks, check_margin, finite_numbers

LEVEL = 0.05
MOST_FLIPPED = 30
"""Pairs up to which all sign flips are counted; with more, the t test leans on little, and where
some pairs collapsed, flips are drawn."""
DRAWN = 2**16 - 1
ROUNDING = 1e-9
NORMAL, EXACT = "near-normal differences", "an exact sign-flip test"


@dataclass(frozen=True)
class Decision:
    """The verdict on one comparison, at the first look at which it is final, else at the last one
    that is complete: over n pairs, or 0."""

    verdict: Verdict
    n: int
    difference: float | None
    """The mean over these pairs; None without a look."""
    low: float | None
    high: float | None
    """The t interval at the nominal level: over all looks it covers with 1 - level. Where the
    verdict is `equivalent`, the interval of the two one-sided tests, which lies in the margin."""
    nominal_level: float
    exact_p: float | None = None
    """Of the sign-flip test; None if the pairs are too few to reach the level."""
    exact_disagrees: bool = False
    """Whether the t test found a difference that the sign-flip test did not confirm."""
    is_mixed: bool = False
    """Whether some of these pairs, and not all, have a collapsed run."""

    @property
    def leans_on(self) -> str:
        """The assumption behind the verdict."""
        return NORMAL if self.exact_p is None and not self.is_mixed else EXACT

    @property
    def is_final(self) -> bool:
        return self.verdict.is_final


@overload
def decide(differences: Sequence[float], **how: Any) -> Decision: ...


@overload
def decide(*, arm: Sequence[float], reference: Sequence[float], **how: Any) -> TwoPart: ...


def decide(
    differences: Sequence[float] | None = None,
    *,
    looks: Sequence[int] | None = None,
    level: float = LEVEL,
    margin: float | None = None,
    collapsed: Sequence[bool] = (),
    **two_part: Any,
) -> Decision | TwoPart:
    """Judge paired differences (arm minus reference, in the order of the seeds; higher is better),
    or an arm against a reference whose runs are not paired with its own.

    Args:
        differences: as many as there are; only those up to the last complete look count.
        two_part: in place of differences: see `two_part.judge_two_parts`.
        looks: numbers of pairs at which a verdict may be given, ascending.
        level: the probability of a false difference over all looks.
        margin: differences within ±margin count as equivalent; None: no such verdict.
        collapsed: for each pair, whether one of its runs collapsed; default: none did.

    Raises `ConfigurationError` for looks, levels, margins or differences that are none. Differences
    that are all equal have no spread: a mean of 0 is no difference, and any other is one where so
    many equal signs have a p-value as small as the level.
    """
    unpaired = differences is None
    usual = TWO_PART_LOOKS if unpaired else LOOKS
    planned = check_looks(usual if looks is None else looks, "looks")
    if not 0 < level < 1:
        raise ConfigurationError(f"level is {level}; allowed: between 0 and 1, such as 0.05")
    if margin is not None:
        check_margin(margin, "margin")
    if unpaired:
        return judge_two_parts(looks=planned, level=level, margin=margin, **two_part)
    if two_part:
        raise ConfigurationError(f"with differences, decide takes no {', '.join(two_part)}")
    values = finite_numbers(differences, "difference", "pairs without an outcome")
    nominal = nominal_level(planned, level)
    found = Decision(Verdict.UNDECIDED, 0, None, None, None, nominal)
    for n in planned:
        if n > len(values):
            return found
        mixed = 0 < sum(collapsed[:n]) < n
        found = _look(values[:n], nominal, margin, mixed=mixed, last=n == planned[-1])
        if found.is_final:
            break
    return found


def _look(
    values: Sequence[float], nominal: float, margin: float | None, *, mixed: bool, last: bool
) -> Decision:
    n = len(values)
    mean, half = half_width(values, nominal)
    differs = half < abs(mean)
    exact = sign_flip_p(values) if can_reach(n, nominal, mixed=mixed) else None
    confirmed = not mixed if exact is None else exact <= nominal
    verdict = Verdict.NOT_DECIDED if last else Verdict.UNDECIDED
    if confirmed and (differs or mixed):
        verdict = Verdict.BETTER if mean > 0 else Verdict.WORSE
    elif not differs and not mixed and margin is not None and is_within(values, nominal, margin):
        verdict = Verdict.EQUIVALENT
        half = half_width(values, 2 * nominal)[1]
    limits = (mean - half, mean + half) if math.isfinite(half) else (None, None)
    return Decision(
        verdict, n, mean, *limits, nominal, exact,
        exact_disagrees=differs and not confirmed, is_mixed=mixed,
    )  # fmt: skip


def half_width(values: Sequence[float], level: float) -> tuple[float, float]:
    """The mean, and half the width of its t interval at 1 - level; infinite for equal values whose
    signs alone do not reach the level."""
    mean, n = statistics.fmean(values), len(values)
    if is_flat(values):
        return values[0], 0.0 if not mean or sign_flip_p(values) <= level else math.inf
    spread = math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1))
    return mean, critical_t(n, level) * spread / math.sqrt(n)


def is_flat(values: Sequence[float]) -> bool:
    """Whether they are equal but for rounding. Outcomes that are shares of few questions often are
    by chance, so that a t test would find a difference where there is none."""
    return max(values) - min(values) <= ROUNDING * max(map(abs, values))


def is_within(values: Sequence[float], level: float, margin: float) -> bool:
    """Two one-sided tests at the level: the interval at 1 - 2 * level lies inside the margin. Never
    below eight pairs: few differences may agree by chance far better than runs do."""
    mean, half = half_width(values, 2 * level)
    return len(values) >= FEWEST and abs(mean) + half < margin


def can_reach(n: int, level: float, *, mixed: bool = False) -> bool:
    """Whether the two-sided sign-flip test over n pairs has a p-value as small as the level: from
    six pairs on for 5 %, from eight on for 1 %. Its smallest one is 2 / 2^n. Above `MOST_FLIPPED`
    only mixed pairs need it."""
    if n > MOST_FLIPPED:
        return mixed and level >= 1 / (1 + DRAWN)
    return 2.0 ** (1 - n) <= level


def sign_flip_p(values: Sequence[float]) -> float:
    """The two-sided p-value of the mean under independent flips of the signs.

    Valid for differences that are symmetric around 0, as those of two arms with the same
    distribution are, whatever it is. The 2^n sums are counted in two halves; of more than
    `MOST_FLIPPED` values as many are drawn as give a valid p-value, always the same.
    """
    numbers = np.abs(np.asarray(values, dtype=float))
    observed = abs(math.fsum(values))
    limit = observed - 1e-6 * float(numbers.sum())  # equal but for rounding, to float32 too, counts
    if len(numbers) > MOST_FLIPPED:
        return _drawn_p(numbers, limit)
    half = len(numbers) // 2
    first, second = (_signs(len(part)) @ part for part in (numbers[:half], numbers[half:]))
    second = np.sort(second)
    above = len(second) - np.searchsorted(second, limit - first, side="left")
    below = np.searchsorted(second, -limit - first, side="right")
    return min(1.0, float(above.sum() + below.sum()) / 2 ** len(numbers))


def _drawn_p(numbers: np.ndarray, limit: float) -> float:
    """(1 + sums as far from 0) / (1 + sums), valid at every level (Phipson and Smyth 2010)."""
    rng, far, parts = np.random.default_rng(0), 0, 255
    for _ in range(parts):
        signs = 1.0 - 2.0 * rng.integers(0, 2, (DRAWN // parts, len(numbers)))
        far += int((np.abs(signs @ numbers) >= limit).sum())
    return (1 + far) / (1 + DRAWN)


@functools.cache
def _signs(n: int) -> np.ndarray:
    """All 2^n rows of n signs."""
    return 1.0 - 2.0 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1)
