"""The numbers of seeds at which a comparison may be decided, checked. No numpy.

`study.yaml` and `decide` take the same looks and margins; reading a study needs no numbers.
"""

import math
from collections.abc import Sequence
from numbers import Integral

from trl_ablate.errors import ConfigurationError

LOOKS = (3, 5, 8, 12)


def check_looks(looks: Sequence[int], what: str) -> tuple[int, ...]:
    """The looks; raises if they are not whole ascending numbers from 2 on: one difference has no
    spread."""
    found = tuple(looks)
    whole = all(isinstance(n, Integral) and not isinstance(n, bool) for n in found)
    ascending = whole and all(a < b for a, b in zip(found, found[1:], strict=False))
    if not found or not ascending or found[0] < 2:
        raise ConfigurationError(
            f"{what} are {list(found)}; allowed: ascending numbers of pairs from 2 on, "
            f"such as {list(LOOKS)}"
        )
    return tuple(int(n) for n in found)


def check_margin(margin: float, what: str) -> None:
    if not (math.isfinite(margin) and margin > 0):
        raise ConfigurationError(
            f"{what} is {margin}; allowed: a positive number, on the scale of the metric"
        )
