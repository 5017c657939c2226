"""The verdicts of a report in words: the headline, what is final, and what would change it."""

from trl_ablate.study.decision import (
    BETTER,
    EQUIVALENT,
    EXACT,
    NOT_DECIDED,
    UNDECIDED,
    WORSE,
)
from trl_ablate.study.definition import Expectation
from trl_ablate.study.planned import Plan
from trl_ablate.study.report.analysis import Analysis
from trl_ablate.study.report.document import Grid, Section
from trl_ablate.study.report.numbers import (
    MIXED,
    NOTHING,
    difference,
    number,
    p_words,
)
from trl_ablate.study.report.stats import SAME, TOO_FEW, Comparison

MOSTLY = 0.5
"""An arm collapses, as expected, if more than this share of its runs does."""


def sentence(comparison: Comparison, analysis: Analysis) -> str:
    """The verdict on one arm."""
    arm, reference = analysis.arm(comparison.arm), analysis.reference_of(comparison.arm)
    name, other, seeds = arm.name, reference.name, comparison.difference.n
    numbers = f"{difference_of(comparison, analysis)}; {arm.outcome()}"
    unseen, disagree = number(comparison.detectable), disagreement(comparison)
    match comparison.verdict:
        case "too few seeds":
            pairs = f"{seeds} pair{'' if seeds == 1 else 's'}"
            return f"{name}: too few seeds for a verdict ({pairs}; {numbers})."
        case "undecided":
            return (
                f"{name} against {other} is undecided with {seeds} seeds ({numbers}); "
                f"the next look is at {comparison.next_look} seeds{_added(disagree)}."
            )
        case "not decided":
            why = disagree or f"differences above {unseen} would have been seen"
            return f"{name} against {other} is not decided with {seeds} seeds ({numbers}): {why}."
        case "not distinguishable":
            return (
                f"{name} is not distinguishable from {other} ({numbers}); a "
                f"difference below {unseen} would likely have gone unseen"
                f"{_added(disagree)}."
            )
        case "equivalent":
            within = f" within {number(analysis.margin)}"
            return f"{name} is equivalent to {other}{within} ({numbers}){_basis(comparison)}."
    p = "" if comparison.p_corrected is None else f"; {p_words(comparison.p_corrected)}"
    return f"{name} is {comparison.verdict} than {other} ({numbers}{p}){_basis(comparison)}."


def disagreement(comparison: Comparison) -> str | None:
    """Why a difference that the t test finds is no verdict; None if it finds none."""
    if not comparison.exact_disagrees:
        return None
    if comparison.exact_p is None:
        return (
            "the t test finds a difference, but some pairs collapsed and others did not, and they "
            "are too few for an exact test"
        )
    return (
        "the t test finds a difference, and the exact sign-flip test does not "
        f"({p_words(comparison.exact_p)})"
    )


def _added(words: str | None) -> str:
    return f"; {words}" if words else ""


def _basis(comparison: Comparison) -> str:
    if comparison.leans_on == EXACT and comparison.verdict != EQUIVALENT:
        return f"; an exact sign-flip test agrees ({p_words(comparison.exact_p)})"
    return f"; this assumes near-normal differences, as {comparison.difference.n} pairs show little"


def finality(analysis: Analysis) -> list[str]:
    """With looks: which verdicts are final, and which more seeds can change."""
    if not analysis.looks:
        return []
    found = analysis.decisive.values()
    final = [c.arm for c in found if c.next_look is None]
    waiting = [c.arm for c in found if c.next_look is not None]
    looks = ", ".join(map(str, analysis.looks))
    words = [f"Looks are at {looks} seeds; seeds between looks do not count."]
    if final:
        words.append(f"Final, whatever is run later: {', '.join(final)}.")
    if waiting:
        words.append(f"Undecided, more seeds can decide: {', '.join(waiting)}.")
    return [" ".join(words)]


def what_would_change(analysis: Analysis) -> Section | None:
    """The comparisons without a difference, and the seeds that would show one."""
    rows = [
        [
            c.arm,
            c.verdict,
            str(c.difference.n),
            number(c.detectable),
            str(seeds) if (seeds := seeds_to_see(c)) else NOTHING,
            _what_to_do(c, analysis),
        ]
        for c in analysis.decisive.values()
        if c.verdict in (SAME, TOO_FEW, UNDECIDED, NOT_DECIDED)
    ]
    header = ["arm", "verdict", "pairs", "detectable", "seeds for what was seen", "what would help"]
    note = (
        "'Seeds for what was seen': about as many as find a true difference of the size that was "
        "seen here, with 80 % probability; the size seen is itself uncertain."
    )
    return Section("What would change the answer", [Grid(header, rows, note, 2)]) if rows else None


def seeds_to_see(comparison: Comparison) -> int | None:
    """Seeds with which the difference that was seen would be detected: its standard error falls
    with the root of their number. None if nothing was seen, or if it is more than ten thousand."""
    mean, detectable, n = comparison.difference.mean, comparison.detectable, comparison.difference.n
    if not mean or not detectable:
        return None
    seeds = max(n, -(-n * (detectable / abs(mean)) ** 2 // 1))
    return int(seeds) if seeds <= 10_000 else None


def _what_to_do(comparison: Comparison, analysis: Analysis) -> str:
    arm, reference = analysis.arm(comparison.arm), analysis.reference_of(comparison.arm)
    if comparison.next_look:
        seeds = range(comparison.next_look)
        runs = (run for each in (arm, reference) for run in each.runs[: len(seeds)])
        failed = [run.name for run in runs if run.status == "failed"]
        if failed:
            return f"{', '.join(failed)} failed; the look at {len(seeds)} seeds waits for it"
        return f"study run --until decided: the look at {comparison.next_look} seeds"
    if analysis.margin is None and comparison.verdict != TOO_FEW:
        return "more seeds; or an equivalence_margin, if small differences do not matter"
    return "more seeds"


def expectations(analysis: Analysis, plan: Plan) -> Section | None:
    """What was expected before the runs, against what was found."""
    rows = [
        [name, expected, found, agreement(expected, found)]
        for name, expected in plan.expect.items()
        if (found := found_of(name, analysis))
    ]
    header = ["arm", "expected", "found", "as expected"]
    note = "Expectations are written in the study file; 'open': the runs do not decide it."
    return Section("Expected and found", [Grid(header, rows, note, 4)]) if rows else None


def found_of(name: str, analysis: Analysis) -> str:
    """The verdict of an arm; `collapse` where most runs of the arm collapsed."""
    arm = analysis.arm(name)
    if arm.ended and arm.collapsed > MOSTLY * arm.ended:
        return f"collapse ({arm.collapsed} of {arm.ended} runs)"
    comparison = analysis.decisive.get(name)
    return comparison.verdict if comparison else f"{arm.collapsed} of {arm.ended} runs collapsed"


def agreement(expected: Expectation, found: str) -> str:
    collapsed = found.startswith("collapse")
    if expected == "collapse":
        return "yes" if collapsed else "no"
    if collapsed:
        return "yes" if expected == "worse" else "no"
    names = {"better": BETTER, "worse": WORSE, "equal": EQUIVALENT}
    if found == names[expected]:
        return "yes"
    return "no" if found in names.values() else "open"


def difference_of(comparison: Comparison, analysis: Analysis) -> str:
    pair = (analysis.arm(comparison.arm), analysis.reference_of(comparison.arm))
    return difference(comparison.difference) + MIXED * any(arm.is_mixed for arm in pair)
