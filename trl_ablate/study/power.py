"""What can a design find, before any run? Pure: no files."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from trl_ablate.errors import ConfigurationError
from trl_ablate.study.looks import reference_runs
from trl_ablate.study.two_part import ALPHA, FEWEST, SHARES_PART, fisher_p, spent


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
    return Power(float(differs.mean()), float(same.mean()))


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
