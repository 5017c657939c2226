"""Outcomes as they are: collapse as its own outcome, and summaries that one bad run cannot bend.

A mean over runs that collapsed and runs that did not describes neither, so it is never the only
number: the rate of collapse has an exact interval (Clopper and Pearson 1934) and Fisher's exact
test, and the mean over the other runs stands beside it. The interquartile mean and the probability
of improvement are those of Agarwal et al. (2021), "Deep Reinforcement Learning at the Edge of the
Statistical Precipice", with intervals from a bootstrap that resamples the runs of each arm (seeded,
so that a report repeats). With three to five runs such intervals are too narrow (a test shows by
how much): they describe, and no verdict rests on them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from trl_ablate.study.report.analysis import Analysis, ArmResult
from trl_ablate.study.report.document import Grid, Section
from trl_ablate.study.report.numbers import NOTHING, interval, number, p_value, p_words
from trl_ablate.study.report.stats import ALPHA, Interval, holm, t_interval

RESAMPLES = 2000
TRIMMED = 0.25
"""Share that the interquartile mean leaves out on each side."""

NOTE = (
    "Collapse: the share of runs with its exact 95 % interval (Clopper-Pearson), and the p-value "
    "of Fisher's exact test against the arm's reference with Holm's correction. The interquartile "
    "mean leaves out a quarter of the runs on each side, rounded down: none of three runs, one of "
    "four to seven. P(better) is the chance that a run of the arm ends above one of its "
    "reference, 0.5 if they are alike. Intervals in brackets of these two are 95 % bootstrap "
    "intervals, which are too narrow for so few runs."
)


@dataclass(frozen=True)
class Collapse:
    """How often an arm collapsed, against its reference."""

    arm: str
    collapsed: int
    ended: int
    rate: tuple[float, float]
    reference: str | None
    p: float | None
    """Of Fisher's exact test, corrected; None for the reference, or without runs."""
    others: Interval
    """The deciding statistic over the runs that did not collapse."""


def clopper_pearson(k: int, n: int, confidence: float = 1 - ALPHA) -> tuple[float, float]:
    """The exact interval of a share of k in n, from quantiles of the beta distribution."""
    tail = (1 - confidence) / 2
    low = 0.0 if k == 0 else float(special.betaincinv(k, n - k + 1, tail))
    high = 1.0 if k == n else float(special.betaincinv(k + 1, n - k, 1 - tail))
    return low, high


def fisher_p(k: int, n: int, other_k: int, other_n: int) -> float:
    """The two-sided p-value of Fisher's exact test of k in n against other_k in other_n: the sum of
    the probabilities of all tables with these margins that are no more probable than this one."""
    total = k + other_k
    chances = [
        math.comb(n, first) * math.comb(other_n, total - first)
        for first in range(max(0, total - other_n), min(n, total) + 1)
    ]
    here = math.comb(n, k) * math.comb(other_n, other_k)
    return sum(chance for chance in chances if chance <= here) / math.comb(n + other_n, total)


def interquartile_mean(values: Sequence[float]) -> float:
    """The mean without the lowest and the highest quarter, each rounded down."""
    return float(_middle(np.asarray(values, float)))


def _middle(values: np.ndarray) -> np.ndarray:
    """Interquartile means over the last axis."""
    count = values.shape[-1]
    cut = int(TRIMMED * count)
    return np.sort(values, axis=-1)[..., cut : count - cut].mean(axis=-1)


def probability_of_improvement(arm: Sequence[float], reference: Sequence[float]) -> float:
    """P(a run of the arm > a run of the reference), ties count half: the Mann-Whitney statistic
    over the number of pairs."""
    return float(_wins(arm, reference).mean())


def _wins(arm: Sequence[float], reference: Sequence[float]) -> np.ndarray:
    """1, 0.5 or 0 for every run of the arm (rows) against every run of the reference."""
    differences = np.subtract.outer(np.asarray(arm, float), np.asarray(reference, float))
    return (differences > 0) + 0.5 * (differences == 0)


