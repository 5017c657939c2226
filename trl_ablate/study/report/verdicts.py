"""The answer of a report in words: verdicts, what is final, what was expected, what would help."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import starmap
from pathlib import Path

from trl_ablate.errors import shortened
from trl_ablate.study.decision import EXACT, MOST_FLIPPED
from trl_ablate.study.nominal import critical_t, nominal_level
from trl_ablate.study.planned import Plan, silent_differences
from trl_ablate.study.report import outcomes
from trl_ablate.study.report.analysis import Analysis, ArmResult
from trl_ablate.study.report.document import Block, Columns, Items, Picture, Section, Text, table
from trl_ablate.study.report.foreign_runs import how_they_ended
from trl_ablate.study.report.numbers import (
    MIXED,
    NOTHING,
    difference,
    interval,
    number,
    p_words,
    signed,
)
from trl_ablate.study.report.stats import ALPHA, MIN_SEEDS, Comparison, Interval
from trl_ablate.study.store import DONE
from trl_ablate.study.verdict import EXPECTED, Expectation, Verdict, reference_runs

HEADS = {
    Verdict.BETTER: "{arm} is better than {other}",
    Verdict.WORSE: "{arm} is worse than {other}",
    Verdict.EQUIVALENT: "{arm} is equivalent to {other} within {margin}",
    Verdict.FAILS_MORE: "{arm} fails more often than {other}",
    Verdict.FAILS_LESS: "{arm} fails less often than {other}",
    Verdict.UNDECIDED: "{arm} against {other} is undecided",
    Verdict.NOT_DECIDED: "{arm} against {other} is not decided",
    Verdict.SAME: "{arm} is not distinguishable from {other}",
    Verdict.INESTIMABLE: "{arm} has the settings of {other}: same runs",
    Verdict.TOO_FEW: "{arm}: too few seeds for a verdict",
    Verdict.COLLAPSE: "{arm} collapses in {collapsed} of {ended} runs",
}
"""How every sentence about an arm begins, in a report and on the page about several studies."""
MOSTLY = 0.5
"""An arm collapses, as expected, if more than this share of its runs does."""
TASKS = {
    "chains": "chains of additions and subtractions",
    "formats": "chains of additions and subtractions",
    "sums": "two-digit sums",
    "calculator": "two-digit sums with a tool",
    "gym": "a task of reasoning-gym",
}
"""Families of the miniature's worlds, in words."""


def answer(analysis: Analysis, plan: Plan | None, pictures: Sequence[Picture] = ()) -> Section:
    """The verdicts as sentences, their picture, and the necessary remarks."""
    reference, found = analysis.reference, analysis.decisive.values()
    if analysis.judge == "two_part":
        lead = f"Outcome: {analysis.outcome_name}. Reference: {reference.name}."
        collapses = []
    else:
        mean = interval(reference.intervals[analysis.decide_on]) + MIXED * reference.is_mixed
        name = f"Reference {reference.name}: {analysis.outcome_name}"
        lead = f"{name} {mean} ({reference.outcome()})."
        collapses = outcomes.sentences(analysis)
    sentences = [(_of_two_parts if c.two_part else sentence)(c, analysis) for c in found]
    sentences += collapses
    blocks: list[Block] = [Text(lead), *([Items(sentences)] if sentences else [])]
    blocks += [*map(Text, finality(analysis)), *pictures, *map(Text, caveats(analysis, plan))]
    return Section("Answer", blocks)


def sentence(comparison: Comparison, analysis: Analysis) -> str:
    """The verdict on one arm."""
    arm, other = analysis.arm(comparison.arm), analysis.reference_of(comparison.arm)
    verdict, n, p = comparison.verdict, comparison.difference.n, comparison.p_corrected
    head = HEADS[verdict].format(arm=arm.name, other=other.name, margin=number(analysis.margin))
    if verdict is Verdict.INESTIMABLE:
        return f"{head}."
    if verdict in (Verdict.UNDECIDED, Verdict.NOT_DECIDED):
        head += f" with {n} seeds"
    numbers = f"{difference_of(comparison, analysis)}; {arm.outcome()}"
    if verdict is Verdict.TOO_FEW:
        return f"{head} ({n} pair{'s' * (n != 1)}; {numbers})."
    if verdict.differs and p is not None:
        numbers += f"; {p_words(p)}"
    rest = waits(verdict, comparison.next_look, disagreement(comparison))
    return f"{head} ({numbers}){_basis(comparison) if verdict.is_final else rest}."


