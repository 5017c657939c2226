"""How did training go? Learning curves as three parameters, and pass@1 against pass@k.

R(C) = R0 + (A - R0) / (1 + (C_mid / C)^B): R0 is the first value, A the ceiling, C_mid the GRPO
step at which half of the way is done, B how steep the rise is (Khatri et al. 2025, "The Art of
Scaling Reinforcement Learning Compute for LLMs"). A and C_mid are searched over a grid; for each, B
follows from weighted least squares of the log odds of the way done, whose slope over log C it is;
the weights make the errors those of R.

No verdict rests on the parameters: fitted to the first half of 22 curves, they predict the second
half better than the last value in 22 (root mean square error 0.034 against 0.055), and better than
a power law R = A - D C^-a in 12 (0.034 against 0.036), which is a tie.

pass@1 is what one sample is worth; pass@k, whether one of k samples is right. If pass@1 rises and
pass@k does not, answers that the model gave now and then have become its usual ones. Where pass@k
is near 1 from the start, it cannot show new ability.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from trl_ablate.study.report.analysis import Analysis
from trl_ablate.study.report.curves import PASSES, Run, Series, passes_name
from trl_ablate.study.report.document import Columns, Section, table
from trl_ablate.study.report.numbers import difference, interval, number
from trl_ablate.study.report.stats import Interval, interval_of, t_interval
from trl_ablate.study.verdict import Verdict

LEAST_POINTS, MOST_POINTS = 6, 50
"""After the first, for a fit of three parameters; a longer curve is averaged in blocks, as the fit
looks at all points for each pair on the grid."""
CEILINGS, MIDDLES = 60, 60
EDGE = 0.01
"""The log odds are taken of shares of the way between this and one minus this."""
FLATTEST, STEEPEST = 0.1, 12.0
LEAST_BELOW = 2
"""Evaluations after the first that have to lie below half of the way seen."""
PARAMETERS = {"A": "ceiling", "B": "steepness", "C_mid": "half-way step"}
NOTE = (
    "R(C) = R0 + (A - R0) / (1 + (C_mid / C)^B), fitted to each run that did not collapse: mean ± "
    "half the 95 % t interval over seeds. Runs of which fewer than two evaluations after the first "
    "lie below half of the rise, or whose best fit is at the edge of what is tried, are left out, "
    "and so is an arm if these are half of its runs. "
    "No verdict rests on the parameters, as the fit predicts the second half of a curve no better "
    "than a power law does."
)


@dataclass(frozen=True)
class Growth:
    """The fit of one run."""

    start: float
    A: float
    B: float
    C_mid: float

    def at(self, steps: np.ndarray) -> np.ndarray:
        return self.start + (self.A - self.start) * _share(steps, self.B, self.C_mid)


def fit(series: Series) -> Growth | None:
    """The best fit; None with too few points, or if the curve never rises above its first value.
    The highest ceiling that is tried is twice the way seen. None, too, where the curve does not
    tell: its rise was not evaluated, or the best fit is at an edge of what was tried."""
    steps, values = (np.asarray(each, float) for each in (series.steps, series.values))
    later = steps > max(0.0, steps[0]) if len(steps) else np.zeros(0, bool)
    if later.sum() < LEAST_POINTS or values[later].max() <= values[0]:
        return None
    start, steps, values = float(values[0]), _thinned(steps[later]), _thinned(values[later])
    way = values.max() - start
    if (values < start + way / 2).sum() < LEAST_BELOW:
        return None
    ceilings = np.linspace(start + 0.6 * way, start + 2 * way, CEILINGS)[:, None, None]
    middles = np.geomspace(steps[0] / 4, steps[-1] * 2, MIDDLES)[None, :, None]
    share = np.clip((values - start) / (ceilings - start), EDGE, 1 - EDGE)
    weight = (share * (1 - share)) ** 2
    distance = np.log(steps / middles)
    slope = (weight * np.log(share / (1 - share)) * distance).sum(-1, keepdims=True)
    slope = np.clip(slope / (weight * distance**2).sum(-1, keepdims=True), FLATTEST, STEEPEST)
    fitted = start + (ceilings - start) * _share(steps, slope, middles)
    errors = ((fitted - values) ** 2).sum(-1)
    first, second = np.unravel_index(int(errors.argmin()), errors.shape)
    inside = first < CEILINGS - 1 and 0 < second < MIDDLES - 1
    found = ceilings[first, 0, 0], slope[first, second, 0], middles[0, second, 0]
    return Growth(start, *map(float, found)) if inside and FLATTEST < found[1] < STEEPEST else None


def _thinned(values: np.ndarray) -> np.ndarray:
    if len(values) <= MOST_POINTS:
        return values
    return np.array([block.mean() for block in np.array_split(values, MOST_POINTS)])


def _share(steps: np.ndarray, slope, middle) -> np.ndarray:
    """The share of the way that is done."""
    return 1 / (1 + (middle / steps) ** slope)


def parameters(analysis: Analysis) -> dict[str, dict[str, Interval]]:
    """A, B and C_mid of every arm, over its runs that did not collapse, if most have a fit: the
    few that rise late enough to be seen are not like the others."""
    found: dict[str, dict[str, Interval]] = {}
    for arm in analysis.arms:
        both = zip(arm.runs, arm.summaries, strict=True)
        calm = [run.series[analysis.metric] for run, s in both if s and not s.collapsed]
        fits = [vars(each) for each in map(fit, calm) if each]
        if 2 * len(fits) > len(calm):
            found[arm.name] = {key: t_interval([each[key] for each in fits]) for key in PARAMETERS}
    return found


def growth_table(found: dict[str, dict[str, Interval]]) -> Section:
    def shown(key: str) -> tuple[str, Callable[[str], str]]:
        return f"{PARAMETERS[key]} {key}", lambda arm: interval(found[arm][key])

    return table("Learning curves", found, [("arm", str), *map(shown, PARAMETERS)], NOTE)


PASSES_NOTE = (
    "From the first to the last evaluation of each run that has an outcome: mean over seeds, and "
    "the mean rise with its 95 % t interval. 'Sharper': pass@1 is seen to rise, pass@k is not. "
    "'More able': both are. 'Narrower': pass@k is seen to fall. The intervals are those of single "
    "arms, without a correction for their number."
)


def sharpening_table(analysis: Analysis) -> Section:
    """Empty, if evaluations drew one sample of each question."""
    most, found = largest_k(analysis), {}
    for arm in analysis.arms if most else ():
        ends = [ends for run in arm.runs if run.counts and (ends := _ends(run, most or 1))]
        if ends:
            found[arm.name] = [interval_of(column) for column in zip(*ends, strict=True)]
    columns: Columns = [
        ("arm", str),
        ("pass@1 at first", lambda arm: number(found[arm][0].mean)),
        ("its rise", lambda arm: difference(found[arm][1])),
        (f"pass@{most} at first", lambda arm: number(found[arm][2].mean)),
        ("its rise", lambda arm: difference(found[arm][3])),
        ("verdict", lambda arm: verdict(found[arm][1], found[arm][3])),
    ]
    return table("pass@1 and pass@k", found, columns, PASSES_NOTE)


def _ends(run: Run, most: int) -> tuple[float, ...] | None:
    """pass@1 at the first evaluation, its rise until the last one, and the same of pass@k."""
    one, many = (run.series.get(passes_name(k), Series()).values for k in (1, most))
    if len(one) < 2 or len(many) < 2:
        return None
    return one[0], one[-1] - one[0], many[0], many[-1] - many[0]


def largest_k(analysis: Analysis) -> int | None:
    """The largest k of a `pass@k` that every run has which logged one."""
    known = [{k for k in PASSES if passes_name(k) in run.series} for run in analysis.runs]
    shared = set.intersection(*filter(None, known)) if any(known) else set()
    return max(shared - {1}, default=None)


def verdict(one: Interval, many: Interval) -> str:
    """What rose, by intervals that leave out 0."""
    if many.low is None or many.high is None or one.low is None:
        return Verdict.TOO_FEW
    if many.high < 0:
        return "narrower"
    if many.low > 0:
        return "more able" if one.low > 0 else "pass@k alone is seen to rise"
    return "sharper" if one.low > 0 else "neither is seen to rise"
