"""Each comparison at equal cost: equal steps, generated tokens or wall-clock, and by area.

At the end of training an arm that writes longer answers has cost more than its reference. A pair of
runs is compared at the largest cost that both have reached, read off their curves, if both were
evaluated before. A run that a rule stopped, or that diverged, keeps its last value: it is compared
at the other's cost. Times are compared only if both runs had their machine to themselves.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

import numpy as np

from trl_ablate.metrics import GENERATED_TOKENS
from trl_ablate.study.report.analysis import Analysis, ArmResult, paired
from trl_ablate.study.report.curves import Run, Series
from trl_ablate.study.report.document import Columns, Section, table
from trl_ablate.study.report.numbers import NOTHING, difference
from trl_ablate.study.report.stats import Comparison, Pairs, judge, judge_at_looks
from trl_ablate.study.verdict import Verdict

NOTE = (
    "Paired differences, each with its interval. Equal steps: at the end of both runs. Equal "
    "tokens: at the largest number of generated tokens that both runs of a pair reached, of the "
    "pairs in which both were evaluated by then. Equal time: at the longest time that both took; "
    "'–' where runs shared a machine. The area under the curve, divided by its length, says who "
    "learns sooner. One verdict decides, that of the answer; these are looked at beside it, with "
    "their own correction over the arms."
)
UNLIKE_NOTE = " Arms are evaluated at different steps: equal steps end with the shorter run."
TIME, TOKENS = "time", "generated tokens"

Cost = Callable[[Run, Series], np.ndarray | None]
"""The cost of a run at each step of a curve; None if it is not known."""


def at_equal_cost(analysis: Analysis, cost: Cost) -> dict[str, Comparison]:
    """The comparisons at equal cost, of the arms with a pair whose costs are known."""
    pairs: dict[str, Pairs] = {}
    for name in analysis.compared:
        arm, reference = analysis.arm(name), analysis.reference_of(name)
        both = zip(reference.runs, arm.runs, strict=False)
        found = paired(arm, reference, (_at_equal(pair, analysis.metric, cost) for pair in both))
        if found.differences:
            pairs[name] = found
    return judge_at_looks(pairs, analysis.looks) if analysis.looks else judge(pairs)


def _at_equal(
    pair: tuple[Run, Run], metric: str, cost: Cost
) -> tuple[float, float] | tuple[None, None]:
    """The values of two runs where both have cost the same."""
    curves = []
    for run in pair:
        curve = run.series.get(metric)
        paid = cost(run, curve) if curve and curve.steps and run.counts else None
        if curve is None or paid is None:
            return None, None
        curves.append((paid, curve.values))
    ends = [float(paid[-1]) for paid, _ in curves]
    whole = [end for end, run in zip(ends, pair, strict=True) if run.status == "finished"]
    budget = min(whole) if whole else max(ends)
    if any(budget < paid[0] for paid, _ in curves):  # not yet evaluated
        return None, None
    first, second = (float(np.interp(budget, paid, values)) for paid, values in curves)
    return first, second


def axis_of_cost(runs: Sequence[Run], metric: str, beside: Sequence[Run] = ()) -> tuple[Cost, str]:
    """By what curves are drawn beside steps, and its name: time, if all runs had their machine to
    themselves; else generated tokens; else the time that is known."""
    drawn = [(run, run.series[metric]) for run in runs if metric in run.series]
    for cost, name in ((time_alone([*runs, *beside]), TIME), (generated_tokens, TOKENS)):
        if all(cost(run, series) is not None for run, series in drawn):
            return cost, name
    return time, TIME


def time(run: Run, curve: Series) -> np.ndarray | None:
    return np.asarray(curve.seconds, float) if curve.seconds else None


def steps(run: Run, curve: Series) -> np.ndarray:
    return np.asarray(curve.steps, float)


def generated_tokens(run: Run, curve: Series) -> np.ndarray | None:
    tokens = run.series.get(GENERATED_TOKENS)
    if tokens is None or not tokens.steps:
        return None
    return np.interp(curve.steps, [0.0, *tokens.steps], [0.0, *tokens.values])


def time_alone(runs: Iterable[Run]) -> Cost:
    """Seconds, of the runs that shared their host with no other one."""
    spans = {run.directory or id(run): span for run in runs if (span := _span(run))}

    def cost(run: Run, curve: Series) -> np.ndarray | None:
        own = run.directory or id(run)
        if own not in spans or run.record.get("seconds_before"):
            return None  # of a resumed run it is not known where and when its first part ran
        host, start, end = spans[own]
        others = [span for key, span in spans.items() if key != own]
        shared = any(at == host and began < end and start < ended for at, began, ended in others)
        return None if shared else time(run, curve)

    return cost


def _span(run: Run) -> tuple[str, float, float] | None:
    """Host, start and end, of a resumed run since it was resumed."""
    record = run.record
    try:
        start = datetime.fromisoformat(record["started"]).timestamp()
        seconds = float(record["seconds"]) - float(record.get("seconds_before", 0.0))
    except (KeyError, TypeError, ValueError):  # a record of another shape
        return None
    return str(record.get("host")), start, start + seconds


def _evaluated(arm: ArmResult) -> set[tuple[float, ...]]:
    """The steps at which its whole runs were evaluated."""
    whole = [run for run in arm.runs if run.status == "finished" and arm.metric in run.series]
    return {tuple(run.series[arm.metric].steps) for run in whole}


def costs_table(analysis: Analysis) -> Section:
    area, final = analysis.comparisons["auc"], analysis.comparisons["final"]
    both = {arm: (_evaluated(analysis.arm(arm)), _evaluated(analysis.reference_of(arm)))
            for arm in area}  # fmt: skip
    unlike = {arm for arm, (own, other) in both.items() if own and other and own.isdisjoint(other)}
    at_same = at_equal_cost(analysis, steps) if unlike else {}
    kinds = {
        "equal steps": final | {arm: of for arm, of in at_same.items() if arm in unlike},
        "equal tokens": at_equal_cost(analysis, generated_tokens),
        "equal time": at_equal_cost(analysis, time_alone([*analysis.runs, *analysis.beside])),
        "area under the curve": area,
    }
    learns = {Verdict.BETTER: "sooner", Verdict.WORSE: "later"}
    columns: Columns = [
        ("arm", str),
        ("against", lambda arm: analysis.reference_of(arm).name),
        *(
            (kind, lambda arm, of=of: difference(of[arm].difference) if arm in of else NOTHING)
            for kind, of in kinds.items()
        ),
        ("learns", lambda arm: NOTHING if arm in unlike
         else learns.get(area[arm].verdict, NOTHING)),
    ]  # fmt: skip
    note = NOTE + UNLIKE_NOTE * bool(unlike)
    return table("At equal cost", analysis.decisive, columns, note, 2)
