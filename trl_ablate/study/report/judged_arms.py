"""How often does each arm of anybody's runs succeed, and how well do those runs end?

The statistics are those of `two_part` at one look: a fifth of the level for the shares, the rest
for the means, Holm's correction over the arms of a group. Foreign logs have few runs, so means are
compared from three successes on, not eight; such a verdict leans on bell-shaped outcomes. That two
arms are equivalent takes eight, as in studies.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy import special

from trl_ablate.errors import ConfigurationError
from trl_ablate.study.pooling import PooledMeans, PooledShares, pool_means, pool_shares
from trl_ablate.study.report.curves import Run
from trl_ablate.study.report.stats import ALPHA, MIN_SEEDS, Interval, holm, t_interval
from trl_ablate.study.two_part import (
    DOUBTFUL,
    FEWEST,
    SHARES_PART,
    Means,
    Shares,
    clopper_pearson,
    half_way,
    parts_of,
)  # fmt: skip
from trl_ablate.study.verdict import Verdict

MOST_RUNS, POWER = 1000, 0.8
"""More runs of an arm than this are not worth naming; they decide with this power."""


@dataclass(frozen=True)
class Rules:
    """What counts as success, and what as a difference."""

    base: float | None = None
    """The outcome before training; None: the median of the runs at step 0, or 0 without one."""
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
    """About how many runs of each would decide, if what was seen is true; 1001: more than a
    thousand. None: it is decided, has fewer than three runs, or shows no difference to go by."""

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
    bases: dict[str, float | None] | None
    """Outcomes before training, from which the thresholds follow; of a group without one, which
    counts as 0, None. None in all: the user stated a threshold."""
    pooled: list[Pooled]


def judge_runs(runs: Sequence[Run], metric: str, reference: str | None, rules: Rules) -> Judgement:
    """Every arm against the reference, by default the first; in a group without it, the group's."""
    known = [run for run in runs if run.series.get(metric)]
    arms = list(dict.fromkeys(run.arm for run in known))
    for run in known if rules.questions else ():
        if not 0 <= (end := run.series[metric].values[-1]) <= 1:
            raise ConfigurationError(
                f"--questions is for shares between 0 and 1, and a run of '{run.arm}' ends at "
                f"{end:g}; give shares, or leave the option out"
            )
    chosen = reference or arms[0]
    if chosen not in arms:
        raise ConfigurationError(f"--reference is '{chosen}'; the arms are {', '.join(arms)[:300]}")
    groups: dict[str, list[Run]] = {}
    for run in known:
        groups.setdefault(run.group or "", []).append(run)
    bases = {name: _base(own, metric, rules) for name, own in groups.items()}
    judged = {
        name: _judged(own, metric, chosen, bases[name], rules) for name, own in groups.items()
    }
    stated = rules.threshold is not None
    return Judgement(metric, chosen, judged, None if stated else bases, _pooled(judged, chosen))


def _base(runs: Sequence[Run], metric: str, rules: Rules) -> float | None:
    if rules.base is not None:
        return rules.base
    curves = [run for run in runs if len(run.series[metric].steps) > 1]
    known = [run.before_training(metric) for run in curves]
    logged = [value for value in known if value is not None]
    return statistics.median(logged) if logged else None


def _judged(
    runs: Sequence[Run], metric: str, reference: str, base: float | None, rules: Rules
) -> list[Judged]:
    """The arms of one group, the reference first."""
    finals: dict[str, list[float]] = {}
    for run in runs:
        finals.setdefault(run.arm, []).append(run.series[metric].values[-1])
    reference = reference if reference in finals else next(iter(finals))
    others, limit = finals[reference], rules.threshold
    if limit is None and base is None and statistics.median(others) <= 0:
        raise ConfigurationError(
            f"no run logs {metric} at step 0, and that of '{reference}' ends at "
            f"{statistics.median(others):g}; give --base, what it was before training, or "
            "--threshold, from where on a run succeeds"
        )
    limit = half_way(others, base or 0.0) if limit is None else limit
    parts = {}
    for arm, values in finals.items():
        if arm != reference:
            noise = _noise([x for x in (*values, *others) if x >= limit], rules.questions)
            parts[arm] = parts_of(values, others, limit, noise, MIN_SEEDS)
    best = sum(x >= limit for x in others)
    found = [Judged(reference, tuple(others), limit, clopper_pearson(best, len(others)))]
    level, p_values = ALPHA / max(1, len(parts)), holm([min(_p(*each)) for each in parts.values()])
    for (arm, (shares, means)), p in zip(parts.items(), p_values, strict=True):
        verdict = _verdict(shares, means, p, rules.margin, level)
        found.append(
            Judged(
                arm, tuple(finals[arm]), limit, clopper_pearson(*shares.arm), reference, shares,
                means, p, verdict,
                needed=_needed(shares, means, level) if verdict is Verdict.SAME else None,
            )
        )  # fmt: skip
    return found


