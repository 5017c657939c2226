"""Main effects and two-way interactions of a factorial study, by least squares. Pure.

The model of the outcome y of a cell with one seed:

    y = seed + sum of main effects + sum of two-way interactions + noise

For level j > 0 of a factor with L levels there is one column, x_j = 1[level = j] - 1 / L. Then its
coefficient is the *main effect*: the mean of level j minus the mean of the first level, where all
levels of the other factors count equally. The coefficient of x_j z_k is the *interaction*: the
difference of differences (y_jk - y_0k) - (y_j0 - y_00); textbooks of two-level designs often have
half of it. Seeds are blocks: what a seed does to all cells alike is not noise.

A column that follows from the ones before it (main effects first) is left out, and named with the
effects that contain it: in a fraction, or where cells are missing, they cannot be separated.

Intervals are simultaneous over all m estimates: t intervals with the confidence 0.95^(1/m) each.
By Šidák's inequality, which holds for t statistics with a common variance estimate whatever their
correlation (Šidák 1967), all cover at once with 95 % or more; Bonferroni's are slightly wider.
Verdicts rest on p-values with Holm's correction over the same m estimates.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np
from scipy import special

from trl_ablate.study.report.stats import ALPHA, holm
from trl_ablate.study.verdict import Verdict

MIN_DEGREES = 2
"""Fewest residual degrees of freedom for a verdict; a paired comparison of three seeds has two."""
TOLERANCE = 1e-8

Level = tuple[str, Hashable]
"""A factor, and one of its levels."""
Term = tuple[Level, ...]
"""One level for a main effect, two for an interaction; each against its factor's first level."""


@dataclass(frozen=True)
class Observation:
    """The outcome of one run, and the level of every factor."""

    levels: Mapping[str, Hashable]
    seed: Hashable
    value: float


@dataclass(frozen=True)
class Estimate:
    """An effect, or another linear combination of the coefficients."""

    estimate: float
    low: float | None = None
    high: float | None = None
    p: float | None = None

    @property
    def is_seen(self) -> bool:
        """Whether its interval leaves out 0."""
        return self.low is not None and self.high is not None and self.low * self.high > 0

    @property
    def half_width(self) -> float | None:
        return None if self.low is None or self.high is None else (self.high - self.low) / 2


@dataclass(frozen=True)
class Effect:
    """A main effect or an interaction, and its verdict: better if it raises the outcome."""

    term: Term
    found: Estimate | None
    """None for an effect that is left out."""
    p_corrected: float | None
    verdict: Verdict
    aliases: tuple[Term, ...]
    """Effects that are left out and contained in this estimate; for an effect that is left out, the
    ones that contain it."""

    @property
    def is_interaction(self) -> bool:
        return len(self.term) == 2


