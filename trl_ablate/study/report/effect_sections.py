"""The sections of a factorial report: its effects as sentences and as a table."""

from collections.abc import Mapping

from trl_ablate.study.factors import alias_lines, product_text, relation_text
from trl_ablate.study.planned import Plan
from trl_ablate.study.report.analysis import Analysis
from trl_ablate.study.report.document import Block, Columns, Items, Section, Text, table
from trl_ablate.study.report.effects import Effect, Estimate, Level
from trl_ablate.study.report.factorial import Factorial
from trl_ablate.study.report.numbers import NOTHING, p_value, p_words, signed, within
from trl_ablate.study.report.verdicts import caveats
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


def answer(found: Factorial, analysis: Analysis, plan: Plan | None) -> Section:
    """The verdict of each effect as a sentence, interactions first, with the necessary remarks."""
    each = list(zip(found.effects, sentences_of(found), strict=True))
    sentences = [text for effect, text in each if text and effect.is_interaction]
    sentences += [text for effect, text in each if text and not effect.is_interaction]
    sentences += _without_interaction(found)
    blocks: list[Block] = [Text(_lead(found, analysis))]
    blocks += [Items(sentences)] if sentences else []
    blocks += [Text(text) for text in (*_remarks(found), *caveats(analysis, plan))]
    return Section("Answer", blocks)


def sentences_of(found: Factorial) -> list[str | None]:
    """The sentence of each effect; None for an interaction without a verdict."""
    return [
        (_interaction(effect, found) if effect.verdict.differs else None)
        if effect.is_interaction
        else _main(effect, found)
        for effect in found.effects
    ]


def effects_table(found: Factorial) -> Section:
    def levels(effect: Effect) -> str:
        return "; ".join(f"{level[0]}: {found.change(level)}" for level in effect.term)

    columns: Columns = [
        ("effect", lambda effect: found.name(effect.term)),
        ("levels", levels),
        ("verdict", lambda effect: effect.verdict),
        ("cannot be separated from", lambda effect: _names(effect, found) or NOTHING),
        ("estimate", lambda effect: _numbers(effect.found)),
        ("p", lambda effect: p_value(effect.p_corrected)),
    ]
    return table("Effects", found.effects, columns, NOTE, 4)


def _names(effect: Effect, found: Factorial) -> str:
    return ", ".join(found.name(term) for term in effect.aliases)


def _lead(found: Factorial, analysis: Analysis) -> str:
    ended = sum(arm.ended for arm in analysis.arms)
    text = (
        f"Outcome: {analysis.outcome_name} of {ended} runs in "
        f"{len(found.design.cells)} cells: main effects and two-way interactions"
    )
    fit = found.fit
    if fit is None or fit.sigma is None:
        return f"{text}; too few runs for intervals."
    return (
        f"{text}; standard deviation between runs {fit.sigma:.3f}, {fit.degrees} degrees of "
        "freedom."
    )


def _main(effect: Effect, found: Factorial) -> str:
    (level,) = effect.term
    if effect.found is None:
        return f"{found.name(effect.term)}: {effect.verdict}."
    if found.by_cell(effect):
        return _cell_by_cell(level, found.pairs(level), found)
    reference = found.level(found.reference(level[0]))
    numbers = _numbers(effect.found)
    if effect.verdict.differs:
        numbers += f"; {p_words(effect.p_corrected)}"
        verdict = f"is {effect.verdict} than {reference}"
    elif effect.verdict is Verdict.TOO_FEW:
        verdict = f"against {reference}: too few runs for a verdict"
    else:
        verdict = f"is {effect.verdict} from {reference}"
    names = _names(effect, found)
    also = f" This estimate also contains {names}, which these cells cannot separate from it."
    said = f"{level[0]}: on average {found.level(level)} {verdict} ({numbers})."
    return said + also * bool(names)


def _cell_by_cell(level: Level, pairs: Mapping[str, Estimate | None], found: Factorial) -> str:
    """What a level changes in cells that are alike otherwise; for averages that mislead."""
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
        names = " or ".join(found.name(term) for term in (effect.term, *effect.aliases))
        return (
            f"There is an interaction, but these cells cannot tell which: {names}.{numbers} Cells "
            "that the fraction or an exclusion leaves out would tell."
        )
    first, second = effect.term
    orders = ((first, second), (second, first))
    tried = (kind(a, b, found) for kind in (_crossing, _seen_at_one) for a, b in orders)
    words = next(filter(None, tried), None) or _more(first, second, found)
    for names, p in found.threes.items():
        if {first[0], second[0]} < {*names}:
            (third,) = {*names} - {first[0], second[0]}
            words = f"{words[:-1]} (a mean over {third}, on which this depends; {p_words(p)})."
    return words + numbers


