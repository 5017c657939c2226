"""The report's section on the X-ray of a study, if there is one: what it says, and what the runs
said. No torch: it reads `xray.json`, which `trl-ablate study plan STUDY --xray` writes."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trl_ablate.run.json_files import read_object
from trl_ablate.study.report.analysis import Analysis
from trl_ablate.study.report.document import Columns, Section, table
from trl_ablate.study.report.numbers import number
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


def xray_section(store: RunStore, study: str, analysis: Analysis) -> Section:
    """Empty if there is no X-ray of the study."""
    file = xray_folder(store, study) / "xray.json"
    if not os.path.isfile(file):  # which is false for a name that is too long for a file
        return Section(TITLE)
    found = read_object(file)
    reference = str(found.get("reference"))
    against: Mapping[str, str] = found.get("against", {})
    rows = [
        (arm, against.get(arm, reference), one)
        for arm, at_points in found.get("arms", {}).items()
        for one in at_points
        if arm != reference
    ]
    rows += [
        (arm, reference, {"verdict": f"out of reach: it {why}"})
        for arm, why in found.get("skipped", {}).items()
    ]

    def cell(write: Callable[..., str]) -> Callable[[tuple], str]:
        return lambda row: write(row[2]) if "checkpoint" in row[2] else ""

    columns: Columns = [
        ("arm", lambda row: label_of(row[0], row[1], reference)),
        ("at", cell(place_of)),
        ("verdict of the X-ray", lambda row: str(row[2].get("verdict"))),
        ("cosine", cell(lambda one: number(one.get("cosine_mean")))),
        ("norm ×", cell(lambda one: number(one.get("norm_ratio")))),
        ("runs", lambda row: _of_the_runs(row[0], row[1], row[2], analysis)),
    ]
    return table(TITLE, rows, columns, NOTE.format(reference=reference), 3)


def label_of(arm: str, against: str, reference: str) -> str:
    """The name of an arm, with what it is compared with if that is not the reference."""
    return arm + f" (against {against})" * (against != reference)


def place_of(entry: Mapping[str, Any]) -> str:
    drift = entry.get("drift")
    return f"{entry.get('checkpoint')}{f' + {drift} steps' if drift else ''}"


def _of_the_runs(arm: str, reference: str, one: Mapping[str, Any], analysis: Analysis) -> str:
    """The verdict of the study, if it compares the same two arms; otherwise both means."""
    if "checkpoint" not in one:
        return ""
    known = {one.name: one.intervals[analysis.decide_on].mean for one in analysis.arms}
    if known.get(arm) is None or known.get(reference) is None:
        return "no runs"
    means = f"{number(known[arm])} against {number(known[reference])}"
    compared = arm in analysis.decisive and analysis.reference_of(arm).name == reference
    return f"{analysis.decisive[arm].verdict}: {means}" if compared else f"{means} (not tested)"
