"""The figures of an arm at a point, from gradients of B rollout batches, and the verdict on them by
rules that are printed with the result. Pure numbers.

With r_b the reference's gradient on batch b, a_b the arm's, and bars for means over batches:

    norm_ratio      mean |a_b| / mean |r_b|
    cosine_batch    mean of cos(a_b, r_b) over the batches, with its smallest
    cosine_mean     cos(ā, r̄)
    self_cosine     mean of cos(a_b, a_c) over pairs b ≠ c
    signal²         mean of a_b·a_c over pairs: the squared norm of the expected gradient, unbiased
    noise²          mean of |a_b|² minus signal²: the spread over batches
    floor           median over b of cos(r̄, r̄ without batch b): how much the reference's own mean
                    moves with one batch less. None with a single batch

Intervals are 95 % intervals over batches, from the jackknife. Every statistic is computed from
inner products of sketches, norms from the whole gradients. A gradient of zero has a cosine of 0
with another, and none with one of zero, which is left out of means.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import stats

from trl_ablate.xray.gradients import BY, TakenGradients

Interval = tuple[float, float] | None
LEAST = 3
"""Batches for an interval."""

SAME = 0.9999
"""Cosine on every batch from which on two gradients are the same up to rounding."""
SAME_NORM = 0.001
HALF = 0.5**0.5
"""Cosine below which less than half of the squared gradient is along the reference's."""
SHIFTED = 0.1
"""Share of the gradient from which on a move to other classes is named."""
LEAST_FLOOR = 0.95
"""Gradients of few or noisy batches have a low floor, but arms are compared on equal batches."""
STEADY = 0.1
NAMED = ("sign", "length", "difficulty")

RULES = {
    "no gradient": "the gradients are zero on every rollout batch",
    "no gradient of the reference": "the reference's gradients are zero on every rollout batch, "
    "and the arm's are not",
    "inert": "cosine of 1.0000 with the reference on every rollout batch, and a norm ratio of "
    "1 ± 0.001",
    "only rescales": "cosine of the mean gradients not below the noise floor (the cosine of the "
    "reference's mean gradient with that of one batch less, and at least 0.95), and less than 10 % "
    "of the gradient moved to another class",
    "other direction": "cosine of the mean gradients below 0.71, so that less than half of the "
    "squared gradient is along the reference's; against: below 0",
    "reweights": "everything between; names by what at least 10 % of the gradient moved to another "
    "class: sign of the advantage, response length, question difficulty",
    "steadier, noisier": "the 95 % interval of the ratio of signal to noise, relative to the "
    "reference's, is above or below 1, and the ratio differs from 1 by at least a tenth",
}


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
    plain: Directions
    adam: Directions | None
    """After the optimizer's own scaling of every coordinate."""
    modules: dict[str, dict[str, float]]
    """Kind of module, or layer -> norm ratio and cosine of the mean gradients."""
    shares: dict[str, list[float]]
    """By class of `gradients.py`; they add up to 1, or are all 0."""
    shifts: dict[str, float]
    """Share that is in other classes than the reference's: half the sum of absolute differences."""
    tokens: dict[str, float]


def figures_of(arm: TakenGradients, reference: TakenGradients) -> ArmFigures:
    plain, *scaled = [
        directions(*(one.sketches_BKM[:, k] for one in (arm, reference)),
                   *(one.norms_BK[:, k] for one in (arm, reference)))
        for k in range(arm.norms_BK.shape[1])
    ]  # fmt: skip
    shares, others = (
        {by: one.pushes[by].sum(axis=0) / (one.pushes[by].sum() or 1.0) for by in BY}
        for one in (arm, reference)
    )
    return ArmFigures(
        plain=plain,
        adam=scaled[0] if scaled else None,
        modules=by_module(arm, reference),
        shares={by: one.tolist() for by, one in shares.items()},
        shifts={by: float(np.abs(shares[by] - others[by]).sum() / 2) for by in BY},
        tokens=arm.tokens,
    )


