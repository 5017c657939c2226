"""The numbers of a report as JSON, for other tools: `report.json`.

    {"reference", "metric",
     "arms": {arm: {"verdict", "difference", "low", "high", "pairs", "collapsed": [k, n],
                    "equivalence_margin", "p_difference", "p_equivalent"}},
     "effects": [{"factor" or "factors", "levels", "estimate", "low", "high", "verdict"}],
     "curves": {arm: {"A", "B", "C_mid"}},
     "details": {"question", "runs", "margin", "means": {arm: mean}, "mixed": [arm],
                 "arms": {arm: {"against", "expected", "agreement", "detectable", "next_look",
                                "disagreement", "area", "tokens"}},
                 "sentences": [the sentence of each effect, or null],
                 "passes": {arm: {"k", "one", "many", "verdict"}}}}

`arms` has every arm that is compared, with "threshold", "successes" (of the arm and of its
reference) and "shares_p" where runs are judged in two parts. The two p-values hold over all looks
and parts, of one arm alone: `benjamini_hochberg` takes those of a page. Numbers that are not known
are null. `details` is what the
pages about several studies need besides: `area` and `tokens` are the comparisons by the area under
the curve and at equal generated tokens.
"""

from collections.abc import Callable, Mapping
from typing import Any

from trl_ablate.study.planned import Plan
from trl_ablate.study.report.analysis import Analysis
from trl_ablate.study.report.costs import at_equal_cost, generated_tokens
from trl_ablate.study.report.effect_sections import sentences_of
from trl_ablate.study.report.factorial import Factorial, entries_of
from trl_ablate.study.report.sharpening import rises
from trl_ablate.study.report.stats import Comparison, Interval
from trl_ablate.study.report.verdicts import agreement, disagreement, found_of
from trl_ablate.study.two_part import TwoPart


def numbers_of(
    analysis: Analysis,
    curves: Mapping[str, Mapping[str, Interval]],
    clean: Callable[[str], str],
    plan: Plan | None = None,
    effects: Factorial | None = None,
) -> dict[str, Any]:
    """The content of `report.json`, with `clean` applied to all names and sentences.

    Args:
        curves: the parameters of learning curves, by arm.
        plan: the plan of a study; other curves have none.
        effects: of a factorial study.
    """
    means = {arm.name: arm.intervals[analysis.decide_on].mean for arm in analysis.arms}
    sentences = sentences_of(effects) if effects else []
    return {
        "reference": clean(analysis.reference.name),
        "metric": clean(analysis.metric),
        "arms": {clean(name): _arm(name, analysis) for name in analysis.decisive},
        "effects": entries_of(effects) if effects else [],
        "curves": {
            clean(arm): {name: found.mean for name, found in each.items()}
            for arm, each in curves.items()
        },
        "details": {
            "question": clean(plan.question) if plan else None,
            "runs": sum(arm.ended for arm in analysis.arms),
            "margin": analysis.margin,
            "means": {clean(name): mean for name, mean in means.items()},
            "mixed": [
                clean(arm.name)
                for arm in analysis.arms
                if arm.is_mixed and analysis.judge == "paired"  # two parts are made for such arms
            ],
            "arms": _details(analysis, plan, clean),
            "sentences": [text and clean(text) for text in sentences],
            "passes": {clean(name): each for name, each in rises(analysis).items()},
        },
    }


def _details(
    analysis: Analysis, plan: Plan | None, clean: Callable[[str], str]
) -> dict[str, dict[str, Any]]:
    paired = analysis.judge == "paired"
    tokens = at_equal_cost(analysis, generated_tokens) if paired else {}
    area, expect = analysis.comparisons["auc"], plan.expect if plan else {}
    return {
        clean(name): {
            "against": clean(analysis.reference_of(name).name),
            "expected": expect.get(name),
            "agreement": agreement(expect[name], found_of(name, analysis), analysis.margin)
            if name in expect
            else None,
            "detectable": found.detectable,
            "next_look": found.next_look,
            "disagreement": disagreement(found),
            "area": _compared(area[name]),
            "tokens": _compared(tokens[name]) if name in tokens else None,
        }
        for name, found in analysis.decisive.items()
    }


def _compared(found: Comparison) -> dict[str, Any]:
    of = found.difference
    return {"verdict": found.verdict, "difference": of.mean, "low": of.low, "high": of.high}


def _arm(name: str, analysis: Analysis) -> dict[str, Any]:
    comparison, arm = analysis.decisive[name], analysis.arm(name)
    differs, same = comparison.p_values
    return {
        **_compared(comparison),
        "pairs": comparison.n,
        "collapsed": [arm.collapsed, arm.ended],
        "equivalence_margin": analysis.margin,
        "p_difference": min(1.0, differs),
        "p_equivalent": min(1.0, same),
        **(_two_part(comparison.two_part) if comparison.two_part else {}),
    }


def _two_part(found: TwoPart) -> dict[str, Any]:
    shares = found.shares
    return {
        "threshold": found.threshold,
        "successes": shares and [shares.arm, shares.reference],
        "shares_p": shares and shares.p,
    }
