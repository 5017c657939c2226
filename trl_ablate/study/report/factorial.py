"""A factorial study: its effects as sentences, as a table, and as entries of `report.json`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from scipy.stats import bartlett

from trl_ablate.study.factors import Design, alias_lines, level_text, product_text, relation_text
from trl_ablate.study.planned import Plan
from trl_ablate.study.report.analysis import Analysis
from trl_ablate.study.report.document import Block, Columns, Items, Section, Text, table
from trl_ablate.study.report.effects import Effect, Estimate, Fit, Level, Observation, Term
from trl_ablate.study.report.numbers import NOTHING, p_value, p_words, signed, within
from trl_ablate.study.report.stats import ALPHA
from trl_ablate.study.report.verdicts import caveats
from trl_ablate.study.two_part import Means, welch
from trl_ablate.study.verdict import Verdict

NOTE = (
    "A main effect is the mean of a level minus that of the factor's first level, all levels of "
    "the other factors counting equally; an interaction is the difference of such differences. "
    "Least squares over all runs, with the seed as a block. The intervals hold for all effects at "
    "once with 95 % (Šidák); verdicts rest on p-values with Holm's correction over all effects, so "
    "an interval may hold 0 where a verdict is 'better' or 'worse'. 'Better' is an effect above "
    "0: a level that raises the metric, or two levels that together raise it by more than the sum "
    "of what each raises it by."
)


@dataclass(frozen=True)
class Factorial:
    """A fitted factorial study. Levels are their texts."""

    design: Design
    fit: Fit
    levels: Mapping[str, Sequence[str]]
    cells: Mapping[str, Mapping[str, str]]
    """Cell -> factor -> level."""
    outcomes: Mapping[str, Sequence[float]]
    """Cell -> what its runs ended at."""
    collapsed: Mapping[str, int]
    """Cells with collapsed runs, and how many."""

    @property
    def effects(self) -> list[Effect]:
        return self.fit.effects

    @cached_property
    def threes(self) -> dict[tuple[str, ...], float]:
        """Factors that act in threes, and the corrected p-value."""
        return {names: p for names, p in self.fit.threes().items() if p < ALPHA}

    @property
    def averages_mislead(self) -> bool:
        """Whether a run collapsed, settings act in threes, or cells differ in spread."""
        spread = spread_p([values for values in self.outcomes.values() if len(values) > 2])
        return bool(self.collapsed or self.threes) or spread is not None and spread < ALPHA

    def by_cell(self, effect: Effect) -> bool:
        """Whether a main effect is said cell by cell: its average misleads or has no meaning."""
        depends = any(
            other.verdict.differs and {*effect.term} < {*other.term} for other in self.effects
        )
        misleads = depends or self.averages_mislead
        return not effect.is_interaction and misleads and bool(self.pairs(effect.term[0]))

    def pairs(self, level: Level) -> dict[str, Estimate | None]:
        """The cells with this level against those with the reference, by what they share: Welch's
        interval, together 95 % over the pairs; None if a run of either collapsed."""
        found: dict[str, Means | None] = {}
        factor = level[0]
        for name, cell in self.cells.items():
            alike = {**cell, factor: self.fit.first[factor]}
            others = [other for other, values in self.cells.items() if values == alike]
            both = [self.outcomes[each] for each in (name, *others) if len(self.outcomes[each]) > 1]
            if cell[factor] == level[1] and len(both) == 2:
                shared = (f"{key} = {at}" for key, at in cell.items() if key != factor)
                has_collapsed = {name, *others} & {*self.collapsed}
                found[", ".join(shared)] = None if has_collapsed else welch(both[0], both[1])
        beyond = 1 - (1 - ALPHA) ** (1 / max(1, len(found)))
        return {
            place: means and Estimate(means.difference, *means.interval(beyond), means.p)
            for place, means in found.items()
        }

    def change(self, level: Level) -> str:
        """`none instead of group`"""
        return f"{level[1]} instead of {self.fit.first[level[0]]}"

    def name(self, *terms: Term, between: str = ", ") -> str:
        """`scale_rewards × learning_rate`; of a factor with more levels, with the level meant."""
        several = {factor for factor, levels in self.levels.items() if len(levels) > 2}
        return between.join(
            product_text([name + f" {level}" * (name in several) for name, level in term])
            for term in terms
        )

    def simple_effects(self, term: Level, other: Level) -> dict[str, Estimate]:
        """The effect of `term` at the first level of the other's factor, and at `other`, by these
        levels; none if it cannot be separated."""
        places = (self.fit.first[other[0]], other[1])
        found = {str(at): self.fit.simple_effect(term, (other[0], at)) for at in places}
        return {at: effect for at, effect in found.items() if effect}


def factorial(plan: Plan, analysis: Analysis) -> Factorial:
    """Fit the effects of a study with a design, whose cells are the arms of its analysis. Runs of a
    cell are paired with those of others by position, as everywhere."""
    design, statistic = plan.design, analysis.decide_on
    assert design is not None, f"study {plan.study} has no factors"
    cells = {name: {key: level_text(level) for key, level in cell.items()}
             for name, cell in design.cells.items()}  # fmt: skip
    observations = [
        Observation(cells[arm.name], position, summary.value(statistic))
        for arm in analysis.arms
        for position, summary in enumerate(arm.summaries)
        if summary is not None
    ]
    outcomes = {arm.name: [one.value(statistic) for one in arm.known] for arm in analysis.arms}
    collapsed = {arm.name: arm.collapsed for arm in analysis.arms if arm.collapsed}
    levels = {name: [*map(level_text, found)] for name, found in design.factors.items()}
    return Factorial(design, Fit(observations, levels), levels, cells, outcomes, collapsed)


def spread_p(cells: Sequence[Sequence[float]]) -> float | None:
    """Of equal variances, by Bartlett's test: Levene's sees nothing in cells of three runs. 0 if
    some cells have none at all; None if no cell has any, or one alone is given."""
    varied = [values for values in cells if len({*values}) > 1]
    if varied and len(varied) < len(cells):
        return 0.0
    return float(bartlett(*varied).pvalue) if len(varied) > 1 else None


def entries_of(found: Factorial) -> list[dict[str, Any]]:
    """The effects for `report.json`.

    `levels` has the compared levels of each factor, the reference first: for a main effect
    `[a, b]`, for an interaction one such pair for each of its `factors`. `aliases` names what these
    cells cannot separate from an effect.
    """
    as_given: dict[Level, Any] = {
        (factor, level_text(level)): level
        for factor, levels in found.design.factors.items()
        for level in levels
    }

    def entry(effect: Effect) -> dict[str, Any]:
        names = [factor for factor, _ in effect.term]
        pairs = [[as_given[factor, at] for at in (found.fit.first[factor], level)]
                 for factor, level in effect.term]  # fmt: skip
        both, estimate = effect.is_interaction, effect.found
        return {
            **({"factors": names} if both else {"factor": names[0]}),
            "levels": pairs if both else pairs[0],
            "estimate": estimate and estimate.estimate,
            "low": estimate and estimate.low,
            "high": estimate and estimate.high,
            "verdict": effect.verdict,
            **({"by_cell": True} if found.by_cell(effect) else {}),
            **({"aliases": [*map(found.name, effect.aliases)]} if effect.aliases else {}),
        }

    return [entry(effect) for effect in found.effects]


def answer(found: Factorial, analysis: Analysis, plan: Plan | None) -> Section:
    """The verdict of each effect as a sentence, interactions first, with the necessary remarks."""
    fit, ended = found.fit, sum(arm.ended for arm in analysis.arms)
    spread = (
        "too few runs for intervals" if fit.sigma is None
        else f"standard deviation between runs {fit.sigma:.3f}, {fit.degrees} degrees of freedom"
    )  # fmt: skip
    lead = (
        f"Outcome: {analysis.outcome_name} of {ended} runs in {len(found.cells)} cells: main "
        f"effects and two-way interactions; {spread}."
    )
    each = zip(found.effects, sentences_of(found), strict=True)
    ordered = sorted(each, key=lambda pair: not pair[0].is_interaction)
    sentences = [text for _, text in ordered if text] + _without_interaction(found)
    blocks: list[Block] = [Text(lead), *([Items(sentences)] if sentences else [])]
    blocks += [Text(text) for text in (*_remarks(found), *caveats(analysis, plan))]
    return Section("Answer", blocks)


def effects_table(found: Factorial) -> Section:
    columns: Columns = [
        ("effect", lambda effect: found.name(effect.term)),
        ("levels", lambda effect: "; ".join(f"{at[0]}: {found.change(at)}" for at in effect.term)),
        ("verdict", lambda effect: effect.verdict),
        ("cannot be separated from", lambda effect: found.name(*effect.aliases) or NOTHING),
        ("estimate", lambda effect: _numbers(effect.found)),
        ("p", lambda effect: p_value(effect.p_corrected)),
    ]
    return table("Effects", found.effects, columns, NOTE, 4)


def sentences_of(found: Factorial) -> list[str | None]:
    """The sentence of each effect; None for an interaction without a verdict."""
    return [
        (_interaction(effect, found) if effect.verdict.differs else None)
        if effect.is_interaction
        else _main(effect, found)
        for effect in found.effects
    ]


def _numbers(found: Estimate | None) -> str:
    return NOTHING if found is None else within(found.estimate, found.low, found.high)


def _main(effect: Effect, found: Factorial) -> str:
    ((factor, level),) = effect.term
    if effect.found is None:
        return f"{found.name(effect.term)}: {effect.verdict}."
    if found.by_cell(effect):
        return _cell_by_cell(effect.term[0], found)
    reference, numbers = found.fit.first[factor], _numbers(effect.found)
    if effect.verdict.differs:
        numbers += f"; {p_words(effect.p_corrected)}"
        verdict = f"is {effect.verdict} than {reference}"
    elif effect.verdict is Verdict.TOO_FEW:
        verdict = f"against {reference}: too few runs for a verdict"
    else:
        verdict = f"is {effect.verdict} from {reference}"
    names = found.name(*effect.aliases)
    also = f" This estimate also contains {names}, which these cells cannot separate from it."
    return f"{factor}: on average {level} {verdict} ({numbers})." + also * bool(names)


def _cell_by_cell(level: Level, found: Factorial) -> str:
    """What a level changes in cells that are alike otherwise; for averages that mislead."""
    pairs = found.pairs(level)
    calm = {place: each for place, each in pairs.items() if each}
    said = f"{level[0]}: {found.change(level)}, cell by cell: "
    if not calm:
        return f"{said}a run collapsed in each of {len(pairs)} pairs of cells."
    sizes = sorted(each.estimate for each in calm.values())
    seen = {place: each for place, each in calm.items() if each.is_seen}
    most = max(seen, key=lambda place: abs(seen[place].estimate), default=None)
    largest = f", most with {most}: {_numbers(seen[most])}" if most else ""
    return (
        f"{said}{signed(sizes[0])} to {signed(sizes[-1])} in the {len(calm)} of {len(pairs)} pairs "
        f"of cells in which no run collapsed, seen in {len(seen)} of them{largest}."
    )


def _interaction(effect: Effect, found: Factorial) -> str:
    """Which setting matters more, or the other way round, with which other one.

    Where cells cannot tell which of several interactions it is, nothing is said of either.
    """
    numbers = f" Difference of differences {_numbers(effect.found)}; {p_words(effect.p_corrected)}."
    if effect.aliases:
        names = found.name(effect.term, *effect.aliases, between=" or ")
        return (
            f"There is an interaction, but these cells cannot tell which: {names}.{numbers} Cells "
            "that the fraction or an exclusion leaves out would tell."
        )
    factors = {factor for factor, _ in effect.term}
    words = _dependence(effect.term[0], effect.term[1], found)
    for names, p in found.threes.items():
        if factors < {*names}:
            (third,) = {*names} - factors
            words = f"{words[:-1]} (a mean over {third}, on which this depends; {p_words(p)})."
    return words + numbers


def _dependence(first: Level, second: Level, found: Factorial) -> str:
    """How the effect of one setting depends on the other: it changes its sign, if both are seen;
    else it is seen at one level alone, and larger there; else it differs in size.

    Not "only there": that would need a test of equivalence at the other level.
    """
    tried = [(term, other[0], found.simple_effects(term, other))
             for term, other in ((first, second), (second, first))]  # fmt: skip
    known = [each for each in tried if len(each[2]) == 2]
    for term, other, effects in known:
        at = {effect.estimate > 0: place for place, effect in effects.items()}
        if len(at) == 2 and all(effect.is_seen for effect in effects.values()):
            return (
                f"{term[0]} helps with {other} = {at[True]} and hurts with {other} = {at[False]}: "
                f"{_changes(term, other, effects, found)}."
            )
    for term, other, effects in known:
        there, elsewhere = sorted(effects, key=lambda place: abs(effects[place].estimate))[::-1]
        if effects[there].is_seen and not effects[elsewhere].is_seen:
            return (
                f"{term[0]} matters more with {other} = {there}: {found.change(term)} is "
                f"{_numbers(effects[there])} there, and {_numbers(effects[elsewhere])} with "
                f"{other} = {elsewhere}."
            )
    factor, other, effects = first[0], second[0], tried[0][2]
    if len(effects) < 2:
        return f"The effect of {factor} depends on {other}."
    changes = _changes(first, other, effects, found)
    if not all(effect.is_seen for effect in effects.values()):
        return f"The effect of {factor} depends on {other}: {changes}."
    stronger = max(effects, key=lambda place: abs(effects[place].estimate))
    return f"{factor} matters more with {other} = {stronger}: {changes}."


def _changes(term: Level, other: str, effects: Mapping[str, Estimate], found: Factorial) -> str:
    each = (f"{_numbers(effect)} with {other} = {at}" for at, effect in effects.items())
    return f"{found.change(term)} is {' and '.join(each)}"


def _without_interaction(found: Factorial) -> list[str]:
    pairs = [effect for effect in found.effects if effect.is_interaction]
    same = [e for e in pairs if e.verdict is Verdict.SAME]
    left_out = [e for e in pairs if e.verdict is Verdict.INESTIMABLE]
    sentences = []
    if same:
        limits = [abs(each or 0.0) for e in same if e.found for each in (e.found.low, e.found.high)]
        sentences.append(
            f"No interaction was seen in {found.name(*(e.term for e in same))}; the intervals "
            f"allow differences of differences up to {max(limits):.3f}."
        )
    if left_out:
        named = "; ".join(
            f"{found.name(e.term)} (with {found.name(*e.aliases) or 'the seeds'})" for e in left_out
        )
        sentences.append(f"Cannot be separated by these cells, so not estimable: {named}.")
    return sentences


def _remarks(found: Factorial) -> list[str]:
    """On what was left out, collapsed, has no outcome, or acts in threes."""
    design, notes = found.design, []
    if design.words:
        notes.append(
            f"Fraction {design.fraction}, defining relation {relation_text(design)}. "
            f"Not separable: {'; '.join(alias_lines(design))}."
        )
    notes += [f"Excluded cell {name}: {why}." for name, why in design.excluded.items()]
    if found.collapsed:
        counted = ((cell, k, len(found.outcomes[cell])) for cell, k in found.collapsed.items())
        cells = ", ".join(f"{cell} ({k} of {n} runs)" for cell, k, n in counted)
        notes.append(
            f"Collapsed: {cells}. These runs count with what they ended at, so effects mix how "
            "often runs collapse with how well the others do, and their intervals, which assume "
            "one spread for all cells, are approximate."
        )
    notes += [
        f"No run with {factor} = {level} has an outcome: nothing is estimated about this level."
        for factor, level in found.fit.unseen
    ]
    notes += [
        f"{product_text(names)} also act in threes ({p_words(p)}, corrected): compare the cells "
        "themselves."
        for names, p in found.threes.items()
    ]
    return notes