def directions(
    arm_BM: np.ndarray, reference_BM: np.ndarray, norms_B: np.ndarray, reference_norms_B: np.ndarray
) -> Directions:
    arm_BM, reference_BM = arm_BM.astype(float), reference_BM.astype(float)
    own_BB, reference_BB = arm_BM @ arm_BM.T, reference_BM @ reference_BM.T
    across_BB = arm_BM @ reference_BM.T

    def mean_cosine(rows: np.ndarray) -> float:
        own, reference, across = (
            one[np.ix_(rows, rows)].sum() for one in (own_BB, reference_BB, across_BB)
        )
        return _cosine(across, math.sqrt(max(0.0, own * reference)))

    def steadiness(rows: np.ndarray) -> float | None:
        arm, reference = (_snr(one[np.ix_(rows, rows)]) for one in (own_BB, reference_BB))
        return None if arm is None or reference is None else arm / reference

    own_B, reference_B, across_B = map(np.diag, (own_BB, reference_BB, across_BB))
    lengths_B = np.sqrt(own_B * reference_B)
    cosines_B = (across_B / np.where(lengths_B == 0, 1.0, lengths_B)).clip(-1, 1)
    cosines_B = cosines_B[~np.isnan(cosines_B) & ((own_B != 0) | (reference_B != 0))]
    signal, noise = _signal_and_noise(own_BB)
    everything = np.arange(len(arm_BM))
    return Directions(
        norm_ratio=_ratio(float(np.mean(norms_B)), float(np.mean(reference_norms_B))),
        cosine_batch=float(cosines_B.mean()) if len(cosines_B) else math.nan,
        cosine_batch_interval=jackknife(lambda rows: float(cosines_B[rows].mean()), len(cosines_B)),
        cosine_batch_min=float(cosines_B.min()) if len(cosines_B) else math.nan,
        cosine_mean=mean_cosine(everything),
        cosine_mean_interval=jackknife(mean_cosine, len(everything)),
        self_cosine=_self_cosine(own_BB),
        signal=signal,
        noise=noise,
        signal_to_noise=_snr(own_BB),
        steadiness=steadiness(everything),
        steadiness_interval=jackknife(steadiness, len(everything)),
    )


def _self_cosine(gram_BB: np.ndarray) -> float:
    norms_B = np.sqrt(np.diag(gram_BB))
    rows = np.flatnonzero(norms_B)
    if len(rows) < 2:
        return math.nan
    return _off_diagonal(gram_BB[np.ix_(rows, rows)] / np.outer(norms_B[rows], norms_B[rows]))


def _signal_and_noise(gram_BB: np.ndarray) -> tuple[float, float]:
    """Norm of the expected gradient, and the spread; the signal is 0 if there is none."""
    if len(gram_BB) < 2:
        return math.nan, math.nan
    signal = _off_diagonal(gram_BB)
    return math.sqrt(max(0.0, signal)), math.sqrt(max(0.0, np.diag(gram_BB).mean() - signal))


def _snr(gram_BB: np.ndarray) -> float | None:
    signal, noise = _signal_and_noise(gram_BB)
    return signal / noise if signal > 0 and noise > 0 else None


def _off_diagonal(table_BB: np.ndarray) -> float:
    """The mean over pairs of different batches."""
    count = len(table_BB)
    return float((table_BB.sum() - np.trace(table_BB)) / (count * (count - 1)))


def floor_of(reference: TakenGradients) -> float | None:
    sketches_BM = reference.sketches_BKM[:, 0].astype(float)
    if len(sketches_BM) < 2:
        return None
    sums_M = sketches_BM.sum(axis=0)
    return float(np.nanmedian([cosine(sums_M, sums_M - one_M) for one_M in sketches_BM]))


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    return _cosine(float(one @ other), float(np.linalg.norm(one) * np.linalg.norm(other)))


def _cosine(product: float, lengths: float) -> float:
    return float(np.clip(product / lengths, -1, 1)) if lengths else math.nan


def _ratio(one: float, other: float) -> float:
    return one / other if other else math.nan


