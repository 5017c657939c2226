"""The numbers of a study: the result of each arm, and its comparison with the reference."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trl_ablate.study.definition import Statistic
from trl_ablate.study.report.curves import LOST_SHARE, NOISE_FLOOR, Run, Summary
from trl_ablate.study.report.stats import Comparison, Interval, compare, t_interval

STATISTICS: tuple[Statistic, ...] = ("final", "best", "auc")


@dataclass(frozen=True)
class ArmResult:
    """One arm over its seeds."""

    name: str
    runs: tuple[Run, ...]
    summaries: tuple[Summary | None, ...]
    """In the order of the runs; None for a run without an outcome."""
    intervals: dict[Statistic, Interval]

    @property
    def collapsed(self) -> int:
        return sum(s is not None and s.collapsed_at is not None for s in self.summaries)

    @property
    def ended(self) -> int:
        """Runs with an outcome."""
        return sum(summary is not None for summary in self.summaries)

    @property
    def fell_behind(self) -> int:
        """Runs that did not collapse but ended far below the arm's median: they never learned."""
        finals = [summary.final for summary in self.summaries if summary is not None]
        if not finals:
            return 0
        middle = statistics.median(finals)
        return sum(
            s is not None
            and s.collapsed_at is None
            and s.final < LOST_SHARE * middle
            and middle - s.final > NOISE_FLOOR
            for s in self.summaries
        )

    @property
    def is_mixed(self) -> bool:
        """Whether some seeds collapsed or never learned and others did not: two populations,
        while the t interval assumes one."""
        return 0 < self.collapsed + self.fell_behind < self.ended

    def values(self, statistic: Statistic) -> list[float | None]:
        return [None if s is None else value_of(s, statistic) for s in self.summaries]

    def outcome(self) -> str:
        """How the runs ended, as text: `3 finished, 1 collapsed`."""
        counted = Counter(run.status for run in self.runs)
        words = ", ".join(f"{number} {status}" for status, number in counted.items())
        if not self.collapsed:
            return words
        ended = sum(run.counts for run in self.runs)
        return words + (
            ", all collapsed" if self.collapsed == ended else f", {self.collapsed} collapsed"
        )


@dataclass(frozen=True)
class Analysis:
    """A study's numbers. The first arm is the reference."""

    metric: str
    decide_on: Statistic
    arms: tuple[ArmResult, ...]
    comparisons: dict[Statistic, dict[str, Comparison]]
    against: Mapping[str, str]
    """Arms that are not compared with the first arm, and the arm they are compared with."""

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


def value_of(summary: Summary, statistic: Statistic) -> float:
    return summary.value(statistic)


def analyse(
    runs: Sequence[Run],
    metric: str,
    decide_on: Statistic = "final",
    against: Mapping[str, str] | None = None,
) -> Analysis:
    """Group runs by arm, in the order of first appearance, and compare them by position: with the
    first arm, or with the one that `against` names.

    Failed and unfinished runs stay in the table without a value: neither 0 nor the value they had
    reached would be right. Collapsed and stopped runs have ended, and count with their final
    value.
    """
    names = list(dict.fromkeys(run.arm for run in runs))
    arms = tuple(_arm_result(name, [r for r in runs if r.arm == name], metric) for name in names)
    longest = max(len(arm.runs) for arm in arms)
    values: dict[Statistic, dict[str, list[float | None]]] = {
        statistic: {arm.name: _padded(arm.values(statistic), longest) for arm in arms}
        for statistic in STATISTICS
    }
    return Analysis(
        metric=metric,
        decide_on=decide_on,
        arms=arms,
        comparisons={
            statistic: compare(
                of[names[0]],
                {name: of[name] for name in names[1:]},
                {name: of[reference] for name, reference in (against or {}).items()},
            )
            for statistic, of in values.items()
        },
        against=dict(against or {}),
    )


def _arm_result(name: str, runs: Sequence[Run], metric: str) -> ArmResult:
    summaries = tuple(run.summary(metric) if run.counts else None for run in runs)
    known = [summary for summary in summaries if summary is not None]
    return ArmResult(
        name=name,
        runs=tuple(runs),
        summaries=summaries,
        intervals={
            statistic: t_interval([value_of(summary, statistic) for summary in known])
            for statistic in STATISTICS
        },
    )


def _padded(values: list[float | None], length: int) -> list[float | None]:
    return values + [None] * (length - len(values))