def _of_two_parts(comparison: Comparison, analysis: Analysis) -> str:
    """The verdict on one arm, with both parts; first the one that decides."""
    found, arm = comparison.two_part, comparison.arm
    other = analysis.reference_of(arm).name
    if found is None or found.shares is None:
        missing = _missing(comparison, analysis)
        why = f" and waits, as {', '.join(missing)}" * bool(missing)
        return f"{arm} has too few runs for a look; the first is at {comparison.next_look}{why}."
    head = HEADS[found.verdict].format(arm=arm, other=other, margin=number(analysis.margin))
    (k, n), (other_k, other_n) = found.shares.arm, found.shares.reference
    parts = [
        f"{difference(comparison.difference)} where runs succeed" if found.means
        else "too few runs succeed for a comparison of their means",
        f"{k} of {n} runs succeed, {other_k} of {other_n} of {other} ({p_words(found.shares.p)})",
    ]  # fmt: skip
    if found.verdict in (Verdict.FAILS_MORE, Verdict.FAILS_LESS):
        parts.reverse()
    return f"{head}: {'; '.join(parts)}{waits(found.verdict, comparison.next_look)}."


def waits(verdict: Verdict, next_look: int | None, why: str | None = None) -> str:
    words = f"; the next look is at {next_look} seeds" * (verdict is Verdict.UNDECIDED)
    return words + (f"; {why}" if why else "")


def disagreement(comparison: Comparison) -> str | None:
    """Why a difference that the t test finds is no verdict; None if it finds none."""
    if not comparison.exact_disagrees:
        return None
    but = (
        "but some pairs collapsed and others did not, and they are too few for an exact test"
        if comparison.exact_p is None
        else f"and the exact sign-flip test does not ({p_words(comparison.exact_p)})"
    )
    return f"the t test finds a difference, {but}"


def _basis(comparison: Comparison) -> str:
    if comparison.leans_on == EXACT and comparison.verdict != Verdict.EQUIVALENT:
        return f"; an exact sign-flip test agrees ({p_words(comparison.exact_p)})"
    n = comparison.difference.n
    if n > MOST_FLIPPED:
        return f"; the mean of {n} differences is near-normal, whatever they are"
    return f"; this assumes near-normal differences, as {n} pairs show little"


def difference_of(comparison: Comparison, analysis: Analysis) -> str:
    pair = (analysis.arm(comparison.arm), analysis.reference_of(comparison.arm))
    return difference(comparison.difference) + MIXED * any(arm.is_mixed for arm in pair)


def caveats(analysis: Analysis, plan: Plan | None) -> list[str]:
    """Remarks that a reader of the answer needs: notes, collapses, missing runs."""
    notes = [note.strip() for note in plan.notes] if plan else []
    if plan and plan.miniatures:
        models = " and of ".join(starmap(_miniature, plan.miniatures))
        notes.append(
            f"These are the answers of {models}. They say what the method does there, and not "
            "what it does to a language model of useful size."
        )
    if analysis.judge == "paired":
        notes += [_mixed_outcome(arm) for arm in analysis.arms if arm.is_mixed]
    notes += _mixed_profiles(analysis)
    without = [run.arm for run in analysis.runs if run.outcome(analysis.metric) is None]
    if missing := Counter(without):
        arms = ", ".join(f"{number} of {arm}" for arm, number in missing.items())
        notes.append(f"{missing.total()} of {len(analysis.runs)} runs have no outcome: {arms}.")
    if plan is None:
        known = [run for run in analysis.runs if analysis.metric in run.series]
        notes += [
            f"{text[0].upper()}{text[1:]}." for text in how_they_ended(known, analysis.metric)
        ]
    else:
        notes += _without_an_end(analysis)
    lines = "lines of its metrics.jsonl are not logged rows and were skipped"
    notes += [f"{run.name}: {run.skipped} {lines}." for run in analysis.runs if run.skipped]
    biased = "their best values and means over training are not alike"
    notes += [f"A{words[1:]}; {biased}." for words in (plan.unequal_evaluations if plan else ())]
    return notes + [f"{sentence}." for sentence in (silent_differences(plan) if plan else ())]


def _miniature(millions: float, dataset: str) -> str:
    family = dataset.removeprefix("miniature/").partition("-")[0]
    place = Path(dataset)
    shown = "/".join(place.parts[-2:]) if place.is_absolute() else dataset
    task = f"{TASKS[family]} ({dataset})" if family in TASKS else shown
    return f"a {millions:.2g} M parameter model on {task}"


