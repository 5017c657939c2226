"""A seeded random projection of a gradient to `SIZE` numbers: a count sketch.

Each coordinate i of a gradient is added, with a random sign, to one random place of the sketch:

    sketch[place(i)] += sign(i) · gradient[i]

The inner product of two sketches is an unbiased estimate of that of the gradients. The standard
error of a cosine c is about (1 - c²) / √SIZE, at most 0.004 for gradients that are spread over many
coordinates. Gradients in the same direction have sketches in the same direction, so a cosine of 1
stays 1 up to rounding. Place and sign are a hash of the seed and of i, computed in chunks: nothing
of the size of the model is stored, and every device and process has the same projection.

Left out: a dense projection, which costs `SIZE` times the model instead of the model.
"""

import torch

SIZE = 2**16
CHUNK = 2**22
"""Coordinates that are hashed at once."""

_GOLDEN, _FIRST, _SECOND = (
    0x9E3779B97F4A7C15 - 2**64,
    0xBF58476D1CE4E5B9 - 2**64,
    0x94D049BB133111EB - 2**64,
)
"""The constants of splitmix64 as signed integers, whose products wrap around in torch."""


def places_and_signs(
    first: int, count: int, seed: int, device: torch.device | str = "cpu"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Place, int64, and sign, float32, of the coordinates `first` to `first + count - 1`."""
    hashed_n = torch.arange(first + 1, first + count + 1, dtype=torch.int64, device=device)
    of_seed = (seed * _FIRST + _GOLDEN + 2**63) % 2**64 - 2**63  # wraps around, as torch does
    hashed_n = _mixed(_mixed(hashed_n * _GOLDEN) + of_seed)
    return hashed_n & (SIZE - 1), 1.0 - 2.0 * ((hashed_n >> 40) & 1).float()


def add_to(sketches_KM: torch.Tensor, gradients_Kn: torch.Tensor, first: int, seed: int) -> None:
    """Add K gradients of the same n coordinates to their sketches.

    Args:
        first: the number of their first coordinate among those of the whole model.
    """
    for start in range(0, gradients_Kn.size(1), CHUNK):
        part_Kn = gradients_Kn[:, start : start + CHUNK]
        places_n, signs_n = places_and_signs(
            first + start, part_Kn.size(1), seed, gradients_Kn.device
        )
        sketches_KM.index_add_(1, places_n, part_Kn.float() * signs_n)


def _mixed(values_n: torch.Tensor) -> torch.Tensor:
    """The mixing steps of splitmix64."""
    values_n = (values_n ^ _right(values_n, 30)) * _FIRST
    values_n = (values_n ^ _right(values_n, 27)) * _SECOND
    return values_n ^ _right(values_n, 31)


def _right(values_n: torch.Tensor, bits: int) -> torch.Tensor:
    """A shift to the right that fills with zeros; torch's own copies the sign."""
    return (values_n >> bits) & ((1 << (64 - bits)) - 1)
