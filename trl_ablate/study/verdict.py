"""Every verdict on an arm or an effect, and the looks that may give it. No numpy.

`report.json` has the values of `Verdict`; a study file and a list of questions expect them in the
words of `Expectation`.
"""

import math
from collections.abc import Iterable, Sequence
from enum import StrEnum
from numbers import Integral
from typing import Literal

from trl_ablate.errors import ConfigurationError


class Verdict(StrEnum):
    """With fixed seeds a comparison without a difference is not distinguishable, or has too few
    seeds; with looks it is undecided before the last look and not decided after it."""

    BETTER = "better"
    WORSE = "worse"
    EQUIVALENT = "equivalent"
    """The difference lies within the study's margin."""
    FAILS_MORE = "fails more often"
    """Fewer runs succeed than of the reference; only where an arm is judged in two parts."""
    FAILS_LESS = "fails less often"
    UNDECIDED = "undecided"
    NOT_DECIDED = "not decided"
    SAME = "not distinguishable"
    TOO_FEW = "too few seeds"
    INESTIMABLE = "not estimable"
    """Of an effect that the cells of a factorial study cannot separate from others."""
    COLLAPSE = "collapse"
    """Most runs of the arm collapsed; only findings and expectations name it."""

    @property
    def differs(self) -> bool:
        return self in (
            Verdict.BETTER, Verdict.WORSE, Verdict.FAILS_MORE, Verdict.FAILS_LESS
        )  # fmt: skip

    @property
    def is_final(self) -> bool:
        """Whether no more pairs change it."""
        return self.differs or self is Verdict.EQUIVALENT

    @property
    def matters(self) -> bool:
        return self.differs or self is Verdict.COLLAPSE

    @property
    def is_answer(self) -> bool:
        return self.matters or self is Verdict.EQUIVALENT


Judge = Literal["paired", "two_part"]
"""Differences by seed, or the share of runs that succeed and the mean of those (`two_part`)."""
Expectation = Literal["better", "worse", "equal", "collapse", "fails"]
EXPECTED: dict[str, Verdict] = {
    "fails": Verdict.FAILS_MORE,
    "better": Verdict.BETTER,
    "worse": Verdict.WORSE,
    "equal": Verdict.EQUIVALENT,
    "collapse": Verdict.COLLAPSE,
}
LOOKS = (3, 5, 8, 12)


def check_looks(looks: Sequence[int], what: str) -> tuple[int, ...]:
    """The looks, which are whole ascending numbers from 2 on: one difference has no spread."""
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