def _without_an_end(analysis: Analysis) -> list[str]:
    """Finished runs whose last evaluations are missing: they are NaN."""
    early = [
        f"{run.name} at step {curve.steps[-1]:g}"
        for run in analysis.runs
        if run.status == "finished"
        if (curve := run.series.get(analysis.metric)) and curve.steps
        if curve.steps[-1] < (run.planned_steps or 0)
    ]
    words = "These runs have no evaluation at their end, and count with their last one"
    return [f"{words}: {shortened(', '.join(early), 200)}."] * bool(early)


def _mixed_outcome(arm: ArmResult) -> str:
    counted = {
        "collapsed": arm.collapsed,
        "ended below half of the arm's median": arm.fell_behind,
    }
    words = " and ".join(f"{number} {what}" for what, number in counted.items() if number)
    return (
        f"{arm.name}: of {arm.ended} seeds {words}: the interval assumes one bell-shaped "
        "population and is misleading here (†)."
    )


def _mixed_profiles(analysis: Analysis) -> list[str]:
    """A profile sets dtype, optimizer and batch shape: arms of two profiles differ there, too."""
    counted: dict[str, Counter[str]] = {}
    for run in analysis.runs:
        if run.record.get("profile"):
            counted.setdefault(run.arm, Counter())[str(run.record["profile"])] += 1
    if len({profile for profiles in counted.values() for profile in profiles}) < 2:
        return []
    by_arm = "; ".join(
        f"{arm}: {', '.join(f'{number} of {name}' for name, number in profiles.items())}"
        for arm, profiles in counted.items()
    )
    return [
        "The runs come from several profiles, which are different treatments (dtype, optimizer, "
        "batch shape), so that arms may differ by their profiles. Runs by arm and profile: "
        f"{by_arm}."
    ]


def finality(analysis: Analysis) -> list[str]:
    """With looks: which verdicts are final, and which more seeds can change."""
    if not analysis.looks:
        return []
    looks = ", ".join(map(str, analysis.looks))
    words = f"Looks are at {looks} seeds; seeds between looks do not count."
    found = analysis.decisive.values()
    for what, arms in (
        ("Final, whatever is run later", [c.arm for c in found if c.next_look is None]),
        ("Undecided, more seeds can decide", [c.arm for c in found if c.next_look is not None]),
    ):
        words += f" {what}: {', '.join(arms)}." * bool(arms)
    return [words]


def what_would_change(analysis: Analysis) -> Section:
    """The comparisons without a difference, and the pairs that would show one."""
    compared, level = analysis.compared, ALPHA
    if analysis.looks and compared:
        level = nominal_level(analysis.looks, ALPHA / len(compared))
    columns: Columns = [
        ("arm", lambda c: c.arm),
        ("verdict", lambda c: c.verdict),
        ("pairs", lambda c: str(c.difference.n)),
        ("difference", lambda c: difference(c.difference)),
        ("pairs for what was seen", lambda c: str(pairs_to_see(c.difference, level) or NOTHING)),
        ("what would help", lambda c: _what_to_do(c, analysis)),
    ]
    note = (
        "'Pairs for what was seen': with about as many, the interval would leave out 0 if the "
        "difference and its spread stayed as they are; both are uncertain."
    )
    open_ = [c for c in compared.values() if not c.verdict.is_final]
    return table("What would change the answer", open_, columns, note, 2)


def pairs_to_see(seen: Interval, level: float = ALPHA) -> int | None:
    """Pairs whose t interval at this level would just leave out 0. None if nothing was seen, if the
    interval already leaves it out, or if they are more than ten thousand."""
    if not seen.mean or not seen.half_width or seen.half_width < abs(seen.mean):
        return None
    ratio = seen.half_width * math.sqrt(seen.n) / critical_t(seen.n, level) / abs(seen.mean)
    more = range(max(seen.n, math.floor(ratio**2)) + 1, 10_001)
    return next((n for n in more if critical_t(n, level) * ratio < math.sqrt(n)), None)


def _what_to_do(comparison: Comparison, analysis: Analysis) -> str:
    if look := comparison.next_look:
        if missing := ", ".join(_missing(comparison, analysis)):
            return f"{missing}; the look at {look} seeds waits for it"
        return f"study run --until decided: the look at {look} seeds"
    if analysis.looks:
        return "a study of its own: the last look has passed"
    if analysis.margin is None and comparison.verdict != Verdict.TOO_FEW:
        return "more seeds; or an equivalence_margin, if small differences do not matter"
    return "more seeds"