def middle_interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % bootstrap interval of the interquartile mean."""
    rng = np.random.default_rng(0)
    drawn = rng.integers(len(values), size=(RESAMPLES, len(values)))
    return _percentiles(_middle(np.asarray(values, float)[drawn]))


def improvement_interval(arm: Sequence[float], reference: Sequence[float]) -> tuple[float, float]:
    """The 95 % bootstrap interval of the probability of improvement; each arm is a stratum."""
    rng = np.random.default_rng(0)
    first, second = (_counts(rng, len(sample)) for sample in (arm, reference))
    wins = ((first @ _wins(arm, reference)) * second).sum(axis=1)
    return _percentiles(wins / (len(arm) * len(reference)))


def _counts(rng: np.random.Generator, runs: int) -> np.ndarray:
    """How often each run is drawn, for every resample."""
    return rng.multinomial(runs, np.full(runs, 1 / runs), size=RESAMPLES)


def _percentiles(found: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(found, [ALPHA / 2, 1 - ALPHA / 2])
    return float(low), float(high)


def collapses(analysis: Analysis) -> dict[str, Collapse]:
    """Every arm with an outcome."""
    arms = [arm for arm in analysis.arms if arm.ended]
    references = {arm.name: analysis.reference_of(arm.name) for arm in arms}
    tested = [a for a in arms if a is not analysis.reference and references[a.name].ended]
    p_values = [
        fisher_p(a.collapsed, a.ended, references[a.name].collapsed, references[a.name].ended)
        for a in tested
    ]
    names = [arm.name for arm in tested]
    p = dict(zip(names, holm(p_values), strict=True))
    return {
        arm.name: Collapse(
            arm=arm.name,
            collapsed=arm.collapsed,
            ended=arm.ended,
            rate=clopper_pearson(arm.collapsed, arm.ended),
            reference=references[arm.name].name if arm.name in p else None,
            p=p.get(arm.name),
            others=t_interval(_values(arm, analysis, collapsed=False)),
        )
        for arm in arms
    }


def sentences(analysis: Analysis) -> list[str]:
    """One for each arm with a collapse."""
    found = collapses(analysis)
    return [_sentence(each, found) for each in found.values() if each.collapsed]


def _sentence(found: Collapse, all_of_them: dict[str, Collapse]) -> str:
    low, high = found.rate
    words = (
        f"{found.arm}: {found.collapsed} of {found.ended} runs collapsed "
        f"(95 % interval of the rate {number(low)} to {number(high)})"
    )
    if found.reference is not None:
        other = all_of_them[found.reference]
        words += (
            f", {other.collapsed} of {other.ended} of {found.reference} "
            f"(Fisher's exact test: {p_words(found.p)})"
        )
    if found.others.mean is None:
        return f"{words}."
    return f"{words}; the mean over the runs that did not collapse is {interval(found.others)}."


def outcomes_table(analysis: Analysis) -> Section | None:
    header = [
        "arm", "collapsed", "rate", "p of collapse", "mean of the others", "interquartile mean",
        "P(better)",
    ]  # fmt: skip
    found = collapses(analysis)
    rows = [_row(analysis.arm(name), each, analysis) for name, each in found.items()]
    return Section("Outcomes", [Grid(header, rows, NOTE)]) if rows else None


def _row(arm: ArmResult, found: Collapse, analysis: Analysis) -> list[str]:
    values = _values(arm, analysis)
    middle = _bracketed(interquartile_mean(values), middle_interval(values))
    improvement = NOTHING
    if found.reference is not None:
        others = _values(analysis.arm(found.reference), analysis)
        chance = probability_of_improvement(values, others)
        improvement = _bracketed(chance, improvement_interval(values, others))
    return [
        arm.name,
        f"{found.collapsed} of {found.ended}",
        f"{number(found.rate[0])} to {number(found.rate[1])}",
        p_value(found.p),
        interval(found.others),
        middle,
        improvement,
    ]


def _bracketed(value: float, limits: tuple[float, float]) -> str:
    return f"{number(value)} [{number(limits[0])}, {number(limits[1])}]"


def _values(arm: ArmResult, analysis: Analysis, collapsed: bool | None = None) -> list[float]:
    """The deciding statistic of the arm's runs; with `collapsed`, of those that did or did not."""
    return [
        value
        for position, value in enumerate(arm.values(analysis.decide_on))
        if value is not None and collapsed in (None, arm.has_collapsed(position))
    ]
