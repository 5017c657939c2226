"""How did training go? Learning curves as three parameters, and pass@1 against pass@k.

R(C) = R0 + (A - R0) / (1 + (C_mid / C)^B): R0 is the first value, A the ceiling, C_mid the GRPO
step at which half of the way is done, B how steep the rise is (Khatri et al. 2025, "The Art of
Scaling Reinforcement Learning Compute for LLMs"). A and C_mid are searched over a grid; for each, B
follows from weighted least squares of the log odds of the way done, whose slope over log C it is;
the weights make the errors those of R.

The parameters describe a curve; no verdict rests on them. Trained on the first half of a curve, the
fit has to predict the second half better than the last value and better than a power law
R = A - D C^-a. On 20 different runs of two-digit sums (16 evaluations each) and the two published
ones (51), it beats the last value in 22 of 22 (root mean square error 0.034 against 0.055), and the
power law in 12 of 22 (0.034 against 0.036): that is a tie. So reports show no verdict such as
"raises the ceiling" or "only faster".

pass@1 is what one sample is worth; pass@k, whether one of k samples is right. If pass@1 rises and
pass@k does not, answers that the model gave now and then have become its usual ones. Where pass@k
is near 1 from the start, it cannot show new ability.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trl_ablate.study.report.analysis import Analysis
from trl_ablate.study.report.curves import PASSES, Run, Series, passes_name
from trl_ablate.study.report.document import Columns, Section, table
from trl_ablate.study.report.numbers import interval, number, within
from trl_ablate.study.report.stats import Interval, t_interval
from trl_ablate.study.verdict import Verdict

LEAST_POINTS = 6
"""Fewest points after the first for a fit of three parameters."""
MOST_POINTS = 50
"""A longer curve is averaged in blocks: the fit looks at all points for each pair on the grid."""
CEILINGS, MIDDLES = 60, 60
EDGE = 0.01
"""The log odds are taken of shares of the way between this and one minus this."""
STEEPEST = 12.0


PARAMETERS = {"A": "ceiling", "B": "steepness", "C_mid": "half-way step"}
NOTE = (
    "R(C) = R0 + (A - R0) / (1 + (C_mid / C)^B), fitted to each run that did not collapse: mean ± "
    "half the 95 % t interval over seeds. They describe the curves; no verdict rests on them, as "
    "the fit predicts the second half of a curve no better than a power law does."
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
    The highest ceiling that is tried is twice the way seen."""
    steps, values = (np.asarray(each, float) for each in (series.steps, series.values))
    later = steps > max(0.0, steps[0]) if len(steps) else np.zeros(0, bool)
    if later.sum() < LEAST_POINTS or values[later].max() <= values[0]:
        return None
    start, steps, values = float(values[0]), _thinned(steps[later]), _thinned(values[later])
    way = values.max() - start
    ceilings = np.linspace(start + 0.6 * way, start + 2 * way, CEILINGS)[:, None, None]
    middles = np.geomspace(steps[0] / 4, steps[-1] * 2, MIDDLES)[None, :, None]
    share = np.clip((values - start) / (ceilings - start), EDGE, 1 - EDGE)
    weight = (share * (1 - share)) ** 2
    distance = np.log(steps / middles)
    slope = (weight * np.log(share / (1 - share)) * distance).sum(-1, keepdims=True)
    slope = np.clip(slope / (weight * distance**2).sum(-1, keepdims=True), 0.1, STEEPEST)
    fitted = start + (ceilings - start) * _share(steps, slope, middles)
    errors = ((fitted - values) ** 2).sum(-1)
    first, second = np.unravel_index(int(errors.argmin()), errors.shape)
    return Growth(
        start, float(ceilings[first, 0, 0]), float(slope[first, second, 0]),
        float(middles[0, second, 0]),
    )  # fmt: skip


def _thinned(values: np.ndarray) -> np.ndarray:
    if len(values) <= MOST_POINTS:
        return values
    return np.array([block.mean() for block in np.array_split(values, MOST_POINTS)])


def _share(steps: np.ndarray, slope, middle) -> np.ndarray:
    """The share of the way that is done."""
    return 1 / (1 + (middle / steps) ** slope)


def parameters(analysis: Analysis) -> dict[str, dict[str, Interval]]:
    """A, B and C_mid of every arm with a fit, over its runs that did not collapse."""
    found: dict[str, dict[str, Interval]] = {}
    for arm in analysis.arms:
        both = zip(arm.runs, arm.summaries, strict=True)
        calm = [run for run, s in both if s is not None and not s.collapsed]
        fits = [each for run in calm if (each := fit(run.series[analysis.metric]))]
        if fits:
            found[arm.name] = {
                name: t_interval([getattr(each, name) for each in fits]) for name in PARAMETERS
            }
    return found


def growth_table(found: dict[str, dict[str, Interval]]) -> Section:
    columns: Columns = [
        ("arm", str),
        *(
            (f"{words} {key}", lambda arm, key=key: interval(found[arm][key]))
            for key, words in PARAMETERS.items()
        ),
    ]
    return table("Learning curves", found, columns, NOTE)


Rise = Mapping[str, float | None]
"""`first`, `rise`, `low`, `high` over seeds."""
PASSES_NOTE = (
    "From the first to the last evaluation of each run that has an outcome: mean over seeds, and "
    "the mean rise with its 95 % t interval. 'Sharper': pass@1 is seen to rise, pass@k is not. "
    "'More able': both are. 'Narrower': pass@k is seen to fall. The intervals are those of single "
    "arms, without a correction for their number."
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
    return table("pass@1 and pass@k", found, columns, PASSES_NOTE)


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
        return "more able" if one["low"] > 0 else "pass@k alone is seen to rise"
    return "sharper" if one["low"] > 0 else "neither is seen to rise"


def _ends(run: Run, most: int) -> list[tuple[float, float]] | None:
    """pass@1 and pass@k, each at the first and at the last evaluation."""
    curves = [run.series.get(passes_name(k), Series()).values for k in (1, most)]
    return [(one[0], one[-1]) for one in curves] if all(len(one) > 1 for one in curves) else None
