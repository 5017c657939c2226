"""The pages of the findings: those of a list, and README's section.

The sentences stand in templates, which choose rows by their verdicts. A list's own templates beside
it, `FINDINGS.md.j2` and others, extend ours and are pages each; without any, ours is FINDINGS.md.
Studies without runs appear as not run yet. `predictions.yaml` beside published files states a rule
and contrasts: how often does the toy foretell published runs?
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import yaml

from trl_ablate.errors import ConfigurationError
from trl_ablate.metrics import LENGTH
from trl_ablate.run.untrusted import for_markdown
from trl_ablate.study.questions_list import Question
from trl_ablate.study.report.foreign_runs import read_runs
from trl_ablate.study.report.found_answers import (
    ArmFound,
    Found,
    answers,
    found_of,
    read_report,
    with_xray,
)
from trl_ablate.study.report.numbers import NOTHING, signed, within
from trl_ablate.study.report.verdicts import MOSTLY
from trl_ablate.study.report.xray_outcomes import pairs_of_answers, sentence
from trl_ablate.study.two_part import clopper_pearson
from trl_ablate.study.verdict import Verdict

_INTERVAL = re.compile(r"\\\[([+−]\d+\.\d+, [+−]\d+\.\d+)\\\]")
_EMPTY_SECTION = re.compile(r"^## [^\n]+\n+(?=## |\Z)", re.MULTILINE)
README_RUNS = 4
"""README's section has the contrasts of which the small model has so many runs."""
README_HEADING = "## Answers so far\n"
PICTURE, SCATTER, SCALES = "findings.png", "xray.png", "scales.png"
TEMPLATES = Path(__file__).parent / "templates"
FILE = Path("published", "predictions.yaml")


@dataclass(frozen=True)
class Contrast:
    """One comparison at several scales: the toy's and the small model's if it is run, which are
    entries of a `report.json`, and published ones."""

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

    @property
    def columns(self) -> list[str]:
        """The difference at each scale, with its pairs, or else the runs of the arm; the published
        ones by source."""
        sizes = [(f"{source_of(name)} ", found) for name, found in self.published.items()]
        there = [f"{name}{signed(value, 2)} ({runs})" for name, (value, runs) in sizes]
        return [_effect(self.toy), _effect(self.small), ", ".join(there)]

    @property
    def apart(self) -> str:
        """The toy's difference minus the small model's; of two studies, so that the squares of
        their intervals' half-widths add up."""
        both = [self.toy, self.small or {}]
        if any(each.get("low") is None for each in both):
            return NOTHING
        toy, small = (each["difference"] for each in both)
        half = math.hypot(*((each["high"] - each["low"]) / 2 for each in both))
        return within(toy - small, toy - small - half, toy - small + half, 2)


def source_of(published: str) -> str:
    """`A` of `olmo_a A`, `math` of `qwen_math baselines`."""
    file, _, group = published.partition(" ")
    return group if len(group) == 1 else file.rpartition("_")[2]


def _effect(entry: Mapping[str, Any] | None) -> str:
    if entry is None:
        return NOTHING
    difference = within(entry["difference"], entry["low"], entry["high"], 2)
    return f"{difference} ({entry.get('pairs') or entry['collapsed'][1]})"


def contrasts(studies: Path) -> list[Contrast]:
    """Those of studies that have a report and of files that are there; none without the list."""
    if not (studies / FILE).is_file():
        return []
    found, figures = [], (studies / FILE).parent  # which a wheel has not
    for row in yaml.safe_load((studies / FILE).read_text(encoding="utf-8"))["rows"]:
        report = read_report(studies / row["study"])
        if report and all((figures / file).is_file() for file, *_ in row["published"]):
            found.append(_compared(row, report, studies))
    return found


def foretold(report: Mapping, arm: str) -> str | None:
    """By the rule that the file states."""
    found = report["arms"][arm]
    collapsed, runs = found["collapsed"]
    worse = Verdict(found["verdict"]) in (Verdict.WORSE, Verdict.COLLAPSE)
    return ("fails" if collapsed > MOSTLY * runs else "lower") if worse else None


def right_share(found: Sequence[Contrast]) -> str:
    """How many contrasts came as foretold, with the exact 95 % interval."""
    came = [each for one in found for each in one.right.values()]
    limits = clopper_pearson(sum(came), len(came))
    share, low, high = (f"{100 * each:.0f}" for each in (mean(came), *limits))
    coin = "more than a coin's" if limits[0] > 0.5 else "which a coin may reach, too"
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
    toy, small = report["arms"][row["arm"]], small and so_far(small, arm)
    return Contrast(row["words"], toy, small, published, predicts, right)