class Fit:
    """The fitted model. `effects` has one entry for each term, in the order of the factors.

    Args:
        factors: factor -> its levels; compared with the first one that has an outcome.
    """

    def __init__(
        self, observations: Sequence[Observation], factors: Mapping[str, Sequence[Hashable]]
    ):
        self._observations = observations
        seen = {(name, each.levels[name]) for each in observations for name in factors}
        every = [(name, level) for name, levels in factors.items() for level in levels]
        self.unseen = [level for level in every if level not in seen]
        """Levels without any outcome; nothing is estimated about them."""
        self._levels = {name: [level for level in every if level[0] == name and level in seen]
                        for name in factors}  # fmt: skip
        self.first = {name: levels[0][1] for name, levels in self._levels.items() if levels}
        """Factor -> the level that the others are compared with."""
        blocks = _indicators([each.seed for each in observations])
        mains = [level for levels in self._levels.values() for level in levels[1:]]
        terms: list[Term] = [(main,) for main in mains]
        terms += [pair for pair in combinations(mains, 2) if pair[0][0] != pair[1][0]]
        columns = {term: self._column(term) for term in terms}
        left_out = _dependent(blocks, columns)
        self._kept = [term for term in columns if term not in left_out]
        self._blocks = blocks.shape[1]
        self._x = np.column_stack([blocks, *(columns[term] for term in self._kept)])
        self._y = np.array([each.value for each in observations])
        self._solve()
        self.effects = self._effects(terms, left_out)

    def simple_effect(self, term: Level, given: Level) -> Estimate | None:
        """The effect of a level against its factor's first one where another factor has one level,
        averaged over all others; with the critical value of the family. None if the main effect
        itself is left out."""
        if (term,) not in self._kept:
            return None
        weights: dict[Term, float] = {(term,): 1.0}
        for other in self._kept:
            if len(other) == 2 and term in other:
                (partner,) = (level for level in other if level != term)
                if partner[0] == given[0]:
                    weights[other] = self._code(partner, given)
        return self._estimate(weights)

    def level_mean(self, level: Level) -> float:
        """The fitted mean of a level, all levels of the other factors and all seeds equally."""
        mains = [term for term in self._kept if len(term) == 1 and term[0][0] == level[0]]
        weights = {term: self._code(term[0], level) for term in mains}
        return float(self._vector(weights, 1.0 / self._blocks) @ self._beta)

    def threes(self) -> dict[tuple[str, ...], float]:
        """Three factors -> the p-value, corrected by Holm's method, of the F test that they act in
        threes, against the spread within cells. None of them without repeated cells."""
        cells = _indicators([tuple(sorted(o.levels.items())) for o in self._observations])
        full = np.column_stack([self._x[:, : self._blocks], cells])
        degrees = len(self._y) - int(np.linalg.matrix_rank(full))
        pure = _residual_squares(full, self._y)
        if degrees < 1 or pure <= TOLERANCE * self._scale:
            return {}
        found = {}
        for names in combinations(self._levels, 3):
            terms = product(*(self._levels[name][1:] for name in names))
            x = np.column_stack([self._x, *map(self._column, terms)])
            if (more := int(np.linalg.matrix_rank(x)) - self._x.shape[1]) > 0:
                explained = max(0.0, self._squares - _residual_squares(x, self._y))
                ratio = explained / more / (pure / degrees)
                found[names] = float(special.fdtrc(more, degrees, ratio))
        return dict(zip(found, holm(list(found.values())), strict=True))

    def _code(self, level: Level, at: Level) -> float:
        """The column of `level` where its factor is at the level `at`."""
        return float(at == level) - 1 / len(self._levels[level[0]])

    def _column(self, term: Term) -> np.ndarray:
        return np.array(
            [math.prod(self._code(level, (level[0], each.levels[level[0]])) for level in term)
             for each in self._observations]
        )  # fmt: skip

    def _vector(self, weights: Mapping[Term, float], of_blocks: float = 0.0) -> np.ndarray:
        """Weights of terms as those of columns."""
        of_terms = [weights.get(term, 0.0) for term in self._kept]
        return np.array([of_blocks] * self._blocks + of_terms)

    def _solve(self) -> None:
        self.degrees = len(self._y) - self._x.shape[1]
        self._inverse = np.linalg.inv(self._x.T @ self._x)
        self._beta = self._inverse @ (self._x.T @ self._y)
        self._squares = float(np.sum((self._y - self._x @ self._beta) ** 2))
        self._scale = float(np.sum((self._y - self._y.mean()) ** 2)) if len(self._y) else 0.0
        if self._squares <= TOLERANCE**2 * max(self._scale, float(self._y @ self._y)):
            self._squares = 0.0  # rounding of an exact fit
        self.sigma = (self._squares / self.degrees) ** 0.5 if self.degrees > 0 else None

    def _estimate(self, of_terms: Mapping[Term, float]) -> Estimate:
        weights = self._vector(of_terms)
        value = float(weights @ self._beta)
        if self.sigma is None:
            return Estimate(value)
        each = (1 - ALPHA) ** (1 / max(1, len(self._kept)))
        error = self.sigma * float(weights @ self._inverse @ weights) ** 0.5
        half = float(special.stdtrit(self.degrees, (1 + each) / 2)) * error
        if error == 0:
            p = float(abs(value) <= TOLERANCE)
        else:
            p = float(2 * special.stdtr(self.degrees, -abs(value) / error))
        return Estimate(value, value - half, value + half, p)

    def _effects(
        self, terms: Sequence[Term], left_out: Mapping[Term, tuple[Term, ...]]
    ) -> list[Effect]:
        found = {term: self._estimate({term: 1.0}) for term in self._kept}
        p_values = [each.p for each in found.values() if each.p is not None]
        decided = self.degrees >= MIN_DEGREES
        corrected = dict(zip(found, holm(p_values), strict=True)) if decided else {}
        effects = []
        for term in terms:
            each, p, aliases = found.get(term), corrected.get(term), left_out.get(term)
            if each is None:
                verdict = Verdict.INESTIMABLE
            elif p is None:
                verdict = Verdict.TOO_FEW
            elif p >= ALPHA:
                verdict = Verdict.SAME
            else:
                verdict = Verdict.BETTER if each.estimate > 0 else Verdict.WORSE
            if aliases is None:
                aliases = tuple(left for left, within in left_out.items() if term in within)
            effects.append(Effect(term, each, p, verdict, aliases))
        return effects


def _indicators(labels: Sequence[Hashable]) -> np.ndarray:
    """One column of 0 and 1 for each label."""
    names = list(dict.fromkeys(labels))
    rows = [[float(label == name) for name in names] for label in labels]
    return np.array(rows).reshape(len(labels), len(names))


def _dependent(
    blocks: np.ndarray, columns: Mapping[Term, np.ndarray]
) -> dict[Term, tuple[Term, ...]]:
    """The columns that follow from the ones before them, each with those that contain it."""
    kept: list[Term] = []
    found = {}
    for term, column in columns.items():
        basis = np.column_stack([blocks, *(columns[each] for each in kept)])
        weights = np.linalg.lstsq(basis, column, rcond=None)[0]
        left = np.linalg.norm(column - basis @ weights)
        if left > TOLERANCE * max(1.0, float(np.linalg.norm(column))):
            kept.append(term)
        else:
            of_terms = zip(kept, weights[blocks.shape[1] :], strict=True)
            found[term] = tuple(each for each, w in of_terms if abs(w) > TOLERANCE**0.5)
    return found


def _residual_squares(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.sum((y - x @ np.linalg.lstsq(x, y, rcond=None)[0]) ** 2))
