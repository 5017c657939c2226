"""Outcomes as they are: collapse as its own outcome, and summaries that one bad run cannot bend.

A mean over runs that collapsed and runs that did not describes neither, so it is never the only
number: the rate of collapse has an exact interval (Clopper and Pearson 1934) and Fisher's exact
test, and the mean over the other runs stands beside it. The interquartile mean and the probability
of improvement are those of Agarwal et al. (2021), "Deep Reinforcement Learning at the Edge of the
Statistical Precipice", with intervals from a bootstrap that resamples the runs of each arm (seeded,
so that a report repeats). With three to five runs such intervals are too narrow: they describe, and
no verdict rests on them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from trl_ablate.study.report.analysis import Analysis, ArmResult
from trl_ablate.study.report.document import Columns, Section, table
from trl_ablate.study.report.numbers import NOTHING, interval, number, p_value, p_words
from trl_ablate.study.report.stats import ALPHA, Interval, holm, t_interval
from trl_ablate.study.two_part import clopper_pearson, fisher_p

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

    arm: ArmResult
    reference: ArmResult | None
    """None for an arm without a comparison."""
    p: float | None
    """Of Fisher's exact test, corrected."""
    others: Interval
    """The deciding statistic over the runs that did not collapse."""

    @property
    def rate(self) -> tuple[float, float]:
        return clopper_pearson(self.arm.collapsed, self.arm.ended)


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    """The mean over the last axis without the lowest and the highest quarter, each rounded down."""
    return stats.trim_mean(values, TRIMMED, axis=-1)


def wins(arm: Sequence[float], reference: Sequence[float]) -> np.ndarray:
    """1, 0.5 or 0 for every run of the arm (rows) against every run of the reference. The mean is
    P(a run of the arm > a run of the reference): the Mann-Whitney statistic over the pairs."""
    differences = np.subtract.outer(np.asarray(arm, float), np.asarray(reference, float))
    return (differences > 0) + 0.5 * (differences == 0)


def middle_interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % bootstrap interval of the interquartile mean."""
    rng = np.random.default_rng(0)
    drawn = rng.integers(len(values), size=(RESAMPLES, len(values)))
    return _percentiles(interquartile_mean(np.asarray(values, float)[drawn]))


def improvement_interval(arm: Sequence[float], reference: Sequence[float]) -> tuple[float, float]:
    """The 95 % bootstrap interval of the probability of improvement; each arm is a stratum."""
    rng = np.random.default_rng(0)
    first, second = (  # how often each run is drawn, for every resample
        rng.multinomial(len(sample), np.full(len(sample), 1 / len(sample)), size=RESAMPLES)
        for sample in (arm, reference)
    )
    found = ((first @ wins(arm, reference)) * second).sum(axis=1)
    return _percentiles(found / (len(arm) * len(reference)))


def _percentiles(found: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(found, [ALPHA / 2, 1 - ALPHA / 2])
    return float(low), float(high)


def collapses(analysis: Analysis) -> list[Collapse]:
    """Of every arm with an outcome."""
    arms = {arm.name: arm for arm in analysis.arms if arm.ended}
    others = {name: analysis.reference_of(name) for name in arms if name in analysis.compared}
    others = {name: other for name, other in others.items() if other.ended}
    p = [fisher_p(arms[name].collapsed, arms[name].ended, other.collapsed, other.ended)
         for name, other in others.items()]  # fmt: skip
    corrected = dict(zip(others, holm(p), strict=True))
    return [
        Collapse(arm, others.get(name), corrected.get(name),
                 t_interval([s.value(analysis.decide_on) for s in arm.known if not s.collapsed]))
        for name, arm in arms.items()
    ]  # fmt: skip


def sentences(analysis: Analysis) -> list[str]:
    """One for each arm with a collapse."""
    return [_sentence(each) for each in collapses(analysis) if each.arm.collapsed]


def _sentence(found: Collapse) -> str:
    (low, high), arm, other = found.rate, found.arm, found.reference
    words = (
        f"{arm.name}: {arm.collapsed} of {arm.ended} runs collapsed "
        f"(95 % interval of the rate {number(low)} to {number(high)})"
    )
    if other is not None:
        words += (
            f", {other.collapsed} of {other.ended} of {other.name} "
            f"(Fisher's exact test: {p_words(found.p)})"
        )
    if found.others.mean is None:
        return f"{words}."
    return f"{words}; the mean over the runs that did not collapse is {interval(found.others)}."


def outcomes_table(analysis: Analysis) -> Section:
    def values(arm: ArmResult) -> list[float]:
        return [summary.value(analysis.decide_on) for summary in arm.known]

    def bracketed(value: float, limits: tuple[float, float]) -> str:
        return f"{number(value)} [{number(limits[0])}, {number(limits[1])}]"

    def middle(found: Collapse) -> str:
        own = values(found.arm)
        return bracketed(float(interquartile_mean(np.array(own))), middle_interval(own))

    def improvement(found: Collapse) -> str:
        if found.reference is None:
            return NOTHING
        both = values(found.arm), values(found.reference)
        return bracketed(float(wins(*both).mean()), improvement_interval(*both))

    columns: Columns = [
        ("arm", lambda found: found.arm.name),
        ("collapsed", lambda found: f"{found.arm.collapsed} of {found.arm.ended}"),
        ("rate", lambda found: " to ".join(map(number, found.rate))),
        ("p of collapse", lambda found: p_value(found.p)),
        ("mean of the others", lambda found: interval(found.others)),
        ("interquartile mean", middle),
        ("P(better)", improvement),
    ]
    return table("Outcomes", collapses(analysis), columns, NOTE)
