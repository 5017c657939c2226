"""The numbers of a study: the result of each arm, and its comparison with the reference."""

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

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
from trl_ablate.study.two_part import TwoPart, judge_two_parts
from trl_ablate.study.verdict import Judge, Verdict, reference_runs

LEANS_ON = "Fisher's exact and Welch's test"
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

    @property
    def compared(self) -> dict[str, Comparison]:
        """Those of arms that have runs of their own."""
        found = self.decisive.items()
        return {name: one for name, one in found if one.verdict is not Verdict.INESTIMABLE}

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
    pool: int | None = None,
) -> Analysis:
    """Group runs by arm, in the order of first appearance, and compare them: with the first arm, or
    with the one that `against` names; by position, or in two parts.

    Failed and unfinished runs stay in the table without a value: neither 0 nor the value they had
    reached would be right. Collapsed and stopped runs have ended, and count with their final
    value. In two parts, `pool` runs of the first arm serve all comparisons at the last look.
    """
    names = list(dict.fromkeys(run.arm for run in runs))
    arms = {name: _arm_result(name, [r for r in runs if r.arm == name], metric) for name in names}
    every = {name: arms[(against or {}).get(name, names[0])] for name in names[1:]}
    references = {name: of for name, of in every.items() if not _are_same(arms[name], of)}
    comparisons: dict[Statistic, dict[str, Comparison]] = {}
    for statistic in STATISTICS:
        if statistic == "last_third" != decide_on:
            continue
        within = margin if statistic == decide_on else None
        if judge == "two_part":
            of_arms = {name: (arms[name], of) for name, of in references.items()}
            comparisons[statistic] = _judge_successes(
                of_arms, metric, statistic, looks, within, threshold,
                pools={names[0]: pool or len(arms[names[0]].runs)},
            )  # fmt: skip
            continue
        pairs = {name: paired(arms[name], of, statistic) for name, of in references.items()}
        comparisons[statistic] = (
            judge_at_looks(pairs, looks, within) if looks else judge_pairs(pairs, within)
        )
    same = {
        name: Comparison(name, Interval(0, None), None, None, Verdict.INESTIMABLE, leans_on="–")
        for name in every
    }
    comparisons = {of: {**same, **found} for of, found in comparisons.items()}
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


def _are_same(arm: ArmResult, reference: ArmResult) -> bool:
    """Whether the arm has no run of its own, as its settings are those of its reference."""
    own, others = ({run.directory for run in of.runs} for of in (arm, reference))
    return None not in own and own <= others


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


def _judge_successes(
    arms: Mapping[str, tuple[ArmResult, ArmResult]],
    metric: str,
    statistic: Statistic,
    looks: Sequence[int],
    margin: float | None,
    threshold: float | None,
    pools: Mapping[str, int],
) -> dict[str, Comparison]:
    """The verdicts on arms and their references, which share the level; `pools` has the runs at the
    last look of the reference that serves several. Looks count the runs before the first that is
    missing."""
    found = {}
    for name, (arm, reference) in arms.items():
        planned = tuple(looks) or (len(arm.runs),)
        pool = pools.get(reference.name)
        of = reference_runs(planned[0], planned[-1], pool)
        judged = judge_two_parts(
            _unbroken(arm, statistic), _unbroken(reference, statistic), looks=planned, pool=pool,
            base=_base(reference, metric, of, threshold), threshold=threshold,
            level=ALPHA / len(arms), margin=margin, noise=_noise(reference, metric, statistic, of),
        )  # fmt: skip
        found[name] = _of_two_parts(name, judged, planned, len(arms))
    return found


def _of_two_parts(name: str, found: TwoPart, looks: Sequence[int], compared: int) -> Comparison:
    low, high = found.interval or (None, None)
    waits = found.verdict is Verdict.UNDECIDED
    return Comparison(
        arm=name,
        difference=Interval(found.n, found.means and found.means.difference, low, high),
        p=found.p,
        p_corrected=min(1.0, found.p * compared),
        verdict=found.verdict,
        leans_on=LEANS_ON,
        next_look=next((n for n in looks if n > found.n), None) if waits else None,
        two_part=found,
        p_values=(found.p_difference, found.p_equivalent),
    )


def _unbroken(arm: ArmResult, statistic: Statistic) -> list[float]:
    values = arm.values(statistic)
    end = values.index(None) if None in values else len(values)
    return [value for value in values[:end] if value is not None]


def _base(reference: ArmResult, metric: str, of: int, threshold: float | None) -> float | None:
    """The mean evaluation before training, over the runs of the first look."""
    seen = [run.before_training(metric) for run in reference.runs[:of] if run.counts]
    known = [value for value in seen if value is not None]
    if seen and not known and threshold is None:
        raise ConfigurationError(
            f"the runs of {reference.name} have no {metric} at step 0, from which a success is "
            "found; set eval_on_start: true, or success: {threshold: …} in study.yaml"
        )
    return statistics.fmean(known) if known else None if threshold is not None else 0.0


def _noise(reference: ArmResult, metric: str, statistic: Statistic, of: int) -> float:
    errors = [run.noise(metric, statistic) for run in reference.runs[:of] if run.counts]
    return math.sqrt(statistics.fmean(error**2 for error in errors)) if errors else 0.0