def by_module(arm: TakenGradients, reference: TakenGradients) -> dict[str, dict[str, float]]:
    """Of the mean gradients: by kind of module over all layers, and by layer."""
    members: dict[str, list[int]] = {}
    for number, cell in enumerate(arm.cells):
        layer, _, kind = cell.rpartition(" ")
        for name in [kind, f"layer {layer}"] if layer else [kind]:
            members.setdefault(name, []).append(number)
    found = {}
    for name, numbers in members.items():
        own, other = (
            one.cell_sketches_CM[numbers].astype(float).ravel() for one in (arm, reference)
        )
        ratio = _ratio(float(np.linalg.norm(own)), float(np.linalg.norm(other)))
        found[name] = {"norm_ratio": ratio, "cosine": cosine(own, other)}
    return found


def jackknife(statistic: Callable[[np.ndarray], float | None], count: int) -> Interval:
    """The 95 % interval of a statistic of so many batches: of a mean, its t interval. None with
    fewer than `LEAST`, or where the statistic is undefined without one."""
    everything = np.arange(count)
    if count < LEAST or (whole := statistic(everything)) is None:
        return None
    values = np.array([statistic(np.delete(everything, one)) for one in everything], float)
    if np.isnan(values).any():  # None is NaN here
        return None
    error = math.sqrt((count - 1) / count * float(((values - values.mean()) ** 2).sum()))
    half = float(stats.t.ppf(0.975, count - 1)) * error
    return whole - half, whole + half


@dataclass(frozen=True)
class Verdict:
    words: str
    sentence: str
    reweights: dict[str, float]
    """Share of the gradient that moved to another class; 0 below `SHIFTED`."""


def verdict_of(
    found: ArmFigures, floor: float | None, *, adam: bool, steps: float = 1.0
) -> Verdict:
    """The verdict by `RULES`.

    Args:
        floor: the noise floor; None: that of rounding.
        adam: whether the optimizer undoes a common factor of the gradient.
        steps: optimizer steps per rollout batch, divided by those of the reference.
    """
    plain, cosine = found.plain, found.plain.cosine_mean
    moved = {name: one if (one := found.shifts[name]) >= SHIFTED else 0.0 for name in NAMED}
    reweights = dict(sorted(moved.items(), key=lambda item: -item[1]))
    named = [name for name, share in reweights.items() if share]
    least = SAME if floor is None else min(SAME, max(floor, LEAST_FLOOR))
    if math.isnan(cosine):
        of_reference = math.isnan(plain.norm_ratio) and not math.isnan(plain.cosine_batch)
        words = "no gradient" + " of the reference" * of_reference
        return Verdict(words, RULES[words], reweights)
    if plain.cosine_batch_min >= SAME and abs(plain.norm_ratio - 1) <= SAME_NORM:
        return Verdict("inert", "the same gradient as the reference's", reweights)
    if cosine >= least and not named:
        return Verdict("only rescales", _rescales(plain.norm_ratio, adam, steps), reweights)
    if cosine < HALF:
        words = "other direction" + ", against" * (cosine < 0)
        where = "against" if cosine < 0 else "off"
        sentence = f"the mean gradient points {where} the reference's (cosine {cosine:.2f})"
    else:
        words = f"reweights {', '.join(named)}".rstrip()
        sentence = f"the mean gradient is turned (cosine {cosine:.2f})"
    if named:
        shares = ", ".join(f"{name} {100 * reweights[name]:.0f} %" for name in named)
        sentence += f"; it moved to other classes by {shares}"
    ratio, interval = plain.steadiness, plain.steadiness_interval
    if ratio and interval and abs(ratio - 1) >= STEADY and not interval[0] <= 1 <= interval[1]:
        words += ", steadier" if interval[0] > 1 else ", noisier"
        sentence += f"; signal to noise × {ratio:.2f}"
    return Verdict(words, sentence, reweights)


def _rescales(ratio: float, adam: bool, steps: float) -> str:
    if steps != 1:
        return (
            f"the sum over × {steps:.3g} optimizer steps per rollout batch is × {ratio:.3g}; the "
            "number of steps is undone neither by a learning rate nor by Adam, and only --drift "
            "shows how later steps differ"
        )
    return f"a learning rate × {1 / ratio:.3g} undoes it" + "; Adam undoes it by itself" * adam