def _noise(values: Sequence[float], questions: int | None) -> float:
    if not questions or not values:
        return 0.0
    share = statistics.fmean(values)
    return math.sqrt(share * (1 - share) / questions)


def _p(shares: Shares, means: Means | None) -> tuple[float, float]:
    """Of each part, over its share of the level."""
    of_means = means.p / (1 - SHARES_PART) if means else math.inf
    return min(1.0, shares.p / SHARES_PART), of_means


def _verdict(
    shares: Shares, means: Means | None, p: float, margin: float | None, level: float
) -> Verdict:
    if min(shares.arm[1], shares.reference[1]) < MIN_SEEDS:
        return Verdict.TOO_FEW
    if p <= ALPHA:
        of_shares, of_means = _p(shares, means)
        return means.direction if means and of_means < of_shares else shares.direction
    enough = min(shares.arm[0], shares.reference[0]) >= FEWEST  # a few agree by chance
    if not (margin and means and enough and shares.p > DOUBTFUL):
        return Verdict.SAME
    is_same = means.equivalence_p(margin) <= level * (1 - SHARES_PART)
    return Verdict.EQUIVALENT if is_same else Verdict.SAME


def _needed(shares: Shares, means: Means | None, level: float) -> int | None:
    """By whichever part needs fewer: shares by the formula for Fisher's test of Casagrande, Pike
    and Smith (1978), means by the normal approximation with Guenther's correction for t (1981),
    over the share of runs that succeed."""
    (k, n), (other, m) = shares.arm, shares.reference
    of_shares, of_means = (
        float(special.ndtri(1 - level * part / 2)) for part in (SHARES_PART, 1 - SHARES_PART)
    )
    power, found = float(special.ndtri(POWER)), []
    p, q = k / n, other / m
    if distance := abs(p - q):
        mean, apart = (p + q) / 2, power * math.sqrt(p * (1 - p) + q * (1 - q))
        plain = ((of_shares * math.sqrt(2 * mean * (1 - mean)) + apart) / distance) ** 2
        found.append(plain / 4 * (1 + math.sqrt(1 + 4 / (plain * distance))) ** 2)
    if means and means.difference and means.error:
        variance = means.error**2 / (1 / k + 1 / other)
        successes = 2 * variance * ((of_means + power) / means.difference) ** 2
        found.append((successes + of_means**2 / 4) * max(n / k, m / other))
    return min(MOST_RUNS + 1, max(n + 1, math.ceil(min(found)))) if found else None


def _pooled(groups: Mapping[str, Sequence[Judged]], reference: str) -> list[Pooled]:
    """The arms that several groups compare with the same reference."""
    arms: dict[str, dict[str, Judged]] = {}
    for name, one in [(name, one) for name, judged in groups.items() for one in judged]:
        if one.against == reference:
            arms.setdefault(one.arm, {})[name] = one
    found = []
    for arm, of in arms.items():
        if len(of) > 1:
            many = sum(one.means is not None for one in of.values()) > 2
            without = {
                left: _both([of[name] for name in of if name != left], with_means=many)
                for left in of if len(of) > 2
            }  # fmt: skip
            shares = tuple(one.shares for one in of.values() if one.shares)
            found.append(Pooled(arm, tuple(of), shares, *_both([*of.values()]), without))
    return found


def _both(
    arms: Sequence[Judged], *, with_means: bool = True
) -> tuple[PooledShares | None, PooledMeans | None]:
    means = [one.means for one in arms if one.means and with_means]
    return pool_shares([one.shares for one in arms if one.shares]), pool_means(means)
