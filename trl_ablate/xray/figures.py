"""The figures of an arm at a point, from gradients of B rollout batches. Pure numbers.

With r_b the reference's gradient on batch b, a_b the arm's, and bars for means over batches:

    norm_ratio      mean |a_b| / mean |r_b|
    cosine_batch    mean of cos(a_b, r_b) over the batches, with its smallest
    cosine_mean     cos(ā, r̄)
    self_cosine     mean of cos(a_b, a_c) over pairs b ≠ c
    signal²         mean of a_b·a_c over pairs: the squared norm of the expected gradient, unbiased
    noise²          mean of |a_b|² minus signal²: the spread over batches
    floor           median over b of cos(r̄, r̄ without batch b): how much the reference's own mean
                    moves with one batch less. None with a single batch

Intervals are 95 % t intervals over batches; those of statistics of all batches together are from
the jackknife. Every statistic is computed from inner products of sketches, norms from the whole
gradients. A gradient of zero has no cosine with another, and is left out of means.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from trl_ablate.study.report.stats import t_interval
from trl_ablate.xray.gradients import TakenGradients
from trl_ablate.xray.pushes import BY

Interval = tuple[float, float] | None
LEAST = 3
"""Batches for an interval."""


@dataclass(frozen=True)
class Directions:
    """How an arm's gradients lie to the reference's."""

    norm_ratio: float
    cosine_batch: float
    cosine_batch_interval: Interval
    cosine_batch_min: float
    cosine_mean: float
    cosine_mean_interval: Interval
    self_cosine: float
    signal: float
    noise: float
    signal_to_noise: float | None
    """None if the batches show no common direction."""
    steadiness: float | None
    """Its ratio to the reference's."""
    steadiness_interval: Interval


@dataclass(frozen=True)
class ArmFigures:
    """All figures of an arm at one point."""

    plain: Directions
    adam: Directions | None
    """After the optimizer's own scaling of every coordinate."""
    modules: dict[str, dict[str, float]]
    """Kind of module, or layer -> norm ratio and cosine of the mean gradients."""
    shares: dict[str, list[float]]
    """See `pushes.py`: shares by class, which add up to 1."""
    shifts: dict[str, float]
    """Share of the gradient that is in other classes than the reference's."""
    tokens: dict[str, float]


def figures_of(arm: TakenGradients, reference: TakenGradients) -> ArmFigures:
    adam = None
    if arm.adam_sketches_BM is not None and reference.adam_sketches_BM is not None:
        adam = directions(
            arm.adam_sketches_BM, reference.adam_sketches_BM,
            arm.adam_norms_B, reference.adam_norms_B,
        )  # fmt: skip
    shares = {name: share_of(arm.pushes[name]) for name in BY}
    return ArmFigures(
        plain=directions(arm.sketches_BM, reference.sketches_BM, arm.norms_B, reference.norms_B),
        adam=adam,
        modules=by_module(arm, reference),
        shares={name: one.tolist() for name, one in shares.items()},
        shifts={name: shift(shares[name], share_of(reference.pushes[name])) for name in BY},
        tokens=arm.tokens,
    )


def directions(arm_BM: Any, reference_BM: Any, norms_B: Any, reference_norms_B: Any) -> Directions:
    """The figures from sketches `(B, M)` and norms `(B,)`."""
    gram = Gram(np.asarray(arm_BM, float), np.asarray(reference_BM, float))
    everything = np.arange(len(arm_BM))
    cosines_B = gram.batch_cosines()
    known_B = cosines_B[~np.isnan(cosines_B)]
    signal, noise = gram.signal_and_noise(everything, of_arm=True)
    ratio = gram.snr(everything, of_arm=True)
    return Directions(
        norm_ratio=_ratio(float(np.mean(norms_B)), float(np.mean(reference_norms_B))),
        cosine_batch=_mean(known_B),
        cosine_batch_interval=_of_mean(known_B),
        cosine_batch_min=float(known_B.min()) if len(known_B) else math.nan,
        cosine_mean=gram.mean_cosine(everything),
        cosine_mean_interval=jackknife(gram.mean_cosine, len(everything)),
        self_cosine=gram.self_cosine(),
        signal=signal,
        noise=noise,
        signal_to_noise=ratio,
        steadiness=gram.steadiness(everything),
        steadiness_interval=jackknife(gram.steadiness, len(everything)),
    )


