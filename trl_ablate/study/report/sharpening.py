"""pass@1 against pass@k: whether a training sharpens what the model could do, or adds to it.

pass@1 is what one sample is worth; pass@k, whether one of k samples is right. If pass@1 rises and
pass@k does not, answers that the model gave now and then have become its usual ones. Where pass@k
is near 1 from the start, it cannot show new ability.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from trl_ablate.run.logged import Series
from trl_ablate.study.report.analysis import Analysis
from trl_ablate.study.report.curves import PASSES, Run, passes_name
from trl_ablate.study.report.document import Columns, Section, table
from trl_ablate.study.report.numbers import number, within
from trl_ablate.study.report.stats import t_interval
from trl_ablate.study.verdict import Verdict

Rise = Mapping[str, float | None]
"""`first`, `rise`, `low`, `high` over seeds."""
NOTE = (
    "From the first to the last evaluation of each run that has an outcome: mean over seeds, and "
    "the mean rise with its 95 % t interval. 'Sharper': pass@1 rises and pass@k does not. 'More "
    "able': pass@k rises, too. 'Narrower': pass@k falls. The intervals are those of single arms, "
    "without a correction for their number."
)


def sharpening_table(analysis: Analysis) -> Section:
    """Empty, if evaluations drew one sample of each question."""
    found = rises(analysis)

    def rise(part: Rise) -> str:
        return within(part["rise"] or 0.0, part["low"], part["high"])

    columns: Columns = [
        ("arm", str),
        ("pass@1 at first", lambda arm: number(found[arm]["one"]["first"])),
        ("its rise", lambda arm: rise(found[arm]["one"])),
        (f"pass@{largest_k(analysis)} at first", lambda arm: number(found[arm]["many"]["first"])),
        ("its rise", lambda arm: rise(found[arm]["many"])),
        ("verdict", lambda arm: found[arm]["verdict"]),
    ]
    return table("pass@1 and pass@k", found, columns, NOTE)


def rises(analysis: Analysis) -> dict[str, dict[str, Any]]:
    """Arm -> `k`, its `verdict`, and `first`, `rise`, `low`, `high` of pass@1 (`one`) and of pass@k
    (`many`); no arm, if evaluations drew one sample of each question."""
    most = largest_k(analysis)
    if most is None:
        return {}
    found = {}
    for arm in analysis.arms:
        ends = [ends for run in arm.runs if run.counts and (ends := _ends(run, most))]
        if ends:
            one, many = (_rise([each[place] for each in ends]) for place in (0, 1))
            found[arm.name] = {"k": most, "one": one, "many": many, "verdict": verdict(one, many)}
    return found


def _rise(ends: Sequence[tuple[float, float]]) -> Rise:
    change = t_interval([last - first for first, last in ends])
    first = t_interval([first for first, _ in ends]).mean
    return {"first": first, "rise": change.mean, "low": change.low, "high": change.high}


def largest_k(analysis: Analysis) -> int | None:
    """The largest k of a `pass@k` that every run has which logged one."""
    known = [{k for k in PASSES if passes_name(k) in run.series} for run in analysis.runs]
    shared = set.intersection(*filter(None, known)) if any(known) else set()
    return max(shared - {1}, default=None)


def verdict(one: Rise, many: Rise) -> str:
    """What rose, by intervals that leave out 0."""
    if many["low"] is None or many["high"] is None or one["low"] is None:
        return Verdict.TOO_FEW
    if many["high"] < 0:
        return "narrower"
    if many["low"] > 0:
        return "more able"
    return "sharper" if one["low"] > 0 else "neither is seen to rise"


def _ends(run: Run, most: int) -> list[tuple[float, float]] | None:
    """pass@1 and pass@k, each at the first and at the last evaluation."""
    curves = [run.series.get(passes_name(k), Series()).values for k in (1, most)]
    return [(one[0], one[-1]) for one in curves] if all(len(one) > 1 for one in curves) else None
