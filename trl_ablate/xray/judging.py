"""What an arm does to the update, by rules that are printed with the result."""

import math
from dataclasses import dataclass

from trl_ablate.xray.figures import ArmFigures, Directions

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
class Verdict:
    """The verdict of an arm at a point."""

    words: str
    """Such as "other direction, steadier"."""
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
    least = SAME if floor is None else max(floor, LEAST_FLOOR)
    if math.isnan(cosine):
        return Verdict("no gradient", RULES["no gradient"], reweights)
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
    if noise := _noise(plain):
        words += f", {noise}"
        sentence += f"; signal to noise × {plain.steadiness:.2f}"
    return Verdict(words, sentence, reweights)


def _noise(plain: Directions) -> str | None:
    """Steadier, noisier, or None where the batches do not tell."""
    ratio, interval = plain.steadiness, plain.steadiness_interval
    if ratio is None or interval is None or abs(ratio - 1) < STEADY:
        return None
    return "steadier" if interval[0] > 1 else "noisier" if interval[1] < 1 else None


def _rescales(ratio: float, adam: bool, steps: float) -> str:
    if steps != 1:
        return (
            f"the sum over × {steps:.3g} optimizer steps per rollout batch is × {ratio:.3g}; the "
            "number of steps is undone neither by a learning rate nor by Adam, and only --drift "
            "shows how later steps differ"
        )
    return f"a learning rate × {1 / ratio:.3g} undoes it" + "; Adam undoes it by itself" * adam
