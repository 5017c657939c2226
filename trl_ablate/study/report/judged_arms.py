"""How often does each arm of anybody's runs succeed, and how well do those runs end?

The statistics are those of `two_part` at one look: a fifth of the level for the shares, the rest
for the means, Holm's correction over the arms of a group. Foreign logs have few runs, so means are
compared from three successes on, not eight; such a verdict leans on bell-shaped outcomes.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from scipy import special

from trl_ablate.errors import ConfigurationError
from trl_ablate.study.pooling import PooledMeans, PooledShares, pool_means, pool_shares
from trl_ablate.study.report.curves import Run
from trl_ablate.study.report.stats import ALPHA, MIN_SEEDS, Interval, holm, t_interval
from trl_ablate.study.two_part import (
    DOUBTFUL,
    SHARES_PART,
    Means,
    Shares,
    clopper_pearson,
    fisher_p,
    half_way,
    welch,
)
from trl_ablate.study.verdict import Verdict

MOST_RUNS = 1000
"""More runs of an arm than this are not worth naming."""
POWER = 0.8
"""With which the runs that are said to be needed decide."""


@dataclass(frozen=True)
class Rules:
    """What counts as success, and what as a difference."""

    base: float | None = None
    """The outcome before training; None: the median of the runs at step 0, or 0."""
    threshold: float | None = None
    """From which on a run succeeds; None: the base plus half of the reference's median gain."""
    margin: float | None = None
    questions: int | None = None
    """Of one evaluation, if the outcome is a share of them: runs vary at least as much as it."""


@dataclass(frozen=True)
class Judged:
    """One arm of one group."""

    arm: str
    values: tuple[float, ...]
    threshold: float
    share: tuple[float, float]
    """The exact 95 % interval of the share of successes."""
    against: str | None = None
    """The reference; None for the reference itself."""
    shares: Shares | None = None
    means: Means | None = None
    p: float | None = None
    """Of "no difference", over both parts and all arms of the group."""
    verdict: Verdict | None = None
    needed: int | None = None
    """About how many runs of each would decide, if what was seen is true; None: it is decided, has
    fewer than three runs, or needs more than a thousand."""

    @property
    def successes(self) -> list[float]:
        return [value for value in self.values if value >= self.threshold]

    @property
    def mean(self) -> Interval:
        """Over the runs that succeed."""
        return t_interval(self.successes)


@dataclass(frozen=True)
class Pooled:
    """One arm over the groups that have it and its reference."""

    arm: str
    groups: tuple[str, ...]
    shares: tuple[Shares, ...]
    odds: PooledShares | None
    means: PooledMeans | None
    without: Mapping[str, tuple[PooledShares | None, PooledMeans | None]]
    """Group -> the same without it, of three groups or more that have it."""


@dataclass(frozen=True)
class Judgement:
    """All arms of all groups, each with its reference first."""

    metric: str
    reference: str
    groups: dict[str, list[Judged]]
    bases: dict[str, float] | None
    """Outcomes before training, from which the thresholds follow; None: the user stated one."""
    pooled: list[Pooled]


def judge_runs(runs: Sequence[Run], metric: str, reference: str | None, rules: Rules) -> Judgement:
    """Judge every arm against the reference, by default the first arm; in a group without it,
    against the group's first arm."""
    known = [run for run in runs if run.series.get(metric)]
    arms = list(dict.fromkeys(run.arm for run in known))
    over = [run for run in known if rules.questions and not 0 <= run.series[metric].values[-1] <= 1]
    if over:
        raise ConfigurationError(
            f"--questions is for shares between 0 and 1, and a run of '{over[0].arm}' ends at "
            f"{over[0].series[metric].values[-1]:g}; give shares, or leave the option out"
        )
    chosen = reference or arms[0]
    if chosen not in arms:
        raise ConfigurationError(f"--reference is '{chosen}'; the arms are {', '.join(arms)[:300]}")
    groups: dict[str, list[Run]] = {}
    for run in known:
        groups.setdefault(run.group or "", []).append(run)
    bases = {name: _base(found, metric, rules) for name, found in groups.items()}
    judged = {
        name: _judged(_finals(found, metric), chosen, bases[name], rules)
        for name, found in groups.items()
    }
    stated = rules.threshold is not None
    return Judgement(metric, chosen, judged, None if stated else bases, _pooled(judged, chosen))


def _base(runs: Sequence[Run], metric: str, rules: Rules) -> float:
    if rules.base is not None:
        return rules.base
    curves = [run.series[metric] for run in runs]
    first = [curve.values[0] for curve in curves if len(curve.steps) > 1 and curve.steps[0] == 0]
    return statistics.median(first) if first else 0.0


def _finals(runs: Sequence[Run], metric: str) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for run in runs:
        found.setdefault(run.arm, []).append(run.series[metric].values[-1])
    return found


