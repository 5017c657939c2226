"""How often does the toy foretell published runs? Predictions by a rule, compared with their files.

`predictions.yaml` beside the published files states the rule and the contrasts.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import yaml

from trl_ablate.study.report.found_answers import read_report
from trl_ablate.study.report.numbers import NOTHING
from trl_ablate.study.verdict import Verdict

FILE = Path("published", "predictions.yaml")
NO_OUTCOME = {"arm", "group", "experiment", "seed", "step", "response_length"}


@dataclass(frozen=True)
class Contrast:
    """One comparison at several scales: our toy's, our small model's if it is run, published ones.

    The first two are entries of a `report.json`.
    """

    words: str
    toy: Mapping[str, Any]
    small: Mapping[str, Any] | None
    published: Mapping[str, tuple[float, int]]
    """File and group -> the difference of the means at the end, and the arm's runs."""
    predicts: str | None
    """What the toy foretells of the arm."""
    right: Mapping[str, bool]
    """File and group -> whether it came so."""

    @property
    def wrong(self) -> str:
        return ", ".join(name for name, came in self.right.items() if not came) or NOTHING


def contrasts(studies: Path) -> list[Contrast]:
    """Those of studies that have a report; none without the file."""
    if not (studies / FILE).is_file():
        return []
    rows = yaml.safe_load((studies / FILE).read_text(encoding="utf-8"))["rows"]
    with_reports = [(row, read_report(studies / row["study"])) for row in rows]
    return [_compared(row, report, studies) for row, report in with_reports if report]


def foretold(report: Mapping, arm: str) -> str | None:
    """By the rule that the file states."""
    found = report["arms"][arm]
    collapsed, runs = found["collapsed"]
    worse = Verdict(found["verdict"]) in (Verdict.WORSE, Verdict.COLLAPSE)
    return ("fails" if 2 * collapsed > runs else "lower") if worse else None


def right_share(found: Sequence[Contrast]) -> str:
    """How many contrasts came as foretold, with the exact 95 % interval."""
    from scipy.stats import binomtest

    came = [each for one in found for each in one.right.values()]
    limits = binomtest(sum(came), len(came)).proportion_ci()
    share, low, high = (f"{100 * each:.0f}" for each in (sum(came) / len(came), *limits))
    coin = "more than a coin's" if limits.low > 0.5 else "which a coin may reach, too"
    return (
        f"{sum(came)} of {len(came)} contrasts came as foretold: {share} % (exact 95 % interval "
        f"{low} to {high} %), {coin}."
    )


def _compared(row: Mapping, report: Mapping, studies: Path) -> Contrast:
    predicts, right, published = foretold(report, row["arm"]), {}, {}
    for file, group, arm, against in row["published"]:
        runs = _ends((studies / FILE).parent / file, group)
        of, reference = runs[arm], runs[against]
        least = median(first + (last - first) / 2 for first, last in reference)
        failed = [mean(last < least for _, last in each) for each in (of, reference)]
        difference = mean(last for _, last in of) - mean(last for _, last in reference)
        name = f"{Path(file).stem} {group}".strip()
        published[name] = (difference, len(of))
        if predicts:
            right[name] = {"lower": difference < 0, "fails": failed[0] > failed[1]}[predicts]
    study, arm = row.get("small", (None, None))
    small = read_report(studies / study) if study else None
    return Contrast(
        row["words"], report["arms"][row["arm"]], small and small["arms"][arm], published,
        predicts, right,
    )  # fmt: skip


def _ends(file: Path, group: str) -> dict[str, list[tuple[float, float]]]:
    """Arm -> of each run what it had at step 0, or 0 if that is not known, and at the end."""
    with file.open(encoding="utf-8", newline="") as lines:
        rows = [
            r for r in csv.DictReader(lines) if group in ("", r.get("group"), r.get("experiment"))
        ]
    (outcome,) = {*rows[0]} - NO_OUTCOME
    runs: dict[tuple[str, str], dict[float, float]] = {}
    for row in rows:
        steps = runs.setdefault((row["arm"], row.get("seed") or ""), {})
        steps[float(row["step"])] = float(row[outcome])
    ends: dict[str, list[tuple[float, float]]] = {}
    for (arm, _), steps in runs.items():
        ends.setdefault(arm, []).append((steps.get(0.0, 0.0), steps[max(steps)]))
    return ends
