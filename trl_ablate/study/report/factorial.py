"""The effects of a factorial study, from its runs: estimates, labels, and what collapses change."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trl_ablate.study.definition import Statistic
from trl_ablate.study.factors import Design, level_text, product_text
from trl_ablate.study.planned import Plan
from trl_ablate.study.report.curves import Run
from trl_ablate.study.report.effects import Effect, Estimate, Fit, Level, Observation, Term


@dataclass(frozen=True)
class Factorial:
    """A fitted factorial study."""

    design: Design
    fit: Fit | None
    """None if no run has an outcome."""
    calm_fit: Fit | None
    """The same without the runs that collapsed; None if none did, or if all did."""
    collapsed: dict[str, tuple[int, int]]
    """Cell with collapsed runs -> their number, and that of all its runs with an outcome."""

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
        return product_text([self._name(level) for level in term])

    def _name(self, level: Level) -> str:
        several = len(self.design.factors[level[0]]) > 2
        return f"{level[0]} {self.level(level)}" if several else level[0]

    def simple_effects(self, term: Level, other: Level) -> tuple[Estimate, Estimate] | None:
        """The effect of `term` at the first level of the other's factor, and at `other`."""
        if self.fit is None:
            return None
        first = self.fit.simple_effect(term, self.reference(other[0]))
        second = self.fit.simple_effect(term, other)
        return (first, second) if first and second else None

    def changed_without_collapses(self) -> list[tuple[Effect, Effect]]:
        """Effects whose verdict is another one without the runs that collapsed."""
        if self.calm_fit is None:
            return []
        calm = {effect.term: effect for effect in self.calm_fit.effects}
        pairs = [(e, calm[e.term]) for e in self.effects if e.term in calm]
        return [(e, without) for e, without in pairs if e.verdict != without.verdict]


def factorial(plan: Plan, runs: Sequence[Run]) -> Factorial:
    """Fit the effects of a study with a design to its runs, whose arms are the cells."""
    if plan.design is None:
        raise ValueError(f"study {plan.study} has no factors")
    ended = _ended(plan.design, runs, plan.primary_metric, plan.decide_on)
    levels = {name: len(found) for name, found in plan.design.factors.items()}
    calm = [observation for _, observation, collapsed in ended if not collapsed]
    return Factorial(
        design=plan.design,
        fit=Fit([observation for _, observation, _ in ended], levels) if ended else None,
        calm_fit=Fit(calm, levels) if calm and len(calm) < len(ended) else None,
        collapsed=_collapsed([(cell, collapsed) for cell, _, collapsed in ended]),
    )


def effects_of(plan: Plan, runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The effects for `report.json`; empty for a study without factors.

    `levels` has the compared levels of each factor, the reference first: for a main effect
    `[a, b]`, for an interaction one such pair for each of its `factors`. `aliases` names what these
    cells cannot separate from an effect.

    Args:
        runs: the runs that the report judges; their arms are the cells.
    """
    if plan.design is None:
        return []
    return entries_of(factorial(plan, runs))


def entries_of(found: Factorial) -> list[dict[str, Any]]:
    """The effects of a factorial study for `report.json`; see `effects_of`."""
    return [_entry(found, effect) for effect in found.effects]


def _entry(found: Factorial, effect: Effect) -> dict[str, Any]:
    names = [level[0] for level in effect.term]
    pairs = [[found.value(found.reference(level[0])), found.value(level)] for level in effect.term]
    is_main = len(names) == 1
    estimate = effect.found
    return {
        **({"factor": names[0]} if is_main else {"factors": names}),
        "levels": pairs[0] if is_main else pairs,
        "estimate": estimate and estimate.estimate,
        "low": estimate and estimate.low,
        "high": estimate and estimate.high,
        "verdict": effect.verdict,
        **({"aliases": [found.name(term) for term in effect.aliases]} if effect.aliases else {}),
    }


def _ended(
    design: Design, runs: Sequence[Run], metric: str, decide_on: Statistic
) -> list[tuple[str, Observation, bool]]:
    """Cell, observation, and whether it collapsed, of each run with an outcome. Runs of a cell are
    paired with those of others by position, as everywhere."""
    positions: dict[str, int] = {}
    found = []
    for run in runs:
        position = positions[run.arm] = positions.get(run.arm, -1) + 1
        summary = run.outcome(metric)
        if summary is not None:
            cell = design.cells[run.arm]
            levels = {name: index_of(design.factors[name], value) for name, value in cell.items()}
            outcome = Observation(levels, position, summary.value(decide_on))
            found.append((run.arm, outcome, summary.collapsed_at is not None))
    return found


def index_of(levels: Sequence[Any], value: Any) -> int:
    """`index` would take 1 for true."""
    return next(i for i, each in enumerate(levels) if each == value and type(each) is type(value))


def _collapsed(ended: Sequence[tuple[str, bool]]) -> dict[str, tuple[int, int]]:
    cells = dict.fromkeys(cell for cell, collapsed in ended if collapsed)
    return {
        cell: (
            sum(collapsed for name, collapsed in ended if name == cell),
            sum(name == cell for name, _ in ended),
        )
        for cell in cells
    }