class Gram:
    """Inner products of an arm's and the reference's gradients; `rows` are numbers of batches."""

    def __init__(self, arm_BM: np.ndarray, reference_BM: np.ndarray):
        self._aa = arm_BM @ arm_BM.T
        self._rr = reference_BM @ reference_BM.T
        self._ar = arm_BM @ reference_BM.T

    def batch_cosines(self) -> np.ndarray:
        """`(B,)`; NaN where both are zero, 0 where one is."""
        lengths_B = np.sqrt(np.diag(self._aa) * np.diag(self._rr))
        both_B = (np.diag(self._aa) == 0) & (np.diag(self._rr) == 0)
        cosines_B = np.diag(self._ar) / np.where(lengths_B == 0, 1.0, lengths_B)
        return np.where(both_B, np.nan, cosines_B.clip(-1, 1))

    def mean_cosine(self, rows: np.ndarray) -> float:
        square = np.ix_(rows, rows)
        lengths = math.sqrt(max(0.0, self._aa[square].sum() * self._rr[square].sum()))
        cosine = self._ar[square].sum() / lengths if lengths else math.nan
        return float(np.clip(cosine, -1, 1))

    def self_cosine(self) -> float:
        norms_B = np.sqrt(np.diag(self._aa))
        rows = np.flatnonzero(norms_B)
        if len(rows) < 2:
            return math.nan
        cosines = self._aa[np.ix_(rows, rows)] / np.outer(norms_B[rows], norms_B[rows])
        return float(_off_diagonal_mean(cosines))

    def signal_and_noise(self, rows: np.ndarray, *, of_arm: bool) -> tuple[float, float]:
        """Norm of the expected gradient, and the spread; the signal is 0 if there is none."""
        if len(rows) < 2:
            return math.nan, math.nan
        table = (self._aa if of_arm else self._rr)[np.ix_(rows, rows)]
        signal = _off_diagonal_mean(table)
        return math.sqrt(max(0.0, signal)), math.sqrt(max(0.0, np.diag(table).mean() - signal))

    def snr(self, rows: np.ndarray, *, of_arm: bool) -> float | None:
        signal, noise = self.signal_and_noise(rows, of_arm=of_arm)
        return signal / noise if signal > 0 and noise > 0 else None

    def steadiness(self, rows: np.ndarray) -> float | None:
        """The arm's signal-to-noise ratio divided by the reference's."""
        arm, reference = self.snr(rows, of_arm=True), self.snr(rows, of_arm=False)
        return None if arm is None or reference is None else arm / reference


def floor_of(reference: TakenGradients) -> float | None:
    """See the module; None with a single batch."""
    sketches_BM = np.asarray(reference.sketches_BM, float)
    if len(sketches_BM) < 2:
        return None
    sums_M = sketches_BM.sum(axis=0)
    cosines = [cosine(sums_M, sums_M - one_M) for one_M in sketches_BM]
    return float(np.nanmedian(cosines))


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    lengths = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(np.clip(one @ other / lengths, -1, 1)) if lengths else math.nan


def by_module(arm: TakenGradients, reference: TakenGradients) -> dict[str, dict[str, float]]:
    """Of the mean gradients: by kind of module over all layers, and by layer."""
    members: dict[str, list[int]] = {}
    for number, cell in enumerate(arm.cells):
        layer, _, kind = cell.rpartition(" ")
        members.setdefault(kind, []).append(number)
        if layer:
            members.setdefault(f"layer {layer}", []).append(number)
    found = {}
    for name, numbers in members.items():
        parts = [
            np.concatenate([one.cell_sketches_CM[number] for number in numbers]).astype(float)
            for one in (arm, reference)
        ]
        norms = [float(np.linalg.norm(part)) for part in parts]
        found[name] = {"norm_ratio": _ratio(*norms), "cosine": cosine(*parts)}
    return found


def share_of(pushes_BC: np.ndarray) -> np.ndarray:
    """The share of each class, `(C,)`; zeros if nothing was pushed."""
    total = pushes_BC.sum()
    return pushes_BC.sum(axis=0) / (total if total else 1.0)


def shift(shares_C: np.ndarray, reference_C: np.ndarray) -> float:
    """Half the sum of absolute differences: the share that is in another class."""
    return float(np.abs(shares_C - reference_C).sum() / 2)


def _of_mean(values_B: np.ndarray) -> Interval:
    """The 95 % t interval of the mean; None with fewer than `LEAST` values."""
    found = t_interval(values_B.tolist())
    if len(values_B) < LEAST or found.low is None or found.high is None:
        return None
    return found.low, found.high


def jackknife(statistic: Callable[[np.ndarray], float | None], count: int) -> Interval:
    """The 95 % interval of a statistic of all batches; None where it is undefined without one."""
    everything = np.arange(count)
    whole = statistic(everything)
    if count < LEAST or whole is None:
        return None
    left_out = [statistic(np.delete(everything, number)) for number in range(count)]
    if None in left_out or any(math.isnan(one) for one in left_out if one is not None):
        return None
    values = np.array(left_out, float)
    error = math.sqrt((count - 1) / count * float(((values - values.mean()) ** 2).sum()))
    half = float(stats.t.ppf(0.975, count - 1)) * error
    return whole - half, whole + half


def _off_diagonal_mean(table: np.ndarray) -> float:
    count = len(table)
    return float((table.sum() - np.trace(table)) / (count * (count - 1)))


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else math.nan


def _ratio(one: float, other: float) -> float:
    return one / other if other else math.nan
