"""How often does the toy foretell published runs? Predictions by a rule, compared with their files.

`predictions.yaml` beside the published files states the rule and the contrasts.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

import yaml

from trl_ablate.study.report.found_answers import read_report
from trl_ablate.study.report.numbers import NOTHING
from trl_ablate.study.verdict import Verdict

FILE = Path("published", "predictions.yaml")
NO_OUTCOME = {"arm", "group", "experiment", "seed", "step", "response_length"}


@dataclass(frozen=True)
class Prediction:
    """What is foretold of an arm, and whether each published contrast has it."""

    words: str
    predicts: str
    right: Mapping[str, bool]
    """File and group -> whether it came so."""

    @property
    def wrong(self) -> str:
        return ", ".join(name for name, came in self.right.items() if not came) or NOTHING


def predictions(studies: Path) -> list[Prediction]:
    """Those of studies that have a report with a verdict; none without the file."""
    if not (studies / FILE).is_file():
        return []
    rows = yaml.safe_load((studies / FILE).read_text(encoding="utf-8"))["rows"]
    found = []
    for row in rows:
        report = read_report(studies / row["study"])
        predicts = foretold(report, row["arm"]) if report else None
        if predicts:
            found.append(_compared(row, predicts, studies))
    return found


def foretold(report: Mapping, arm: str) -> str | None:
    """By the rule that the file states."""
    found = report["arms"][arm]
    collapsed, runs = found["collapsed"]
    worse = Verdict(found["verdict"]) in (Verdict.WORSE, Verdict.COLLAPSE)
    return ("fails" if 2 * collapsed > runs else "lower") if worse else None


def right_share(found: Sequence[Prediction]) -> str:
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


def _compared(row: Mapping, predicts: str, studies: Path) -> Prediction:
    right = {}
    for file, group, arm, against in row["published"]:
        runs = _ends((studies / FILE).parent / file, group)
        of, reference = runs[arm], runs[against]
        least = median(first + (last - first) / 2 for first, last in reference)
        failed = [mean(last < least for _, last in each) for each in (of, reference)]
        lower = mean(last for _, last in of) < mean(last for _, last in reference)
        name = f"{Path(file).stem} {group}".strip()
        right[name] = {"lower": lower, "fails": failed[0] > failed[1]}[predicts]
    return Prediction(row["words"], predicts, right)


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
