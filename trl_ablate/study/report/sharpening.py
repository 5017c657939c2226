"""pass@1 against pass@k: whether a training sharpens what the model could do, or adds to it.

pass@1 is what one sample is worth; pass@k, whether one of k samples is right. If pass@1 rises and
pass@k does not, answers that the model gave now and then have become its usual ones. Where pass@k
is near 1 from the start, it cannot show new ability.
"""

from trl_ablate.study.report.analysis import Analysis, ArmResult
from trl_ablate.study.report.curves import PASSES, Run, Series, passes_name
from trl_ablate.study.report.document import Grid, Section
from trl_ablate.study.report.numbers import difference, number
from trl_ablate.study.report.stats import Interval, t_interval

NOTE = (
    "From the first to the last evaluation of each run that has an outcome: mean over seeds, and "
    "the mean rise with its 95 % t interval. 'Sharper': pass@1 rises and pass@k does not. 'More "
    "able': pass@k rises, too. 'Narrower': pass@k falls. The intervals are those of single arms, "
    "without a correction for their number."
)


def sharpening_table(analysis: Analysis) -> Section | None:
    """Nothing, if evaluations drew one sample of each question."""
    most = largest_k(analysis)
    if most is None:
        return None
    rows = [row for arm in analysis.arms if (row := _row(arm, most))]
    header = ["arm", "pass@1 at first", "its rise", f"pass@{most} at first", "its rise", "verdict"]
    return Section("pass@1 and pass@k", [Grid(header, rows, NOTE)]) if rows else None


def largest_k(analysis: Analysis) -> int | None:
    """The largest k of a `pass@k` that every run has which logged one."""
    known = [
        {k for k in PASSES if passes_name(k) in run.series}
        for arm in analysis.arms
        for run in arm.runs
    ]
    shared = set.intersection(*filter(None, known)) if any(known) else set()
    return max(shared - {1}, default=None)


def verdict(of_one: Interval, of_k: Interval) -> str:
    """What rose, by intervals that leave out 0."""
    if of_k.low is None or of_k.high is None or of_one.low is None:
        return "too few seeds"
    if of_k.high < 0:
        return "narrower"
    if of_k.low > 0:
        return "more able"
    return "sharper" if of_one.low > 0 else "neither is seen to rise"


def _row(arm: ArmResult, most: int) -> list[str] | None:
    found = [ends for run in arm.runs if run.counts and (ends := _ends(run, most))]
    if not found:
        return None
    cells, rises = [], []
    for place in (0, 1):
        first = t_interval([ends[place][0] for ends in found])
        rises.append(t_interval([ends[place][1] - ends[place][0] for ends in found]))
        cells += [number(first.mean), difference(rises[-1])]
    return [arm.name, *cells, verdict(*rises)]


def _ends(run: Run, most: int) -> list[tuple[float, float]] | None:
    """pass@1 and pass@k, each at the first and at the last evaluation."""
    curves = [run.series.get(passes_name(k), Series()).values for k in (1, most)]
    return [(one[0], one[-1]) for one in curves] if all(len(one) > 1 for one in curves) else None
