"""The effects of a factorial study, from its runs: estimates, labels, and effects cell by cell."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from trl_ablate.study.factors import Design, level_text, product_text
from trl_ablate.study.planned import Plan
from trl_ablate.study.report.curves import Run
from trl_ablate.study.report.effects import Effect, Estimate, Fit, Level, Observation, Term
from trl_ablate.study.report.stats import ALPHA


@dataclass(frozen=True)
class Factorial:
    """A fitted factorial study."""

    design: Design
    fit: Fit | None
    """None if no run has an outcome."""
    collapsed: dict[str, tuple[int, int]]
    """Cell with collapsed runs -> their number, and that of all its runs with an outcome."""
    outcomes: Mapping[str, Sequence[float]]
    """Cell -> what its runs ended at."""

    @property
    def averages_mislead(self) -> bool:
        """Whether a run collapsed, settings act in threes, or cells differ in spread."""
        spread = spread_p([values for values in self.outcomes.values() if len(values) > 2])
        return bool(self.collapsed or self.threes) or spread is not None and spread < ALPHA

    @cached_property
    def threes(self) -> dict[tuple[str, ...], float]:
        """Factors that act in threes, and the corrected p-value."""
        found = self.fit.threes() if self.fit else {}
        return {names: p for names, p in found.items() if p < ALPHA}

    def by_cell(self, effect: Effect) -> bool:
        """Whether a main effect is said cell by cell: its average misleads or has no meaning."""
        depends = any(
            other.is_interaction and other.verdict.differs and set(effect.term) < set(other.term)
            for other in self.effects
        )
        misleads = depends or self.averages_mislead
        return not effect.is_interaction and misleads and bool(self.pairs(effect.term[0]))

    def pairs(self, level: Level) -> dict[str, Estimate | None]:
        """The cells with this level against those with the reference, by what they share: Welch's
        interval, together 95 % over the pairs; None if a run of either collapsed."""
        factor, cells = level[0], self.design.cells
        first = self.value(self.reference(factor))
        found = {}
        for name, cell in cells.items():
            others = [other for other, values in cells.items() if values == {**cell, factor: first}]
            both = [self.outcomes[each] for each in (name, *others) if len(self.outcomes[each]) > 1]
            if index_of(self.design.factors[factor], cell[factor]) == level[1] and len(both) == 2:
                shared = (f"{key} = {level_text(cell[key])}" for key in cell if key != factor)
                found[", ".join(shared)] = None if {name, *others} & {*self.collapsed} else both
        confidence = (1 - ALPHA) ** (1 / max(1, len(found)))
        return {place: both and welch(both, confidence) for place, both in found.items()}

    @property
    def effects(self) -> list[Effect]:
        return self.fit.effects if self.fit else []

    def level(self, level: Level) -> str:
        """The text of a level."""
        return level_text(self.value(level))

    def value(self, level: Level) -> Any:
        return self.design.factors[level[0]][level[1]]

    def reference(self, factor: str) -> Level:
        """The level with which the other levels of a factor are compared."""
        return (factor, self.fit.reference_of(factor) if self.fit else 0)

    def change(self, level: Level) -> str:
        """`none instead of group`"""
        return f"{self.level(level)} instead of {self.level(self.reference(level[0]))}"

    def name(self, term: Term) -> str:
        """`scale_rewards × learning_rate`; of a factor with more levels, with the level meant."""
        several = {factor for factor, levels in self.design.factors.items() if len(levels) > 2}
        named = [(level[0], f" {self.level(level)}" * (level[0] in several)) for level in term]
        return product_text([factor + level for factor, level in named])

    def simple_effects(self, term: Level, other: Level) -> dict[str, Estimate] | None:
        """The effect of `term` at the first level of the other's factor, and at `other`, by the
        texts of these levels."""
        found = {
            self.level(at): self.fit.simple_effect(term, at) if self.fit else None
            for at in (self.reference(other[0]), other)
        }
        known = {at: effect for at, effect in found.items() if effect}
        return known if len(known) == 2 else None


def factorial(plan: Plan, runs: Sequence[Run]) -> Factorial:
    """Fit the effects of a study with a design to its runs, whose arms are the cells. Runs of a
    cell are paired with those of others by position, as everywhere."""
    design = plan.design
    if design is None:
        raise ValueError(f"study {plan.study} has no factors")
    positions: Counter[str] = Counter()
    every: list[Observation] = []
    outcomes: dict[str, list[float]] = {cell: [] for cell in design.cells}
    collapsed: Counter[str] = Counter()
    for run in runs:
        position, summary = positions[run.arm], run.outcome(plan.primary_metric)
        positions[run.arm] += 1
        if summary is None:
            continue
        cell = design.cells[run.arm]
        levels = {name: index_of(design.factors[name], value) for name, value in cell.items()}
        every.append(Observation(levels, position, summary.value(plan.decide_on)))
        outcomes[run.arm].append(every[-1].value)
        if summary.collapsed:
            collapsed[run.arm] += 1
    counts = {name: len(found) for name, found in design.factors.items()}
    return Factorial(
        design=design,
        fit=Fit(every, counts) if every else None,
        collapsed={cell: (number, len(outcomes[cell])) for cell, number in collapsed.items()},
        outcomes=outcomes,
    )


def welch(both: Sequence[Sequence[float]], confidence: float) -> Estimate:
    """The difference of two means, whose spreads may differ."""
    from scipy.stats import ttest_ind

    test: Any = ttest_ind(*both, equal_var=False)
    low, high = test.confidence_interval(confidence)
    return Estimate(float(np.mean(both[0]) - np.mean(both[1])), low, high, test.pvalue)


def entries_of(found: Factorial) -> list[dict[str, Any]]:
    """The effects for `report.json`.

    `levels` has the compared levels of each factor, the reference first: for a main effect
    `[a, b]`, for an interaction one such pair for each of its `factors`. `aliases` names what these
    cells cannot separate from an effect.
    """
    return [_entry(found, effect) for effect in found.effects]


def _entry(found: Factorial, effect: Effect) -> dict[str, Any]:
    names = [level[0] for level in effect.term]
    pairs = [[found.value(found.reference(level[0])), found.value(level)] for level in effect.term]
    both, estimate = effect.is_interaction, effect.found
    return {
        **({"factors": names} if both else {"factor": names[0]}),
        "levels": pairs if both else pairs[0],
        "estimate": estimate and estimate.estimate,
        "low": estimate and estimate.low,
        "high": estimate and estimate.high,
        "verdict": effect.verdict,
        **({"by_cell": True} if found.by_cell(effect) else {}),
        **({"aliases": [found.name(term) for term in effect.aliases]} if effect.aliases else {}),
    }


def spread_p(cells: Sequence[Sequence[float]]) -> float | None:
    """Of equal variances, by Bartlett's test: Levene's sees nothing in cells of three runs. 0 if
    some cells have none at all; None if no cell has any, or one alone is given."""
    from scipy.stats import bartlett

    varied = [values for values in cells if len({*values}) > 1]
    if varied and len(varied) < len(cells):
        return 0.0
    return float(bartlett(*varied).pvalue) if len(varied) > 1 else None


def index_of(levels: Sequence[Any], value: Any) -> int:
    """`index` would take 1 for true."""
    return next(i for i, each in enumerate(levels) if each == value and type(each) is type(value))
