"""The numbers of a study: the result of each arm, and its comparison with the reference."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile, zip_longest

from trl_ablate.errors import ConfigurationError
from trl_ablate.study.definition import Statistic
from trl_ablate.study.report.curves import LOST_SHARE, NOISE_FLOOR, Run, Summary
from trl_ablate.study.report.stats import (
    ALPHA,
    Comparison,
    Interval,
    Pairs,
    judge_at_looks,
    pairs_of,
    t_interval,
)
from trl_ablate.study.report.stats import judge as judge_pairs
from trl_ablate.study.two_part import judge_two_parts
from trl_ablate.study.verdict import Judge, Verdict, reference_runs

STATISTICS: dict[Statistic, str] = {
    "final": "final",
    "best": "best",
    "auc": "mean over training",
    "last_third": "mean over the last third",
}
"""The summaries of a curve, and their names."""


@dataclass(frozen=True)
class ArmResult:
    """One arm over its seeds."""

    name: str
    runs: tuple[Run, ...]
    metric: str

    @cached_property
    def summaries(self) -> list[Summary | None]:
        """In the order of the runs; None for a run without an outcome."""
        return [run.outcome(self.metric) for run in self.runs]

    @cached_property
    def intervals(self) -> dict[Statistic, Interval]:
        return {of: t_interval([s.value(of) for s in self.known]) for of in STATISTICS}

    @property
    def known(self) -> list[Summary]:
        """Of the runs with an outcome."""
        return [summary for summary in self.summaries if summary is not None]

    @property
    def ended(self) -> int:
        return len(self.known)

    @property
    def collapsed(self) -> int:
        return sum(summary.collapsed for summary in self.known)

    @property
    def fell_behind(self) -> int:
        """Runs that did not collapse but ended far below the arm's median: they never learned."""
        middle = statistics.median([s.final for s in self.known]) if self.known else 0.0
        limit = min(LOST_SHARE * middle, middle - NOISE_FLOOR)
        return sum(middle > 0 and not s.collapsed and s.final < limit for s in self.known)

    @property
    def is_mixed(self) -> bool:
        """Whether some seeds collapsed or never learned and others did not: two populations,
        while the t interval assumes one."""
        return 0 < self.collapsed + self.fell_behind < self.ended

    def values(self, statistic: Statistic) -> list[float | None]:
        return [None if s is None else s.value(statistic) for s in self.summaries]

    def outcome(self) -> str:
        """How the runs ended, as text: `3 finished, 1 collapsed`."""
        counted = Counter(run.status for run in self.runs)
        words = ", ".join(f"{number} {status}" for status, number in counted.items())
        if not self.collapsed:
            return words
        ended = sum(run.counts for run in self.runs)
        return f"{words}, {'all' if self.collapsed == ended else self.collapsed} collapsed"


@dataclass(frozen=True)
class Analysis:
    """A study's numbers. The first arm is the reference."""

    metric: str
    decide_on: Statistic
    arms: tuple[ArmResult, ...]
    against: Mapping[str, str]
    """Arms that are not compared with the first arm, and the arm they are compared with."""
    looks: tuple[int, ...] = ()
    """Numbers of seeds at which comparisons are decided; none: the seeds are fixed."""
    margin: float | None = None
    """Differences of the metric within it count as equivalent."""
    judge: Judge = "paired"
    threshold: float | None = None
    """From which on a run succeeds, where a study in two parts states it."""
    pool: int | None = None
    """Runs of the first arm that serve all comparisons at the last look, in two parts."""
    references: Mapping[str, ArmResult] = field(default_factory=dict)
    """Arms that have other runs where they are compared with than in `arms`."""
    beside: Sequence[Run] = ()
    """All runs of the study: those that are not compared can have shared a machine, too."""
    comparisons: dict[Statistic, dict[str, Comparison]] = field(default_factory=dict)

    @property
    def outcome_name(self) -> str:
        """What is compared: `final eval_reward`."""
        return f"{STATISTICS[self.decide_on]} {self.metric}"

    @property
    def runs(self) -> list[Run]:
        return [run for arm in self.arms for run in arm.runs]

    @property
    def reference(self) -> ArmResult:
        return self.arms[0]

    def arm(self, name: str) -> ArmResult:
        return next(arm for arm in self.arms if arm.name == name)

    def reference_of(self, name: str) -> ArmResult:
        """The arm that an arm is compared with."""
        other = self.against.get(name, self.reference.name)
        return self.references.get(other) or self.arm(other)

    @property
    def decisive(self) -> dict[str, Comparison]:
        """The comparison of each arm that its verdict is based on."""
        return self.comparisons[self.decide_on]

    @property
    def compared(self) -> dict[str, Comparison]:
        """Those of arms that have runs of their own."""
        found = self.decisive.items()
        return {name: one for name, one in found if one.verdict is not Verdict.INESTIMABLE}

    def ranked(self) -> list[ArmResult]:
        """Best first; arms without an outcome at the end."""
        means = {arm.name: arm.intervals[self.decide_on].mean or 0.0 for arm in self.arms}
        return sorted(self.arms, key=lambda arm: (arm.ended > 0, means[arm.name]), reverse=True)


