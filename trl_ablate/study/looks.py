"""At which numbers of runs is a study looked at, and within which margin? No numpy."""

import math
from collections.abc import Iterable, Sequence
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


def reference_runs(n: int, last: int, pool: int | None) -> int:
    """Runs of the reference at a look at n runs of an arm, if it has `pool` at the last look."""
    return n if pool is None else max(n, round(n * pool / last))


def finite_numbers(values: Iterable[float], kind: str, missing: str, of: str = "") -> list[float]:
    """The numbers; raises at one that is none, with what its user has to leave out."""
    found = [float(value) for value in values]
    for position, value in enumerate(found):
        if not math.isfinite(value):
            raise ConfigurationError(
                f"{kind} {position}{of} is {value}; {kind}s are finite numbers: leave out {missing}"
            )
    return found


def check_margin(margin: float, what: str) -> None:
    if not (math.isfinite(margin) and margin > 0):
        raise ConfigurationError(
            f"{what} is {margin}; allowed: a positive number, on the scale of the metric"
        )
