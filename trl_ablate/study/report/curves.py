"""Runs in memory, from run directories; `foreign_runs` reads those of others. No torch.

Final value, area and collapse are defined only here.
"""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trl_ablate.metrics import ENTROPY, GENERATED_TOKENS, GRAD_NORM, LENGTH, stderr_of
from trl_ablate.run.logged import Series, read_series
from trl_ablate.study.definition import Statistic
from trl_ablate.study.planned import Plan, PlannedArm, PlannedRun
from trl_ablate.study.store import DONE, RunStore

DRAWN = (GRAD_NORM, LENGTH, ENTROPY)
"""Metrics that are drawn beside the deciding one."""
PASSES = tuple(2**power for power in range(10))
"""The k of `pass@k` that are read: evaluation logs the powers of two up to its samples."""
LOST_SHARE, NOISE_FLOOR, NOISE_ERRORS = 0.5, 0.02, 3.0
"""A run that ends below this share of its best value has collapsed, if it lost more than the floor,
and more than this many standard errors of an evaluation."""


@dataclass(frozen=True)
class Summary:
    """Summary of a curve."""

    final: float
    best: float
    best_step: float
    auc: float
    last_third: float
    """The mean over the last third of the planned steps."""
    collapsed_at: float | None

    @property
    def collapsed(self) -> bool:
        return self.collapsed_at is not None

    def value(self, statistic: Statistic) -> float:
        return getattr(self, statistic)


@dataclass
class Run:
    """The run of one arm with one seed, and its outcome."""

    arm: str
    seed: int | None
    status: str
    reason: str | None = None
    series: dict[str, Series] = field(default_factory=dict)
    planned_steps: float | None = None
    record: Mapping[str, Any] = field(default_factory=dict)
    directory: Path | None = None
    skipped: int = 0
    """Number of lines of `metrics.jsonl` that are not logged rows."""
    lost: frozenset[str] = frozenset()
    """Metrics of others' runs that ended in NaN, and count as 0 there, or as their lowest value."""
    group: str | None = None
    """Who made it, where runs of several are judged together."""

    @property
    def counts(self) -> bool:
        """Whether its values count in the statistics: it finished, or a rule stopped it."""
        return self.status in DONE

    @property
    def name(self) -> str:
        return self.arm if self.seed is None else f"{self.arm}-seed{self.seed}"

    @property
    def last_step(self) -> float | None:
        last = [series.steps[-1] for series in self.series.values() if series.steps]
        return max(last, default=None)

    def summary(self, metric: str) -> Summary | None:
        """None if the metric was never logged."""
        series, until = self.series.get(metric), self.planned_steps
        if series is None or not series.values:
            return None
        errors = self.series.get(stderr_of(metric))
        collapsed_at = self.record.get("diverged_at")  # the weights became NaN or infinite
        if collapsed_at is None and metric in self.lost:
            collapsed_at = series.steps[-1]
        if collapsed_at is None:
            collapsed_at = collapse_step(series, max(errors.values) if errors else 0.0)
        best = max(series.values)
        best_step = series.steps[series.values.index(best)]
        last_third = area(_last_third(series, until), until)
        return Summary(
            series.values[-1], best, best_step, area(series, until), last_third, collapsed_at
        )

    def before_training(self, metric: str) -> float | None:
        """The evaluation at step 0."""
        series = self.series.get(metric)
        return series.values[0] if series and series.steps and series.steps[0] == 0 else None

    def noise(self, metric: str, statistic: Statistic) -> float:
        """The standard error that evaluation gives to a summary: of the last evaluation, or of the
        area under those that it uses; 0 if no errors are logged."""
        errors, until = self.series.get(stderr_of(metric)), self.planned_steps
        if errors is None or not errors.values:
            return 0.0
        if statistic not in ("auc", "last_third"):
            return errors.values[-1]
        used = errors if statistic == "auc" else _last_third(errors, until)
        places = range(len(used.values))
        alone = ([used.values[i] * (i == j) for j in places] for i in places)  # of one evaluation
        return math.hypot(*(area(Series(used.steps, one), until) for one in alone))

    def outcome(self, metric: str) -> Summary | None:
        """The summary of a run that counts; None for one that failed or goes on."""
        return self.summary(metric) if self.counts else None


