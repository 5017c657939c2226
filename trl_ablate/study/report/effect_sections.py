"""The sections of a factorial report: its effects as sentences and as a table."""

from trl_ablate.study.factors import alias_lines, relation_text
from trl_ablate.study.planned import Plan
from trl_ablate.study.report.analysis import Analysis
from trl_ablate.study.report.document import Block, Grid, Items, Section, Text
from trl_ablate.study.report.effects import INESTIMABLE, Effect, Estimate, Level
from trl_ablate.study.report.factorial import Factorial
from trl_ablate.study.report.numbers import p_words, within
from trl_ablate.study.report.sections import NAMES, NOTHING, caveats, p_value
from trl_ablate.study.report.stats import ALPHA, BETTER, SAME, TOO_FEW, WORSE

STRONG = (BETTER, WORSE)
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
    blocks: list[Block] = [Text(_lead(found, analysis))]
    each = list(zip(found.effects, sentences_of(found), strict=True))
    sentences = [text for effect, text in each if text and len(effect.term) == 2]
    sentences += [text for effect, text in each if text and len(effect.term) == 1]
    sentences += _without_interaction(found)
    blocks += [Items(sentences)] if sentences else []
    blocks += [Text(text) for text in (*_remarks(found), *caveats(analysis, plan))]
    return Section("Answer", blocks)


def sentences_of(found: Factorial) -> list[str | None]:
    """The sentence of each effect; None for an interaction without a verdict."""
    return [
        _main(effect, found)
        if len(effect.term) == 1
        else _interaction(effect, found)
        if _is_strong_interaction(effect)
        else None
        for effect in found.effects
    ]


def effects_table(found: Factorial) -> Section:
    rows = []
    for effect in found.effects:
        pairs = [f"{level[0]}: {found.change(level)}" for level in effect.term]
        rows.append(
            [
                found.name(effect.term),
                "; ".join(pairs),
                effect.verdict,
                ", ".join(found.name(term) for term in effect.aliases) or NOTHING,
                _numbers(effect.found) if effect.found else NOTHING,
                p_value(effect.p_corrected),
            ]
        )
    header = ["effect", "levels", "verdict", "cannot be separated from", "estimate", "p"]
    return Section("Effects", [Grid(header, rows, NOTE, numbers_from=4)] if rows else [])


def _lead(found: Factorial, analysis: Analysis) -> str:
    ended = sum(arm.ended for arm in analysis.arms)
    text = (
        f"Outcome: {NAMES[analysis.decide_on]} {analysis.metric} of {ended} runs in "
        f"{len(found.design.cells)} cells: main effects and two-way interactions"
    )
    fit = found.fit
    if fit is None or fit.sigma is None:
        return f"{text}; too few runs for intervals."
    return (
        f"{text}; standard deviation between runs {fit.sigma:.3f}, {fit.degrees} degrees of "
        "freedom."
    )


def _is_strong_interaction(effect: Effect) -> bool:
    return len(effect.term) == 2 and effect.verdict in STRONG


def _main(effect: Effect, found: Factorial) -> str:
    (level,) = effect.term
    if effect.found is None:
        return f"{found.name(effect.term)}: {INESTIMABLE}."
    reference = found.level(found.reference(level[0]))
    numbers = _numbers(effect.found)
    if effect.verdict in STRONG:
        numbers += f"; {p_words(effect.p_corrected)}"
        verdict = f"is {effect.verdict} than {reference}"
    elif effect.verdict == TOO_FEW:
        verdict = f"against {reference}: too few runs for a verdict"
    else:
        verdict = f"is {SAME} from {reference}"
    also = _also_contains(effect, found)
    return f"{level[0]}: on average {found.level(level)} {verdict} ({numbers}).{also}"


def _interaction(effect: Effect, found: Factorial) -> str:
    """Which setting matters only, more, or the other way round with which other one.

    Where cells cannot tell which of several interactions it is, nothing is said of either.
    """
    numbers = (
        f" Difference of differences {_numbers(effect.found)}; {p_words(effect.p_corrected)}."
        if effect.found
        else ""
    )
    if effect.aliases:
        names = " or ".join(found.name(term) for term in (effect.term, *effect.aliases))
        return (
            f"There is an interaction, but these cells cannot tell which: {names}.{numbers} Cells "
            "that the fraction or an exclusion leaves out would tell."
        )
    first, second = effect.term
    return (
        _crossing(first, second, found)
        or _crossing(second, first, found)
        or _only(first, second, found)
        or _only(second, first, found)
        or _more(first, second, found)
    ) + numbers


def _crossing(term: Level, other: Level, found: Factorial) -> str | None:
    """`X helps with Y = y and hurts with Y = z`, if both effects are seen."""
    effects = found.simple_effects(term, other)
    if effects is None or not all(map(_is_seen, effects)):
        return None
    signs = [effect.estimate > 0 for effect in effects]
    if signs[0] == signs[1]:
        return None
    places = (found.reference(other[0]), other)
    helps, hurts = (found.level(places[signs.index(sign)]) for sign in (True, False))
    return (
        f"{term[0]} helps with {other[0]} = {helps} and hurts with {other[0]} = {hurts}: "
        f"{_changes(term, other, effects, found)}."
    )


