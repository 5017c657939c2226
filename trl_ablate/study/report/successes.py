"""Which runs of each arm succeed, and how well? The comparisons of a study judged in two parts."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING

from trl_ablate.errors import ConfigurationError
from trl_ablate.study.definition import Statistic
from trl_ablate.study.report.document import Columns, Section, table
from trl_ablate.study.report.numbers import NOTHING, difference, interval, number, p_value, p_words
from trl_ablate.study.report.stats import ALPHA, Comparison, Interval, t_interval
from trl_ablate.study.two_part import Shares, TwoPart, clopper_pearson, judge_two_parts
from trl_ablate.study.verdict import Verdict, reference_runs

if TYPE_CHECKING:
    from trl_ablate.study.report.analysis import Analysis, ArmResult

LEANS_ON = "Fisher's exact and Welch's test"
NOTE = (
    "Runs are not paired. A run succeeds if it reaches the threshold: half of what the median run "
    "of the reference gains over the base, or the one that the study states. 'Succeed' has exact "
    "95 % intervals, 'p of the shares' is Fisher's. The difference is that of the mean over the "
    "runs that succeed (Welch), with no variance below that of one run's evaluation; its interval "
    "covers with 95 % over all comparisons and looks together (of an equivalent arm: that of the "
    "two one-sided tests). 'p' is corrected for the parts and the looks, not for the comparisons; "
    "verdicts are corrected for them, too (Bonferroni)."
)
WORDS = {
    Verdict.BETTER: "{arm} is better than {other}: {means}; {shares}.",
    Verdict.WORSE: "{arm} is worse than {other}: {means}; {shares}.",
    Verdict.FAILS_MORE: "{arm} fails more often than {other}: {shares}; {means}.",
    Verdict.FAILS_LESS: "{arm} fails less often than {other}: {shares}; {means}.",
    Verdict.EQUIVALENT: "{arm} is equivalent to {other} within {margin}: {means}; {shares}.",
    Verdict.UNDECIDED: "{arm} against {other} is undecided: {means}; {shares}; the next look is at "
    "{next_look} seeds.",
    Verdict.NOT_DECIDED: "{arm} against {other} is not decided: {means}; {shares}.",
}


def judge_successes(
    arms: Mapping[str, "tuple[ArmResult, ArmResult]"],
    metric: str,
    statistic: Statistic,
    looks: Sequence[int],
    margin: float | None,
    threshold: float | None,
    first: str,
) -> dict[str, Comparison]:
    """The verdicts on arms and their references, which share the level; `first` is the arm whose
    pool of runs serves all comparisons. Looks count the runs before the first that is missing."""
    found = {}
    for name, (arm, reference) in arms.items():
        planned = tuple(looks) or (len(arm.runs),)
        pool = len(reference.runs) if reference.name == first else None
        of = reference_runs(planned[0], planned[-1], pool)
        judged = judge_two_parts(
            _unbroken(arm, statistic), _unbroken(reference, statistic), looks=planned, pool=pool,
            base=_base(reference, metric, of, threshold), threshold=threshold,
            level=ALPHA / len(arms), margin=margin, noise=_noise(reference, metric, statistic, of),
        )  # fmt: skip
        found[name] = _comparison(name, judged, planned, len(arms))
    return found


def _comparison(name: str, found: TwoPart, looks: Sequence[int], compared: int) -> Comparison:
    low, high = found.interval or (None, None)
    waits = found.verdict is Verdict.UNDECIDED
    return Comparison(
        arm=name,
        difference=Interval(found.n, found.means and found.means.difference, low, high),
        p=found.p,
        p_corrected=min(1.0, found.p * compared),
        verdict=found.verdict,
        detectable=None,
        leans_on=LEANS_ON,
        next_look=next((n for n in looks if n > found.n), None) if waits else None,
        two_part=found,
        p_values=(found.p_difference, found.p_equivalent),
    )


def _unbroken(arm: "ArmResult", statistic: Statistic) -> list[float]:
    values = arm.values(statistic)
    end = values.index(None) if None in values else len(values)
    return [value for value in values[:end] if value is not None]


def _base(reference: "ArmResult", metric: str, of: int, threshold: float | None) -> float | None:
    """The mean evaluation before training, over the runs of the first look."""
    seen = [run.before_training(metric) for run in reference.runs[:of] if run.counts]
    known = [value for value in seen if value is not None]
    if seen and not known and threshold is None:
        raise ConfigurationError(
            f"the runs of {reference.name} have no {metric} at step 0, from which a success is "
            "found; set eval_on_start: true, or success: {threshold: …} in study.yaml"
        )
    return fmean(known) if known else None if threshold is not None else 0.0


def _noise(reference: "ArmResult", metric: str, statistic: Statistic, of: int) -> float:
    errors = [run.noise(metric, statistic) for run in reference.runs[:of] if run.counts]
    return math.sqrt(fmean(error**2 for error in errors)) if errors else 0.0


def sentence(comparison: Comparison, analysis: "Analysis") -> str:
    """The verdict on one arm, with both parts."""
    found = comparison.two_part
    other = analysis.reference_of(comparison.arm).name
    if found is None or found.shares is None:
        return (
            f"{comparison.arm} has too few runs for a look; the first is at {comparison.next_look}."
        )
    return WORDS[found.verdict].format(
        arm=comparison.arm,
        other=other,
        means=f"{difference(comparison.difference)} where runs succeed" if found.means
        else "too few runs succeed for a comparison of their means",
        shares=f"{_count(found.shares.arm)} runs succeed, {_count(found.shares.reference)} of "
        f"{other} ({p_words(found.shares.p)})",
        margin=number(analysis.margin),
        next_look=comparison.next_look,
    )  # fmt: skip


def arms_table(analysis: "Analysis") -> Section:
    """Every arm over all its runs, by the threshold of the largest look."""
    looks = [c.two_part for c in analysis.decisive.values() if c.two_part and c.two_part.shares]
    if not looks:
        return Section("Arms")
    limit = max(looks, key=lambda found: found.n).threshold or 0.0

    def values(arm: "ArmResult", least: float = -math.inf) -> list[float]:
        return [x for x in arm.values(analysis.decide_on) if x is not None and x >= least]

    def succeed(arm: "ArmResult") -> str:
        counts = len(values(arm, limit)), len(values(arm))
        low, high = clopper_pearson(*counts) if counts[1] else (0.0, 1.0)
        return f"{_count(counts)} [{low:.2f}, {high:.2f}]"

    def spread(arm: "ArmResult") -> str:
        good = values(arm, limit)
        return number(stdev(good) if len(good) > 1 else None)

    columns: Columns = [
        ("arm", lambda arm: arm.name),
        ("runs", lambda arm: arm.outcome()),
        ("succeed", succeed),
        ("mean where runs succeed", lambda arm: interval(t_interval(values(arm, limit)))),
        ("sd of these", spread),
        ("median of all runs", lambda arm: number(median(values(arm)) if values(arm) else None)),
    ]
    note = f"A run succeeds from {number(limit)} on. Mean ± half its own 95 % t interval."
    return table("Arms, best first", analysis.ranked(), columns, note, 2)


def successes_table(analysis: "Analysis") -> Section:
    def shown(comparison: Comparison, which: int) -> str:
        shares = comparison.two_part and comparison.two_part.shares
        return _share(shares, which) if shares else NOTHING

    def threshold(comparison: Comparison) -> str:
        return number(comparison.two_part and comparison.two_part.threshold)

    def p_of_shares(comparison: Comparison) -> str:
        shares = comparison.two_part and comparison.two_part.shares
        return p_value(shares.p if shares else None)

    columns: Columns = [
        ("arm", lambda c: c.arm),
        ("against", lambda c: analysis.reference_of(c.arm).name),
        ("verdict", lambda c: c.verdict),
        ("threshold", threshold),
        ("succeed", lambda c: shown(c, 0)),
        ("of the reference", lambda c: shown(c, 1)),
        ("p of the shares", p_of_shares),
        ("difference where runs succeed", lambda c: difference(c.difference)),
        ("p", lambda c: p_value(c.p)),
    ]
    return table("Comparisons", analysis.decisive.values(), columns, NOTE, 3)


def _count(share: tuple[int, int]) -> str:
    return f"{share[0]} of {share[1]}"


def _share(shares: Shares, which: int) -> str:
    count = (shares.arm, shares.reference)[which]
    low, high = shares.intervals[which]
    return f"{_count(count)} [{low:.2f}, {high:.2f}]"