def _crossing(term: Level, other: Level, found: Factorial) -> str | None:
    """`X helps with Y = y and hurts with Y = z`, if both effects are seen."""
    effects = found.simple_effects(term, other)
    if effects is None or not all(effect.is_seen for effect in effects.values()):
        return None
    at = {effect.estimate > 0: place for place, effect in effects.items()}
    if len(at) == 1:
        return None
    return (
        f"{term[0]} helps with {other[0]} = {at[True]} and hurts with {other[0]} = {at[False]}: "
        f"{_changes(term, other, effects, found)}."
    )


def _seen_at_one(term: Level, other: Level, found: Factorial) -> str | None:
    """`X matters more with Y = y`, if its effect is seen there alone and is larger there. Not
    "only": that would need a test of equivalence at the other level."""
    effects = found.simple_effects(term, other)
    at = {effect.is_seen: place for place, effect in (effects or {}).items()}
    if effects is None or len(at) == 1:
        return None
    there, elsewhere = at[True], at[False]
    if abs(effects[there].estimate) <= abs(effects[elsewhere].estimate):
        return None
    return (
        f"{term[0]} matters more with {other[0]} = {there}: {found.change(term)} is "
        f"{_numbers(effects[there])} there, and {_numbers(effects[elsewhere])} with {other[0]} = "
        f"{elsewhere}."
    )


def _more(term: Level, other: Level, found: Factorial) -> str:
    effects = found.simple_effects(term, other)
    if effects is None:
        return f"The effect of {term[0]} depends on {other[0]}."
    changes = _changes(term, other, effects, found)
    if not all(effect.is_seen for effect in effects.values()):
        return f"The effect of {term[0]} depends on {other[0]}: {changes}."
    stronger = max(effects, key=lambda place: abs(effects[place].estimate))
    return f"{term[0]} matters more with {other[0]} = {stronger}: {changes}."


def _changes(term: Level, other: Level, effects: dict[str, Estimate], found: Factorial) -> str:
    each = " and ".join(
        f"{_numbers(effect)} with {other[0]} = {place}" for place, effect in effects.items()
    )
    return f"{found.change(term)} is {each}"


def _without_interaction(found: Factorial) -> list[str]:
    pairs = [effect for effect in found.effects if effect.is_interaction]
    same = [e for e in pairs if e.verdict is Verdict.SAME and e.found]
    left_out = [e for e in pairs if e.verdict is Verdict.INESTIMABLE]
    sentences = []
    if same:
        limits = [abs(each or 0.0) for e in same if e.found for each in (e.found.low, e.found.high)]
        sentences.append(
            f"No interaction was seen in {', '.join(found.name(e.term) for e in same)}; the "
            f"intervals allow differences of differences up to {max(limits):.3f}."
        )
    if left_out:
        named = "; ".join(
            f"{found.name(e.term)} (with {_names(e, found) or 'the seeds'})" for e in left_out
        )
        sentences.append(f"Cannot be separated by these cells, so not estimable: {named}.")
    return sentences


def _remarks(found: Factorial) -> list[str]:
    notes = []
    if found.design.words:
        aliases = "; ".join(alias_lines(found.design))
        notes.append(
            f"Fraction {found.design.fraction}, defining relation {relation_text(found.design)}. "
            f"Not separable: {aliases}."
        )
    notes += [f"Excluded cell {name}: {why}." for name, why in found.design.excluded.items()]
    notes += _collapses(found)
    if found.fit is None:
        return notes
    notes += [
        f"No run with {level[0]} = {found.level(level)} has an outcome: nothing is "
        "estimated about this level."
        for level in found.fit.unseen
    ]
    notes += [
        f"{product_text(names)} also act in threes ({p_words(p)}, corrected): compare the cells "
        "themselves."
        for names, p in found.threes.items()
    ]
    return notes


def _collapses(found: Factorial) -> list[str]:
    if not found.collapsed:
        return []
    cells = ", ".join(f"{cell} ({k} of {n} runs)" for cell, (k, n) in found.collapsed.items())
    return [
        f"Collapsed: {cells}. These runs count with what they ended at, so effects mix how often "
        "runs collapse with how well the others do, and their intervals, which assume one spread "
        "for all cells, are approximate."
    ]


def _numbers(found: Estimate | None) -> str:
    return NOTHING if found is None else within(found.estimate, found.low, found.high)
