"""Write a report: REPORT.md, report.html, curves.png, differences.png, runs.csv. No torch.

Each time, all is computed again from run directories, or from a CSV file of published curves.
"""

import csv
from collections.abc import Callable, Sequence
from pathlib import Path

from trl_ablate.errors import ConfigurationError
from trl_ablate.metrics import EVAL_REWARD
from trl_ablate.run.masking import Masker, known_secrets
from trl_ablate.study.plan import Plan
from trl_ablate.study.report import background, sections
from trl_ablate.study.report.analysis import Analysis, analyse
from trl_ablate.study.report.curves import Run, planned_runs, read_curves
from trl_ablate.study.report.document import Document, Picture, Section, with_texts
from trl_ablate.study.report.markdown import write_markdown
from trl_ablate.study.report.page import write_page
from trl_ablate.study.report.pictures import draw_curves, draw_differences, references
from trl_ablate.study.report.xray import xray_section
from trl_ablate.study.store import RunStore

PICTURES_ABOUT = (
    "{metric} against GRPO steps and time, gradient norm, response length and entropy; lines are "
    "means over seeds, bands go from the lowest to the highest seed"
)


def report_study(
    plan: Plan, store: RunStore, study: Path, out: Path, reference: Sequence[Run] = ()
) -> list[Path]:
    """Write a study's report into `out`; returns the written files.

    Args:
        reference: published runs, drawn beside the study's own.
    """
    runs = planned_runs(plan, store)
    if not any(plan.primary_metric in run.series for run in runs):
        raise ConfigurationError(
            f"study {study}: no run has logged {plan.primary_metric} yet; `run` the study first"
        )
    analysis = analyse(runs, plan.primary_metric, plan.decide_on, plan.against)
    pictures = _pictures(analysis, reference)
    document = Document(plan.study, plan.question, [sections.answer(analysis, plan)])
    document.sections += [
        section
        for section in (
            background.seeds_answer(plan),
            Section("Curves", [*pictures]),
            sections.arms_table(analysis),
            sections.comparisons_table(analysis),
            xray_section(store, plan.study, analysis),
            sections.published_table(reference, plan.primary_metric) if reference else None,
            sections.differences_table(plan),
            background.warnings(plan),
            sections.runs_table(analysis),
            background.samples(analysis),
            background.environment(runs),
            background.commands(plan, study),
        )
        if section is not None and section.blocks
    ]
    return _write(document, analysis, pictures, out)


def report_curves(
    curves: Path, out: Path, *, metric: str = EVAL_REWARD, reference: Sequence[Run] = ()
) -> list[Path]:
    """Write the report of published curves into `out`; the first run is the reference arm."""
    runs = read_curves(curves)
    known = sorted({name for run in runs for name in run.series})
    if metric not in known:
        raise ConfigurationError(
            f"curves {curves} have no metric '{metric}'; they have {', '.join(known)}"
        )
    analysis = analyse(runs, metric)
    pictures = _pictures(analysis, reference)
    document = Document(
        curves.stem.replace("_", " "),
        f"{len(runs)} published runs, read from {curves.name}",
        [
            sections.answer(analysis, None),
            Section("Curves", [*pictures]),
            sections.arms_table(analysis),
            sections.comparisons_table(analysis),
            sections.runs_table(analysis),
        ],
    )
    if reference:
        document.sections.append(sections.published_table(reference, metric))
    return _write(document, analysis, pictures, out)


def _pictures(analysis: Analysis, reference: Sequence[Run]) -> list[Picture]:
    about = PICTURES_ABOUT.format(metric=analysis.metric)
    curves = Picture("curves.png", draw_curves(analysis, reference), about)
    differences = draw_differences(analysis)
    if differences is None:
        return [curves]
    about = f"each arm's difference from {references(analysis)} with its 95 % interval"
    return [Picture("differences.png", differences, about), curves]


def _write(
    document: Document, analysis: Analysis, pictures: Sequence[Picture], out: Path
) -> list[Path]:
    masker = Masker(known_secrets([], [], None))
    document = with_texts(document, masker.text)
    out.mkdir(parents=True, exist_ok=True)
    for picture in pictures:
        (out / picture.file).write_bytes(picture.png)
    (out / "REPORT.md").write_text(write_markdown(document), encoding="utf-8")
    (out / "report.html").write_text(write_page(document), encoding="utf-8")
    write_runs(analysis, out / "runs.csv", masker.text)
    names = ("REPORT.md", "report.html", "runs.csv", *(picture.file for picture in pictures))
    return [out / name for name in names]


def write_runs(analysis: Analysis, path: Path, clean: Callable[[str], str] = str) -> None:
    """One row per run, also without an outcome. The header has the metric; steps are GRPO steps."""
    metric = analysis.metric
    header = [
        "run_name", "arm", "seed", "status", "reason", "last_step",
        f"best_{metric}", "best_eval_step", f"final_{metric}", f"mean_{metric}",
        "collapsed_at", "seconds", "directory",
    ]  # fmt: skip
    with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        for arm in analysis.arms:
            for run in arm.runs:
                cells = _csv_row(run, metric)
                writer.writerow([clean(c) if isinstance(c, str) else c for c in cells])


def _csv_row(run: Run, metric: str) -> list[object]:
    summary = run.summary(metric)
    values = (
        [summary.best, _whole(summary.best_step), summary.final, round(summary.auc, 6)]
        if summary
        else [None] * 4
    )
    return [
        run.name,
        run.arm,
        run.seed,
        run.status,
        run.reason,
        _whole(run.last_step),
        *values,
        _whole(summary.collapsed_at) if summary else None,
        run.record.get("seconds"),
        run.directory.name if run.directory else None,
    ]


def _whole(step: float | None) -> float | int | None:
    """171 for 171.0."""
    return int(step) if step is not None and step == int(step) else step
