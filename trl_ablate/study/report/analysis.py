"""The numbers of a study: the result of each arm, and its comparison with the reference."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from trl_ablate.study.definition import Statistic
from trl_ablate.study.report.curves import LOST_SHARE, NOISE_FLOOR, Run, Summary
from trl_ablate.study.report.stats import (
    Comparison,
    Interval,
    Pairs,
    judge_at_looks,
    pairs_of,
    t_interval,
)
from trl_ablate.study.report.stats import judge as judge_pairs
from trl_ablate.study.report.successes import judge_successes
from trl_ablate.study.verdict import Judge

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
    summaries: tuple[Summary | None, ...]
    """In the order of the runs; None for a run without an outcome."""
    intervals: dict[Statistic, Interval]

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
        return sum(not s.collapsed and s.final < limit for s in self.known)

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
    comparisons: dict[Statistic, dict[str, Comparison]]
    against: Mapping[str, str]
    """Arms that are not compared with the first arm, and the arm they are compared with."""
    looks: tuple[int, ...] = ()
    """Numbers of seeds at which comparisons are decided; none: the seeds are fixed."""
    margin: float | None = None
    """Differences of the metric within it count as equivalent."""
    judge: Judge = "paired"

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
        return self.arm(self.against.get(name, self.reference.name))

    @property
    def decisive(self) -> dict[str, Comparison]:
        """The comparison of each arm that its verdict is based on."""
        return self.comparisons[self.decide_on]

    def ranked(self) -> list[ArmResult]:
        """Best first; arms without an outcome at the end."""

        def height(arm: ArmResult) -> float:
            mean = arm.intervals[self.decide_on].mean
            return float("-inf") if mean is None else mean

        return sorted(self.arms, key=height, reverse=True)


def analyse(
    runs: Sequence[Run],
    metric: str,
    decide_on: Statistic = "final",
    against: Mapping[str, str] | None = None,
    looks: Sequence[int] = (),
    margin: float | None = None,
    judge: Judge = "paired",
    threshold: float | None = None,
) -> Analysis:
    """Group runs by arm, in the order of first appearance, and compare them: with the first arm, or
    with the one that `against` names; by position, or in two parts.

    Failed and unfinished runs stay in the table without a value: neither 0 nor the value they had
    reached would be right. Collapsed and stopped runs have ended, and count with their final
    value.
    """
    names = list(dict.fromkeys(run.arm for run in runs))
    arms = {name: _arm_result(name, [r for r in runs if r.arm == name], metric) for name in names}
    references = {name: arms[(against or {}).get(name, names[0])] for name in names[1:]}
    comparisons: dict[Statistic, dict[str, Comparison]] = {}
    for statistic in STATISTICS:
        if statistic == "last_third" != decide_on:
            continue
        within = margin if statistic == decide_on else None
        if judge == "two_part":
            of_arms = {name: (arms[name], of) for name, of in references.items()}
            comparisons[statistic] = judge_successes(
                of_arms, metric, statistic, looks, within, threshold, first=names[0]
            )
            continue
        pairs = {name: paired(arms[name], of, statistic) for name, of in references.items()}
        comparisons[statistic] = (
            judge_at_looks(pairs, looks, within) if looks else judge_pairs(pairs, within)
        )
    return Analysis(
        metric=metric,
        decide_on=decide_on,
        arms=tuple(arms.values()),
        comparisons=comparisons,
        against=dict(against or {}),
        looks=tuple(looks),
        margin=margin,
        judge=judge,
    )


def paired(arm: ArmResult, reference: ArmResult, statistic: Statistic) -> Pairs:
    """The runs of an arm and of its reference, by position."""
    both = [*zip_longest(reference.summaries, arm.summaries)]
    first, second = ([s and s.value(statistic) for s in of] for of in zip(*both, strict=True))
    collapsed = [any(s is not None and s.collapsed for s in pair) for pair in both]
    return pairs_of(first, second, collapsed)


def _arm_result(name: str, runs: Sequence[Run], metric: str) -> ArmResult:
    summaries = tuple(run.outcome(metric) for run in runs)
    intervals: dict[Statistic, Interval] = {
        statistic: t_interval([s.value(statistic) for s in summaries if s is not None])
        for statistic in STATISTICS
    }
    return ArmResult(name, tuple(runs), summaries, intervals)
