"""The numbers of a report as JSON, for other tools: `report.json`.

    {"reference", "metric",
     "arms": {arm: {"verdict", "difference", "low", "high", "pairs", "collapsed": [k, n],
                    "equivalence_margin"}},
     "effects": [{"factor" or "factors", "levels", "estimate", "low", "high", "verdict"}],
     "curves": {arm: {"A", "B", "C_mid"}}}

`arms` has every arm that is compared; numbers that are not known are null.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trl_ablate.study.report.analysis import Analysis


def numbers_of(
    analysis: Analysis,
    effects: Sequence[Mapping[str, Any]] = (),
    curves: Mapping[str, Mapping[str, float | None]] | None = None,
    clean: Callable[[str], str] = str,
) -> dict[str, Any]:
    """The content of `report.json`, with `clean` applied to all names."""
    return {
        "reference": clean(analysis.reference.name),
        "metric": clean(analysis.metric),
        "arms": {clean(name): _arm(name, analysis) for name in analysis.decisive},
        "effects": [dict(effect) for effect in effects],
        "curves": {clean(name): dict(found) for name, found in (curves or {}).items()},
    }


def _arm(name: str, analysis: Analysis) -> dict[str, Any]:
    comparison, arm = analysis.decisive[name], analysis.arm(name)
    return {
        "verdict": comparison.verdict,
        "difference": comparison.difference.mean,
        "low": comparison.difference.low,
        "high": comparison.difference.high,
        "pairs": comparison.difference.n,
        "collapsed": [arm.collapsed, arm.ended],
        "equivalence_margin": analysis.margin,
    }
