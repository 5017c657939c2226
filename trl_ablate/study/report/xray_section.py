"""The report's section on the X-ray of a study, if there is one: what it says, and what the runs
said. No torch: it reads `xray.json`, which `trl-ablate study plan STUDY --xray` writes."""

from trl_ablate.study.report.analysis import Analysis
from trl_ablate.study.report.document import Columns, Section, table
from trl_ablate.study.report.numbers import number
from trl_ablate.study.store import RunStore
from trl_ablate.study.xray_file import XRAY, Point, read_xray, xray_folder

TITLE = "What the X-ray says, what the runs said"
NOTE = (
    "The X-ray compares the gradients that arms take on the same rollouts, before any run: the "
    "cosine of the mean gradients with that of {reference}, or of the arm named, and the ratio of "
    "their norms. It tells the same, a different and an opposite update apart; it does not say "
    "which is better, and it sees no drift over many steps."
)


def xray_section(store: RunStore, study: str, analysis: Analysis) -> Section:
    """Empty if there is no X-ray of the study."""
    found = read_xray(xray_folder(store, study) / XRAY)
    if found is None:
        return Section(TITLE)
    rows = [
        (label_of(arm, found.against(arm), found.reference), point,
         _of_the_runs(arm, found.against(arm), analysis))
        for arm, points in found.arms.items()
        for point in points
        if arm != found.reference
    ]  # fmt: skip
    rows += [
        (arm, Point("", f"out of reach: it {why}", None, None, None), "")
        for arm, why in found.skipped.items()
    ]
    columns: Columns = [
        ("arm", lambda row: row[0]),
        ("at", lambda row: row[1].place),
        ("verdict of the X-ray", lambda row: row[1].verdict),
        ("cosine", lambda row: number(row[1].cosine) if row[1].place else ""),
        ("norm ×", lambda row: number(row[1].norm_ratio) if row[1].place else ""),
        ("runs", lambda row: row[2]),
    ]
    return table(TITLE, rows, columns, NOTE.format(reference=found.reference), 3)


def label_of(arm: str, against: str, reference: str) -> str:
    """The name of an arm, with what it is compared with if that is not the reference."""
    return arm + f" (against {against})" * (against != reference)


def _of_the_runs(arm: str, reference: str, analysis: Analysis) -> str:
    """The verdict of the study, if it compares the same two arms; otherwise both means."""
    known = {one.name: one.intervals[analysis.decide_on].mean for one in analysis.arms}
    if known.get(arm) is None or known.get(reference) is None:
        return "no runs"
    means = f"{number(known[arm])} against {number(known[reference])}"
    compared = arm in analysis.decisive and analysis.reference_of(arm).name == reference
    return f"{analysis.decisive[arm].verdict}: {means}" if compared else f"{means} (not tested)"
