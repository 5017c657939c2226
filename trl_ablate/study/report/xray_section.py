"""The report's section on the X-ray of a study, if there is one: what it says, and what the runs
said. No torch: it reads `xray.json`, which `trl-ablate study plan STUDY --xray` writes."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trl_ablate.run.json_files import read_object
from trl_ablate.study.report.analysis import Analysis
from trl_ablate.study.report.document import Grid, Section
from trl_ablate.study.report.sections import number
from trl_ablate.study.store import RunStore

TITLE = "What the X-ray says, what the runs said"
NOTE = (
    "The X-ray compares the gradients that arms take on the same rollouts, before any run: the "
    "cosine of the mean gradients with that of {reference}, or of the arm named, and the ratio of "
    "their norms. It tells the same, a different and an opposite update apart; it does not say "
    "which is better, and it sees no drift over many steps."
)


def xray_folder(store: RunStore, study: str) -> Path:
    """Where the X-ray of a study is kept."""
    return store.path / "xray" / study


def xray_section(store: RunStore, study: str, analysis: Analysis) -> Section | None:
    """None if there is no X-ray of the study."""
    file = xray_folder(store, study) / "xray.json"
    if not os.path.isfile(file):  # which is false for a name that is too long for a file
        return None
    found = read_object(file)
    reference = str(found.get("reference"))
    header = ["arm", "at", "verdict of the X-ray", "cosine", "norm ×", "runs"]
    against: Mapping[str, str] = found.get("against", {})
    entries: Mapping[str, Sequence[Mapping[str, Any]]] = found.get("arms", {})
    rows = [
        [
            label_of(arm, against.get(arm, reference), reference),
            place_of(one),
            str(one.get("verdict")),
            number(one.get("cosine_mean")),
            number(one.get("norm_ratio")),
            _of_the_runs(arm, against.get(arm, reference), analysis),
        ]
        for arm, at_points in entries.items()
        for one in at_points
        if arm != reference
    ]
    skipped: Mapping[str, str] = found.get("skipped", {})
    rows += [[arm, "", f"out of reach: it {why}", "", "", ""] for arm, why in skipped.items()]
    note = NOTE.format(reference=reference)
    return Section(TITLE, [Grid(header, rows, note, numbers_from=3)] if rows else [])


def label_of(arm: str, against: str, reference: str) -> str:
    """The name of an arm, with what it is compared with if that is not the reference."""
    return arm + f" (against {against})" * (against != reference)


def place_of(entry: Mapping[str, Any]) -> str:
    drift = entry.get("drift")
    return f"{entry.get('checkpoint')}{f' + {drift} steps' if drift else ''}"


def _of_the_runs(arm: str, reference: str, analysis: Analysis) -> str:
    """The verdict of the study, if it compares the same two arms; otherwise both means."""
    known = {one.name: one.intervals[analysis.decide_on].mean for one in analysis.arms}
    if known.get(arm) is None or known.get(reference) is None:
        return "no runs"
    means = f"{number(known[arm])} against {number(known[reference])}"
    compared = arm in analysis.decisive and analysis.reference_of(arm).name == reference
    return f"{analysis.decisive[arm].verdict}: {means}" if compared else f"{means} (not tested)"