def so_far(report: Mapping, arm: str) -> Mapping[str, Any] | None:
    """The arm's entry; before the first look, with the difference of the means of all runs. None
    before there are runs of both."""
    found, means = report["arms"][arm], report["details"]["means"]
    against = report["details"]["arms"][arm]["against"]
    if found["difference"] is not None:
        return found
    own, other = means.get(arm), means.get(against)
    return None if own is None or other is None else found | {"difference": own - other}


def _ends(file: Path, group: str) -> dict[str, list[tuple[float, float]]]:
    """Arm -> of each run what it had at step 0, or 0 if that is not known, and at the end."""
    ends: dict[str, list[tuple[float, float]]] = {}
    for run in read_runs([file]):
        if group in ("", run.group):
            (outcome,) = run.series.keys() - {LENGTH, "response_length"}
            first, last = run.before_training(outcome), run.series[outcome].values[-1]
            ends.setdefault(run.arm, []).append((first or 0.0, last))
    return ends


def findings_pages(
    found: Sequence[Found], compared: Sequence[Contrast], folder: Path
) -> dict[str, str]:
    """Name -> text of the pages of the list in a folder, with those of the pictures there are."""
    foretold, pairs = [each for each in compared if each.predicts], pairs_of_answers(found)
    drawn = any(arm.numbers["low"] is not None for arm in answered_arms(found))
    values = dict(
        found=found,
        found_in=lambda **asked: found_of(Question("", "question", **asked), folder),
        studies=[each for row in found for each in (row.worlds[1:] or [row])],
        decided=_by_question(found, decided=True),
        open=_by_question(found, decided=False),
        came=Counter(arm.numbers["agreement"] for row in answers(found) for arm in row.arms),
        carried=[row for row in found if row.worlds],
        xrays=_xrays(found),
        foretold=foretold,
        right_share=foretold and right_share(foretold),
        scales=SCALES if compared else None,
        compared=compared,
        correlation=sentence(pairs),
        picture=PICTURE if drawn else None,
        scatter=SCATTER if pairs else None,
        nothing=NOTHING,
    )
    own = sorted(path.name for path in folder.glob("*.md.j2"))
    pages = {name[:-3]: name for name in own} or {"FINDINGS.md": "findings.md.j2"}
    return {name: _tidy(_rendered(each, folder, **values)) for name, each in pages.items()}


def _tidy(page: str) -> str:
    """Without sections that have no content, and without double empty lines."""
    page = re.sub(r"\n{3,}", "\n\n", page).strip()
    return _EMPTY_SECTION.sub("", page).strip() + "\n"


def _by_question(found: Sequence[Found], *, decided: bool) -> list[tuple[Found, list[ArmFound]]]:
    """The questions with their arms that are decided, or open; no question without such arms."""
    rows = [(row, row.arms) for row in found if not row.asked.replaced_by]
    chosen = [(row, [arm for arm in arms if arm.kind.is_answer == decided]) for row, arms in rows]
    return [(row, arms) for row, arms in chosen if arms]


def _xrays(found: Sequence[Found]) -> dict[str, list[int]]:
    """How often the runs found a difference, found none, or left it open, for each verdict of the
    X-ray."""
    counts: dict[str, list[int]] = {}
    for _, arm in with_xray(found):
        place = 0 if arm.kind.matters else 1 if arm.kind is Verdict.EQUIVALENT else 2
        counts.setdefault(arm.xray_kind, [0, 0, 0])[place] += 1
    return counts


def answered_arms(found: Sequence[Found]) -> list[ArmFound]:
    """The arms of the answers that are sentences, and are not replaced."""
    in_words = ("question", "control")
    return [arm for row in answers(found) if row.asked.part in in_words for arm in row.arms]


def readme_section(compared: Sequence[Contrast]) -> str | None:
    """The section of README; None before the small model has runs enough."""
    shown = [each for each in compared if each.small and each.small["collapsed"][1] >= README_RUNS]
    return _rendered("README.md.j2", shown=shown, scales=SCALES) if shown else None


def with_section(readme: str, section: str) -> str:
    """README with its section on answers replaced."""
    before, found, rest = readme.partition(README_HEADING)
    _, end, after = rest.partition("\n## ")
    if not (found and end):
        raise ConfigurationError(
            f"the README has no section '{README_HEADING.strip()}' before another one; add it"
        )
    return f"{before}{README_HEADING}{section}\n{end}{after}"


def _rendered(template: str, folder: Path = TEMPLATES, **values: Any) -> str:
    """What a template shows is escaped for Markdown; the brackets of intervals need none."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    def shown(value: object) -> object:
        if not isinstance(value, str) or isinstance(value, Markup):
            return value
        return Markup(_INTERVAL.sub(r"[\1]", for_markdown(value)))

    environment = Environment(
        loader=FileSystemLoader([folder, TEMPLATES]), undefined=StrictUndefined,
        autoescape=True, finalize=shown, trim_blocks=True,
    )  # fmt: skip
    return environment.get_template(template).render(**values)
