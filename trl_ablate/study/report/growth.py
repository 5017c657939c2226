"""Learning curves as three parameters: R(C) = R0 + (A - R0) / (1 + (C_mid / C)^B).

R0 is the first value, A the ceiling, C_mid the GRPO step at which half of the way is done, B how
steep the rise is (Khatri et al. 2025, "The Art of Scaling Reinforcement Learning Compute for
LLMs"). A and C_mid are searched over a grid; for each, B follows from weighted least squares of the
log odds of the way done, whose slope over log C it is; the weights make the errors those of R.

The parameters describe a curve; no verdict rests on them. Trained on the first half of a curve, the
fit has to predict the second half better than the last value and better than a power law
R = A - D C^-a. On 20 different runs of two-digit sums (16 evaluations each) and the two published
ones (51), it beats the last value in 22 of 22 (root mean square error 0.034 against 0.055), and the
power law in 12 of 22 (0.034 against 0.036): that is a tie. So reports show no verdict such as
"raises the ceiling" or "only faster".
"""

from dataclasses import dataclass

import numpy as np

from trl_ablate.study.report.analysis import Analysis
from trl_ablate.study.report.curves import Series
from trl_ablate.study.report.document import Columns, Section, table
from trl_ablate.study.report.numbers import interval
from trl_ablate.study.report.stats import Interval, t_interval

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