def _judged(
    finals: Mapping[str, list[float]], reference: str, base: float, rules: Rules
) -> list[Judged]:
    """The arms of one group, the reference first."""
    reference = reference if reference in finals else next(iter(finals))
    others, limit = finals[reference], rules.threshold
    if limit is None:
        limit = half_way(others, base)
    best = [value for value in others if value >= limit]
    found = []
    for arm in sorted(finals, key=lambda arm: arm != reference):
        values = finals[arm]
        good = [value for value in values if value >= limit]
        one = Judged(arm, tuple(values), limit, clopper_pearson(len(good), len(values)))
        if arm != reference:
            counts = (len(good), len(values)), (len(best), len(others))
            enough = min(len(good), len(best)) >= MIN_SEEDS
            noise = _noise([*good, *best], rules.questions)
            shares = Shares(*counts, fisher_p(*counts[0], *counts[1]))
            means = welch(good, best, noise) if enough else None
            one = replace(one, against=reference, shares=shares, means=means)
        found.append(one)
    return _decided(found, rules.margin)


def _noise(values: Sequence[float], questions: int | None) -> float:
    if not questions or not values:
        return 0.0
    share = statistics.fmean(values)
    return math.sqrt(share * (1 - share) / questions)


def _decided(arms: list[Judged], margin: float | None) -> list[Judged]:
    compared = [one for one in arms if one.shares]
    level = ALPHA / max(1, len(compared))
    found = [one for one in arms if not one.shares]
    for one, p in zip(compared, holm([_p(one) for one in compared]), strict=True):
        verdict = _verdict(one, p, margin, level)
        needed = _needed(one, arms[0], level) if verdict is Verdict.SAME else None
        found.append(replace(one, p=p, verdict=verdict, needed=needed))
    return found


def _p(one: Judged) -> float:
    parts = [one.shares.p / SHARES_PART]
    if one.means:
        parts.append(one.means.p / (1 - SHARES_PART))
    return min(1.0, *parts)


def _verdict(one: Judged, p: float, margin: float | None, level: float) -> Verdict:
    (k, n), (other, m) = one.shares.arm, one.shares.reference
    if min(n, m) < MIN_SEEDS:
        return Verdict.TOO_FEW
    if p <= ALPHA:
        if one.means is None or one.shares.p / SHARES_PART <= one.means.p / (1 - SHARES_PART):
            return Verdict.FAILS_MORE if k * m < other * n else Verdict.FAILS_LESS
        return Verdict.BETTER if one.means.difference > 0 else Verdict.WORSE
    if margin and one.means and one.shares.p > DOUBTFUL:
        is_same = one.means.equivalence_p(margin) <= level * (1 - SHARES_PART)
        return Verdict.EQUIVALENT if is_same else Verdict.SAME
    return Verdict.SAME


def _needed(one: Judged, reference: Judged, level: float) -> int | None:
    """By whichever part needs fewer: shares by the formula for Fisher's test of Casagrande, Pike
    and Smith (1978), means by the normal approximation with Guenther's correction for t (1981),
    over the share of runs that succeed."""
    (k, n), (other, m) = one.shares.arm, one.shares.reference
    of_shares, of_means = (
        float(special.ndtri(1 - level * part / 2)) for part in (SHARES_PART, 1 - SHARES_PART)
    )
    power, found = float(special.ndtri(POWER)), [MOST_RUNS + 1.0]
    p, q = k / n, other / m
    if distance := abs(p - q):
        mean, apart = (p + q) / 2, power * math.sqrt(p * (1 - p) + q * (1 - q))
        plain = ((of_shares * math.sqrt(2 * mean * (1 - mean)) + apart) / distance) ** 2
        found.append(plain / 4 * (1 + math.sqrt(1 + 4 / (plain * distance))) ** 2)
    if one.means and one.means.difference:
        variance = one.means.error**2 / (1 / k + 1 / other)
        successes = 2 * variance * ((of_means + power) / one.means.difference) ** 2
        found.append((successes + of_means**2 / 4) * max(n / k, m / other))
    least = max(n + 1, math.ceil(min(found)))
    return least if least <= MOST_RUNS else None


def _pooled(groups: Mapping[str, Sequence[Judged]], reference: str) -> list[Pooled]:
    """The arms that several groups compare with the same reference."""
    arms: dict[str, dict[str, Judged]] = {}
    for name, judged in groups.items():
        for one in judged:
            if one.against == reference:
                arms.setdefault(one.arm, {})[name] = one
    found = []
    for arm, of in arms.items():
        if len(of) > 1:
            rest = {left: [of[name] for name in of if name != left] for left in of}
            many = sum(one.means is not None for one in of.values()) > 2
            without = {
                left: _both(others, with_means=many) for left, others in rest.items() if len(of) > 2
            }
            shares = tuple(one.shares for one in of.values() if one.shares)
            found.append(Pooled(arm, tuple(of), shares, *_both([*of.values()]), without))
    return found


def _both(
    arms: Sequence[Judged], *, with_means: bool = True
) -> tuple[PooledShares | None, PooledMeans | None]:
    means = [one.means for one in arms if one.means and with_means]
    return pool_shares([one.shares for one in arms if one.shares]), pool_means(means)