def _only(term: Level, other: Level, found: Factorial) -> str | None:
    """`X matters only with Y = y`, if its effect is seen at one of the two levels."""
    effects = found.simple_effects(term, other)
    if effects is None or _is_seen(effects[0]) == _is_seen(effects[1]):
        return None
    places = (found.reference(other[0]), other)
    seen = 0 if _is_seen(effects[0]) else 1
    factor, there, elsewhere = other[0], found.level(places[seen]), found.level(places[1 - seen])
    return (
        f"{term[0]} matters only with {factor} = {there}: {found.change(term)} is "
        f"{_numbers(effects[seen])} there, and {_numbers(effects[1 - seen])} with {factor} = "
        f"{elsewhere}."
    )


def _more(term: Level, other: Level, found: Factorial) -> str:
    effects = found.simple_effects(term, other)
    if effects is None:
        return f"The effect of {term[0]} depends on {other[0]}."
    changes = _changes(term, other, effects, found)
    if not all(map(_is_seen, effects)):
        return f"The effect of {term[0]} depends on {other[0]}: {changes}."
    places = (found.reference(other[0]), other)
    stronger = places[abs(effects[1].estimate) > abs(effects[0].estimate)]
    return f"{term[0]} matters more with {other[0]} = {found.level(stronger)}: {changes}."


def _changes(
    term: Level, other: Level, effects: tuple[Estimate, Estimate], found: Factorial
) -> str:
    places = (found.level(found.reference(other[0])), found.level(other))
    each = " and ".join(
        f"{_numbers(effect)} with {other[0]} = {place}"
        for effect, place in zip(effects, places, strict=True)
    )
    return f"{found.change(term)} is {each}"


def _is_seen(effect: Estimate) -> bool:
    """Whether its interval leaves out 0."""
    return effect.low is not None and effect.high is not None and effect.low * effect.high > 0


def _without_interaction(found: Factorial) -> list[str]:
    pairs = [e for e in found.effects if len(e.term) == 2]
    same = [found.name(e.term) for e in pairs if e.verdict == SAME]
    left_out = [e for e in pairs if e.verdict == INESTIMABLE]
    sentences = []
    if same:
        widest = max(
            max(abs(e.found.low or 0.0), abs(e.found.high or 0.0))
            for e in pairs
            if e.verdict == SAME and e.found
        )
        sentences.append(
            f"No interaction was seen in {', '.join(same)}; the intervals allow differences of "
            f"differences up to {widest:.3f}."
        )
    if left_out:
        named = "; ".join(
            f"{found.name(e.term)} (with {', '.join(map(found.name, e.aliases)) or 'the seeds'})"
            for e in left_out
        )
        sentences.append(f"Cannot be separated by these cells, so not estimable: {named}.")
    return sentences


def _also_contains(effect: Effect, found: Factorial) -> str:
    if not effect.aliases:
        return ""
    names = ", ".join(found.name(term) for term in effect.aliases)
    return f" This estimate also contains {names}, which these cells cannot separate from it."


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
    levels = {name: len(values) for name, values in found.design.factors.items()}
    notes += [
        f"No run with {factor} = {found.level((factor, level))} has an outcome: nothing is "
        "estimated about this level."
        for factor, level in found.fit.unseen(levels)
    ]
    misfit = found.fit.misfit_p()
    if misfit is not None and misfit < ALPHA:
        notes.append(
            f"Cells differ by more than main effects and two-way interactions explain (p = "
            f"{p_value(misfit)}): settings also act in threes, or runs spread more in some cells. "
            "Compare the cells themselves."
        )
    return notes


def _collapses(found: Factorial) -> list[str]:
    if not found.collapsed:
        return []
    cells = ", ".join(f"{cell} ({k} of {n} runs)" for cell, (k, n) in found.collapsed.items())
    notes = [
        f"Collapsed: {cells}. These runs count with what they ended at, so effects mix how often "
        "runs collapse with how well the others do, and their intervals, which assume one spread "
        "for all cells, are approximate."
    ]
    changed = found.changed_without_collapses()
    if changed:
        named = "; ".join(
            f"{found.name(effect.term)} ({effect.verdict}; without them {calm.verdict}"
            + (f", {_numbers(calm.found)})" if calm.found else ")")
            for effect, calm in changed
        )
        notes.append(f"Verdicts that rest on the collapsed runs: {named}.")
    elif found.calm_fit is not None:
        notes.append("Without the collapsed runs, every verdict is the same.")
    return notes


def _numbers(found: Estimate | None) -> str:
    return NOTHING if found is None else within(found.estimate, found.low, found.high)