def _missing(comparison: Comparison, analysis: Analysis) -> list[str]:
    """The runs that the next look waits for, as they failed or ended without an outcome."""
    arm, reference = analysis.arm(comparison.arm), analysis.reference_of(comparison.arm)
    look, last = comparison.next_look or 0, max(analysis.looks, default=len(arm.runs))
    is_shared = comparison.two_part and reference is analysis.arms[0]
    pool = analysis.pool or len(reference.runs) if is_shared else None
    runs = [*arm.runs[:look], *reference.runs[: reference_runs(look, last, pool)]]
    ended = {"failed": "failed", **dict.fromkeys(DONE, f"logged no {analysis.metric}")}
    without = [run for run in runs if run.outcome(analysis.metric) is None]
    return [f"{run.name} {ended[run.status]}" for run in without if run.status in ended]


def expectations(analysis: Analysis, plan: Plan) -> Section:
    """What was expected before the runs, against what was found: where a number was expected, with
    the difference."""

    def expected(arm: str) -> str:
        given = plan.expect[arm]
        return signed(given) if isinstance(given, (int, float)) else given

    def found(arm: str) -> str:
        kind, of = found_of(arm, analysis), analysis.arm(arm)
        runs = f"{of.collapsed} of {of.ended} runs"
        words = f"{kind} ({runs})" if kind is Verdict.COLLAPSE else kind or f"{runs} collapsed"
        if isinstance(plan.expect[arm], str) or arm not in analysis.decisive:
            return words
        return f"{words} ({difference(analysis.decisive[arm].difference)})"

    def came(arm: str) -> str:
        return as_expected(arm, plan.expect[arm], analysis)

    columns = [("arm", str), ("expected", expected), ("found", found), ("as expected", came)]
    note = "Expectations are written in the study file; 'open': the runs do not decide it."
    return table("Expected and found", plan.expect, columns, note, 4)


FULFILS = {
    Verdict.COLLAPSE: (Verdict.WORSE, Verdict.FAILS_MORE),
    Verdict.FAILS_MORE: (Verdict.WORSE,),
    Verdict.FAILS_LESS: (Verdict.BETTER,),
}
"""What is found, and which other expectations it fulfils."""


def found_of(name: str, analysis: Analysis) -> Verdict | None:
    """The verdict of an arm, None of the reference; `collapse` where most runs of the arm did."""
    comparison = analysis.decisive.get(name)
    if _collapses(name, analysis) and not (comparison and comparison.two_part):
        return Verdict.COLLAPSE
    return comparison and comparison.verdict


def mostly_collapsed(arm: ArmResult) -> bool:
    return arm.collapsed > MOSTLY * arm.ended


def _collapses(name: str, analysis: Analysis) -> bool:
    """Whether most of its runs did, if they are enough, it is not better than its reference, and
    that collapses less often."""
    arm, comparison = analysis.arm(name), analysis.decisive.get(name)
    if not mostly_collapsed(arm) or arm.ended < min(MIN_SEEDS, len(arm.runs)):
        return False
    if comparison is None:
        return True
    other = analysis.reference_of(name)
    less = other.collapsed * arm.ended < arm.collapsed * max(1, other.ended)
    return less and comparison.verdict is not Verdict.BETTER


def as_expected(name: str, expected: Expectation | float, analysis: Analysis) -> str:
    found = found_of(name, analysis)
    if expected == "collapse" and found and found.is_final and _collapses(name, analysis):
        return "yes"  # judged in two parts, its verdict is another one
    return agreement(expected, found, analysis.margin)


def agreement(given: Expectation | float, found: Verdict | None, margin: float | None) -> str:
    """A difference within the margin is none."""
    if not isinstance(given, (int, float)):
        wanted = EXPECTED[given]
    elif abs(given) < (margin or 0.0) or given == 0:
        wanted = Verdict.EQUIVALENT
    else:
        wanted = Verdict.BETTER if given > 0 else Verdict.WORSE
    if found is wanted or (found and wanted in FULFILS.get(found, ())):
        return "yes"
    if found is Verdict.COLLAPSE:
        return "no"
    if wanted is Verdict.COLLAPSE and found not in (Verdict.TOO_FEW, Verdict.UNDECIDED):
        return "no"  # most runs did not
    return "no" if found and found.is_final else "open"