def analyse(
    runs: Sequence[Run],
    metric: str,
    decide_on: Statistic = "final",
    against: Mapping[str, str] | None = None,
    looks: Sequence[int] = (),
    margin: float | None = None,
    judge: Judge = "paired",
    threshold: float | None = None,
    pool: int | None = None,
    references: Sequence[Run] = (),
) -> Analysis:
    """Group runs by arm, in the order of first appearance, and compare them: with the first arm, or
    with the one that `against` names; by position, or in two parts. `references` are the runs of
    arms where others are compared with them, if those are not the ones in `runs`.

    Failed and unfinished runs stay in the table without a value: neither 0 nor the value they had
    reached would be right. Collapsed and stopped runs have ended, and count with their final
    value.
    """
    arms = tuple(_by_arm(runs, metric).values())
    found = Analysis(
        metric, decide_on, arms, dict(against or {}), tuple(looks), margin, judge, threshold, pool,
        _by_arm(references, metric),
    )  # fmt: skip
    both = [(arm, found.reference_of(arm.name)) for arm in arms[1:]]
    both = [(arm, other) for arm, other in both if not _are_same(arm, other)]
    same = {arm.name: Comparison(arm.name, Interval(0, None), None, None, Verdict.INESTIMABLE,
                                 leans_on="–")
            for arm in arms[1:]}  # fmt: skip
    for of in STATISTICS:
        if of == "last_third" != decide_on:
            continue
        within = margin if of == decide_on else None
        if judge == "two_part":
            judged = {arm.name: _two_parts(found, arm, of, len(both), within) for arm, _ in both}
        else:
            pairs = {arm.name: paired(arm, other, zip_longest(other.values(of), arm.values(of)))
                     for arm, other in both}  # fmt: skip
            judged = judge_at_looks(pairs, looks, within) if looks else judge_pairs(pairs, within)
        found.comparisons[of] = {**same, **judged}
    return found


def _by_arm(runs: Iterable[Run], metric: str) -> dict[str, ArmResult]:
    of_arms: dict[str, list[Run]] = {}
    for run in runs:
        of_arms.setdefault(run.arm, []).append(run)
    return {name: ArmResult(name, tuple(own), metric) for name, own in of_arms.items()}


def _are_same(arm: ArmResult, reference: ArmResult) -> bool:
    """Whether the arm has no run of its own, as its settings are those of its reference."""
    own, others = ({run.directory for run in of.runs} for of in (arm, reference))
    return None not in own and own <= others


def paired(
    arm: ArmResult, reference: ArmResult, values: Iterable[tuple[float | None, float | None]]
) -> Pairs:
    """Of the runs by position, given the values of the reference's and of the arm's."""
    ends = zip_longest(reference.summaries, arm.summaries)
    collapsed = [any(s is not None and s.collapsed for s in pair) for pair in ends]
    first, second = zip(*values, strict=True)
    return pairs_of(first, second, collapsed)


def _two_parts(
    analysis: Analysis, arm: ArmResult, of: Statistic, compared: int, margin: float | None
) -> Comparison:
    """The verdict on an arm. Looks count the runs before the first that is missing.

    Args:
        compared: the number of arms that share the level.
    """
    reference, planned = analysis.reference_of(arm.name), analysis.looks or (len(arm.runs),)
    is_shared, threshold = reference is analysis.reference, analysis.threshold
    pool = analysis.pool or len(reference.runs) if is_shared else None
    first = reference.runs[: reference_runs(planned[0], planned[-1], pool)]
    errors = [run.noise(arm.metric, of) for run in first if run.counts]
    own, others = ([s.value(of) for s in takewhile(bool, each.summaries) if s]
                   for each in (arm, reference))  # fmt: skip
    found = judge_two_parts(
        own, others, looks=planned, pool=pool, base=_base(reference, first, threshold),
        threshold=threshold, level=ALPHA / compared, margin=margin,
        noise=math.sqrt(statistics.fmean(error**2 for error in errors)) if errors else 0.0,
    )  # fmt: skip
    waits = found.verdict is Verdict.UNDECIDED
    mean = found.means and found.means.difference
    return Comparison(
        arm=arm.name,
        difference=Interval(found.n, mean, *(found.interval or ())),
        p=found.p,
        p_corrected=min(1.0, found.p * compared),
        verdict=found.verdict,
        leans_on="Fisher's exact and Welch's test",
        next_look=next((n for n in planned if n > found.n), None) if waits else None,
        two_part=found,
        p_values=(found.p_difference, found.p_equivalent),
    )


def _base(reference: ArmResult, first: Sequence[Run], threshold: float | None) -> float | None:
    """The mean evaluation before training, over the runs of the first look."""
    seen = [run.before_training(reference.metric) for run in first if run.counts]
    known = [value for value in seen if value is not None]
    if seen and not known and threshold is None:
        raise ConfigurationError(
            f"the runs of {reference.name} have no {reference.metric} at step 0, from which a "
            "success is found; set eval_on_start: true, or success: {threshold: …} in study.yaml"
        )
    return statistics.fmean(known) if known else None if threshold is not None else 0.0
