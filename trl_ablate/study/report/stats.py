"""Means over seeds, paired differences and verdicts. Needs only scipy.

There are few seeds, so intervals use Student's t. Arms are compared with the reference seed by
seed, so that a seed's effect on both cancels. Deliberately absent: tests on single runs, and tests
that treat evaluation questions as independent replicates of a training run.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from trl_ablate.study import decision
from trl_ablate.study.decision import EXACT, NORMAL, can_reach, decide, is_within, sign_flip_p
from trl_ablate.study.nominal import critical_t, error_over_looks
from trl_ablate.study.two_part import FEWEST, TwoPart
from trl_ablate.study.verdict import Verdict

ALPHA = 0.05
LEAST_P = 1e-9
MIN_SEEDS = 3
"""Fewest pairs of runs for a verdict: two differences show too little of the spread."""


@dataclass(frozen=True)
class Interval:
    """A mean over `n` values and its interval; no limits for n < 2, no mean for n = 0."""

    n: int
    mean: float | None
    low: float | None = None
    high: float | None = None

    @property
    def half_width(self) -> float | None:
        return None if self.low is None or self.high is None else (self.high - self.low) / 2


@dataclass(frozen=True)
class Pairs:
    """The paired differences of an arm, in the order of the seeds."""

    differences: Sequence[float]
    collapsed: Sequence[bool] = ()
    """For each pair, whether one of its runs collapsed."""
    first: int | None = None
    """Pairs before the first that is missing; None: none is missing. Looks count these alone, so
    that a verdict stays when a missing run is done later."""

    @property
    def is_mixed(self) -> bool:
        return 0 < sum(self.collapsed) < len(self.differences)

    def first_of(self, n: int | None) -> "Pairs":
        return Pairs(self.differences[:n], self.collapsed[:n])


@dataclass(frozen=True)
class Comparison:
    """An arm against the reference: the paired difference and the verdict; see `Decision`."""

    arm: str
    difference: Interval
    p: float | None
    p_corrected: float | None
    verdict: Verdict
    leans_on: str = NORMAL
    exact_p: float | None = None
    exact_disagrees: bool = False
    next_look: int | None = None
    """The number of seeds at which an undecided comparison may be decided."""
    two_part: TwoPart | None = None
    """Of runs that are not paired: `difference` is that of the runs that succeed."""
    p_values: tuple[float, float] = (1.0, 1.0)
    """Of "no difference" and "not equivalent", over all looks and for this arm alone, so that they
    are valid for a correction over the claims of a page."""

    @property
    def n(self) -> int:
        """Runs of the arm that the verdict uses."""
        return self.two_part.n if self.two_part else self.difference.n


def t_interval(values: Sequence[float]) -> Interval:
    """mean ± t(n - 1) · s / √n with the unbiased s. Equal values give an interval of width 0."""
    n = len(values)
    if n < 2:
        return Interval(n, statistics.fmean(values) if values else None)
    mean = statistics.fmean(values)
    half = critical_t(n, ALPHA) * statistics.stdev(values) / math.sqrt(n)
    return Interval(n, mean, mean - half, mean + half)


def paired_p(differences: Sequence[float]) -> float:
    """Two-sided p-value of the paired t test.

    Differences that are all equal have no noise to compare with, so p is that of their signs; if
    they are 0 (two names of one run), p = 1.
    """
    if decision.is_flat(differences):
        return sign_flip_p(differences)
    spread, mean = statistics.stdev(differences), statistics.fmean(differences)
    t = abs(mean) / (spread / math.sqrt(len(differences)))
    return float(2 * special.stdtr(len(differences) - 1, -t))


def p_over_looks(
    pairs: Pairs, margin: float | None, exact: float | None, looks: Sequence[int] = ()
) -> tuple[float, float]:
    """The p-values of a difference and of equivalence; without looks, of one look."""
    values, n = pairs.differences, len(pairs.differences)

    def over_looks(p: float) -> float:
        if len(looks) < 2:
            return p
        return min(len(looks) * p, error_over_looks(tuple(looks), min(1.0, max(LEAST_P, p))))

    if n < (2 if looks else MIN_SEEDS):
        return 1.0, 1.0
    differs = over_looks(_p(pairs, exact))
    if margin is None or pairs.is_mixed or n < FEWEST:
        return differs, 1.0
    error = statistics.stdev(values) / math.sqrt(n)
    distance = margin - abs(statistics.fmean(values))
    beyond = float(special.stdtr(n - 1, -distance / error)) if error else float(distance <= 0)
    return differs, over_looks(2 * beyond) / 2


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction: the k-th smallest of m is multiplied by m - k + 1, and
    the result is made monotone."""
    p, factors = np.array(p_values, float), np.arange(len(p_values), 0, -1)
    order = np.argsort(p, kind="stable")
    p[order] = np.minimum(1.0, np.maximum.accumulate(factors * p[order]))
    return p.tolist()