def area(series: Series, until: float | None = None) -> float:
    """The mean height of a curve (trapezoids over GRPO steps), on the scale of the metric.

    A curve that ends before `until` keeps its last value, so that a run that was stopped early does
    not look better than one that continued. The mean of one point is its value.
    """
    steps, values = list(series.steps), list(series.values)
    if until is not None and until > steps[-1]:
        steps.append(until)
        values.append(values[-1])
    if len(steps) == 1:
        return values[0]
    points = [*zip(steps, values, strict=True)]
    trapezoids = [(t - s) * (a + b) / 2 for (s, a), (t, b) in itertools.pairwise(points)]
    return sum(trapezoids) / (steps[-1] - steps[0])


def _last_third(series: Series, planned: float | None) -> Series:
    """The points in the last third of the steps; of a run that was stopped before, the last one."""
    start = 2 / 3 * (planned or series.steps[-1])
    first = next((i for i, step in enumerate(series.steps) if step > start), -1)
    return Series(series.steps[first:], series.values[first:])


def collapse_step(series: Series, stderr: float = 0.0) -> float | None:
    """The step from which a run stayed below half of its best value until its end, or None.

    The loss has to exceed the noise of an evaluation (0.02, and 3 standard errors), so that a run
    that never learned has not collapsed; if the standard error is unknown (0), the last two
    evaluations have to be low. A loss of the starting value counts too: with a very high learning
    rate the reward may never rise. No value is half of a best one below 0.
    """
    best = max(series.values)
    noise = max(NOISE_FLOOR, NOISE_ERRORS * stderr)
    low = [value < LOST_SHARE * best and best - value > noise for value in series.values]
    if best <= 0 or len(low) < 3 or not all(low[-1 if stderr else -2 :]):
        return None
    recovered = max(place for place, is_low in enumerate(low) if not is_low)
    return series.steps[recovered + 1]


def passes_name(k: int) -> str:
    return f"eval_pass@{k}"


def planned_runs(plan: Plan, store: RunStore) -> list[Run]:
    """Every run of a plan, arm by arm; runs that have not started have no curves."""
    return [planned_run(plan, arm, run, store) for arm in plan.arms for run in arm.runs]


def planned_run(plan: Plan, arm: PlannedArm, planned: PlannedRun, store: RunStore) -> Run:
    """Of a run with NaN weights, the evaluations before, and none better than 0 from then on."""
    state, directory = store.state(planned.id), store.directory(planned.id)
    metric, curves, skipped = plan.primary_metric, {}, 0
    if state.status != "to do" and directory.metrics_file.is_file():
        drawn = (*DRAWN, GENERATED_TOKENS)
        beside = (stderr_of(metric), *map(passes_name, PASSES))
        curves, skipped = read_series(directory.metrics_file, metric, beside, drawn)
    diverged_at = state.record.get("diverged_at")
    if diverged_at is not None:  # a policy with NaN weights gives no answers
        ended = curves.setdefault(metric, Series())
        while ended.steps and ended.steps[-1] >= diverged_at:  # it was evaluated once more
            for part in (ended.steps, ended.values, ended.seconds):
                part.pop()
        ended.steps.append(diverged_at)
        ended.values.append(min([0.0, *ended.values]))
        ended.seconds.append(ended.seconds[-1] if ended.seconds else 0.0)
    return Run(
        arm.name, planned.seed, state.status, state.reason, curves, arm.grpo_steps or None,
        state.record, directory.path, skipped,
    )  # fmt: skip
