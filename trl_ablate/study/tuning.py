"""Fair tuning: every arm, the reference too, tries the same values with the same seeds. Pure.

    tune: {learning_rate: [1e-5, 3e-5, 1e-4], seeds: 2, by: final, halving: true}

An arm with one of the values is a *candidate*. Its first runs are *trials* with tuning seeds; the
value with the best mean over trials is the arm's own best. Then the arm runs with the study's
seeds, which no trial has used, at its own best and at its reference's best.

With `halving`, the first tuning seed tries all values, and each further seed only the better half
of those that are left (rounded up). Every arm still has the same number of trials.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice, product
from typing import Any, Literal, NamedTuple

from trl_ablate.errors import ConfigurationError
from trl_ablate.study.factors import SEPARATOR, level_text, safe_name

Statistic = Literal["final", "best", "auc", "last_third"]
"""The summary of a curve that decides."""

FIRST_TUNING_SEED = 10_000
"""Far from the seeds of a study, so that a study can get more seeds without new trials."""

Trial = tuple[int, int]
"""The positions of a value and of a tuning seed."""


@dataclass(frozen=True)
class Tuning:
    """What is tuned, and how. All fields are what JSON can hold."""

    key: str
    values: list[Any]
    seeds: list[int]
    by: Statistic
    halving: bool
    arms: Mapping[str, list[str]]
    """Arm -> the name of its candidate for each value."""


class Standing(NamedTuple):
    """How far the tuning of one arm is."""

    trials: list[Trial]
    """The trials that are known to be needed so far, in order; some have ended."""
    chosen: int | None
    """The position of the best value; None before all trials have ended, or if none of them has an
    outcome."""


def make_tuning(
    values_of: Mapping[str, Any], *, seeds: int, by: Statistic, halving: bool, arms: Sequence[str],
    used: Collection[int], what: str,
) -> Tuning:  # fmt: skip
    """Check what a study tunes, and name the candidates.

    Args:
        values_of: what `tune` has besides its options: one setting and its values.
        used: the seeds of the study; trials use others.
    """
    if len(values_of) != 1:
        raise ConfigurationError(
            f"{what}: tune has the settings {', '.join(values_of) or 'none'}; name one setting and "
            "its values: tune: {learning_rate: [1e-5, 3e-5], seeds: 2}"
        )
    ((key, values),) = values_of.items()
    distinct = {level_text(v) for v in values} if isinstance(values, list) else set()
    if len(distinct) < 2 or len(distinct) != len(values):
        raise ConfigurationError(
            f"{what}: tune has {values!r} for {key}; give a list of two or more different values"
        )
    if seeds < 1:
        raise ConfigurationError(f"{what}: tune has {seeds} seeds; give 1 or more")
    names = [safe_name([f"{key}_{level_text(value)}"], value) for value in values]
    free = (seed for seed in count(FIRST_TUNING_SEED) if seed not in used)
    candidates = {arm: [f"{arm}{SEPARATOR}{name}" for name in names] for arm in arms}
    return Tuning(key, values, list(islice(free, seeds)), by, halving, candidates)


def standing(tuning: Tuning, scores: Mapping[Trial, float | None]) -> Standing:
    """How far an arm's tuning is.

    Args:
        scores: the outcomes of the trials that have ended; None for one that ended without.
    """

    def mean(value: int, last: int) -> float | None:
        """Over the trials up to a seed. Later ones do not count: what was decided before them stays
        decided."""
        tried = [scores.get((value, seed)) for seed in range(last + 1)]
        known = [score for score in tried if score is not None]
        return math.fsum(known) / len(known) if known else None

    def best_first(last: int) -> list[int]:
        """Of equal values, the one that the study names first."""
        return sorted(left, key=lambda value: math.inf if (m := mean(value, last)) is None else -m)

    left, trials = list(range(len(tuning.values))), []
    for seed in range(len(tuning.seeds)):
        if seed and tuning.halving:
            if not all(trial in scores for trial in trials):
                return Standing(trials, None)
            left = sorted(best_first(seed - 1)[: math.ceil(len(left) / 2)])
            if len(left) == 1:
                break
        trials += [(value, seed) for value in left]
    last = len(tuning.seeds) - 1
    best = best_first(last)[0]
    known = all(trial in scores for trial in trials) and mean(best, last) is not None
    return Standing(trials, best if known else None)


def trials_per_arm(tuning: Tuning) -> int:
    """The number of trials, which does not depend on their outcomes."""
    every = product(range(len(tuning.values)), range(len(tuning.seeds)))
    return len(standing(tuning, dict.fromkeys(every, 0.0)).trials)