def pairs_of(
    reference: Sequence[float | None], arm: Sequence[float | None], collapsed: Sequence[bool] = ()
) -> Pairs:
    """The differences of values in the order of the seeds, higher is better; None is a run without
    an outcome, and its pair is skipped."""
    both = {
        position: b - a
        for position, (a, b) in enumerate(zip(reference, arm, strict=True))
        if a is not None and b is not None
    }
    missing = next((i for i, position in enumerate(both) if i != position), None)
    flags = [bool(collapsed and collapsed[position]) for position in both]
    return Pairs([*both.values()], flags, missing)


def judge(arms: Mapping[str, Pairs], margin: float | None = None) -> dict[str, Comparison]:
    """The verdicts over all pairs. Holm's correction is over all arms with enough of them, whatever
    their references."""
    enough = {name: of for name, of in arms.items() if len(of.differences) >= MIN_SEEDS}
    flips = {
        name: sign_flip_p(of.differences)
        for name, of in arms.items()
        if can_reach(len(of.differences), ALPHA, mixed=of.is_mixed)
    }
    p = {name: _p(of, flips.get(name)) for name, of in enough.items()}
    corrected = dict(zip(p, holm([*p.values()]), strict=True))
    level, found = ALPHA / max(1, len(p)), {}
    for name, pairs in arms.items():
        exact, mixed = flips.get(name), pairs.is_mixed
        differs = corrected.get(name, 1.0) < ALPHA
        confirmed = not mixed if exact is None else exact <= ALPHA
        verdict = Verdict.SAME if name in enough else Verdict.TOO_FEW
        if differs and confirmed:
            is_better = statistics.fmean(pairs.differences) > 0
            verdict = Verdict.BETTER if is_better else Verdict.WORSE
        elif name in enough and margin is not None and not (differs or mixed):
            within = is_within(pairs.differences, level, margin)
            verdict = Verdict.EQUIVALENT if within else verdict
        found[name] = Comparison(
            name, interval_of(pairs.differences), p.get(name), corrected.get(name), verdict,
            NORMAL if exact is None and not mixed else EXACT, exact, differs and not confirmed,
            p_values=p_over_looks(pairs, margin, exact),
        )  # fmt: skip
    return found


def interval_of(differences: Sequence[float]) -> Interval:
    """The t interval; without limits where the differences are equal and too few to differ."""
    found = t_interval(differences)
    is_open = found.n and math.isinf(decision.half_width(differences, ALPHA)[1])
    return Interval(found.n, found.mean) if is_open else found


def _p(pairs: Pairs, exact: float | None) -> float:
    """Of the t test; where some pairs collapsed and others did not, of the sign-flip test, if the
    pairs are enough for it."""
    return exact if pairs.is_mixed and exact is not None else paired_p(pairs.differences)


def judge_at_looks(
    arms: Mapping[str, Pairs], looks: Sequence[int], margin: float | None = None
) -> dict[str, Comparison]:
    """The verdicts at planned looks; the comparisons share the level."""
    level, compared = ALPHA / max(1, len(arms)), {}
    for name, pairs in arms.items():
        whole = pairs.first_of(pairs.first)
        found = decide(
            whole.differences, looks=looks, level=level, margin=margin, collapsed=whole.collapsed
        )
        compared[name] = Comparison(
            name, Interval(found.n, found.difference, found.low, found.high), None, None,
            found.verdict,
            found.leans_on, found.exact_p, found.exact_disagrees,
            next_look=None if found.is_final else next((n for n in looks if n > found.n), None),
            p_values=p_over_looks(whole.first_of(found.n), margin, found.exact_p, looks),
        )  # fmt: skip
    return compared
