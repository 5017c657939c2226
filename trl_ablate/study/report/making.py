"""Write a report: REPORT.md, report.html, report.json, pictures, runs.csv. No torch.

Each time, all is computed again from run directories, or from a CSV file of published curves.
"""

import csv
from collections.abc import Callable, Sequence
from pathlib import Path

from trl_ablate.errors import ConfigurationError
from trl_ablate.metrics import EVAL_REWARD
from trl_ablate.run.json_files import write_json
from trl_ablate.run.masking import Masker, known_secrets
from trl_ablate.study.planned import Plan
from trl_ablate.study.report import (
    background,
    costs,
    effect_sections,
    growth,
    outcomes,
    sections,
    successes,
    tuning_sections,
    verdicts,
)
from trl_ablate.study.report.analysis import Analysis, analyse
from trl_ablate.study.report.curves import Run, planned_runs
from trl_ablate.study.report.document import Document, Picture, Section
from trl_ablate.study.report.effect_pictures import effect_pictures
from trl_ablate.study.report.factorial import Factorial, factorial
from trl_ablate.study.report.foreign_runs import metric_of, read_curves
from trl_ablate.study.report.pictures import difference_picture, draw_curves
from trl_ablate.study.report.record import numbers_of
from trl_ablate.study.report.rendering import write_markdown, write_page
from trl_ablate.study.report.sharpening import sharpening_table
from trl_ablate.study.report.success_pictures import successes_picture
from trl_ablate.study.report.tuned import TunedRuns, split
from trl_ablate.study.report.xray_section import xray_section
from trl_ablate.study.runs import analysis_of, up_to_next_look
from trl_ablate.study.store import RunStore, id_of

CURVES_ABOUT = (
    "{metric} against GRPO steps, and time or tokens, gradient norm, response length and entropy; "
    "lines are means over seeds, bands go from the lowest to the highest seed"
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
    tuned = split(plan, runs) if plan.tuning else None
    judged = tuned.own if tuned else runs
    analysis = _without_idle_runs(plan, judged)
    effects = factorial(plan, judged) if plan.design else None
    parts = [
        *_opening(plan, analysis, effects, tuned),
        verdicts.expectations(analysis, plan),
        background.seeds_answer(plan),
        *_numbers(analysis, reference, compared=effects is None),
        xray_section(store, plan.study, analysis),
        growth.growth_table(parameters := growth.parameters(analysis)),
        sharpening_table(analysis),
        sections.published_table(reference, plan.primary_metric),
        *([] if effects or plan.pool else [verdicts.what_would_change(analysis)]),
        sections.differences_table(plan),
        background.warnings(plan, runs),
        sections.runs_table(analysis),
        background.samples(analysis),
        background.environment(runs),
        background.commands(plan, study),
    ]
    document = Document(plan.study, plan.question, parts)
    numbers = numbers_of(analysis, parameters, _cleaned(), plan, effects)
    return _write(document, analysis, numbers, out, tuned.ended_trials if tuned else ())


def report_curves(
    curves: Path, out: Path, *, metric: str = EVAL_REWARD, reference: Sequence[Run] = ()
) -> list[Path]:
    """Write the report of published curves into `out`; the first run is the reference arm."""
    runs = read_curves(curves)
    analysis = analyse(runs, metric_of(runs, metric, f"curves {curves}"))
    parts = [
        verdicts.answer(analysis, None, difference_picture(analysis)),
        *_numbers(analysis, reference),
        growth.growth_table(parameters := growth.parameters(analysis)),
        verdicts.what_would_change(analysis),
        sections.runs_table(analysis),
        sections.published_table(reference, metric),
    ]
    lead = f"{len(runs)} published runs, read from {curves.name}"
    document = Document(curves.stem.replace("_", " "), lead, parts)
    return _write(document, analysis, numbers_of(analysis, parameters, _cleaned()), out)


def _numbers(
    analysis: Analysis, reference: Sequence[Run], *, compared: bool = True
) -> list[Section]:
    """The curves and the tables; a factorial study compares no arms."""
    about = CURVES_ABOUT.format(metric=analysis.metric)
    curves = Picture("curves.png", draw_curves(analysis, reference), about)
    if analysis.judge == "two_part":
        tables = (successes.arms_table, successes.successes_table)
        return [Section("Curves", [curves]), *(make(analysis) for make in tables)]
    found = [Section("Curves", [curves]), sections.arms_table(analysis)]
    if compared:
        tables = (sections.comparisons_table, outcomes.outcomes_table, costs.costs_table)
        found += [make(analysis) for make in tables]
    return found


def _opening(
    plan: Plan, analysis: Analysis, effects: Factorial | None, tuned: TunedRuns | None
) -> list[Section]:
    """The answers: the sections before the curves."""
    if effects is None:
        draw = successes_picture if analysis.judge == "two_part" else difference_picture
        found = [verdicts.answer(analysis, plan, draw(analysis))]
    else:
        found = [
            effect_sections.answer(effects, analysis, plan),
            Section("Pictures of the effects", [*effect_pictures(effects, analysis)]),
            effect_sections.effects_table(effects),
        ]
    if tuned is not None:
        found[0].blocks.insert(0, tuning_sections.lead(tuned))
        found += [
            *([] if plan.pool else [tuning_sections.at_reference(tuned, plan, analysis)]),
            tuning_sections.trials(tuned),
        ]
    return found


def _without_idle_runs(plan: Plan, runs: Sequence[Run]) -> Analysis:
    """With looks, runs at the end of an arm that no comparison needs yet are left out."""
    analysis = analysis_of(plan, runs)
    if not plan.looks:
        return analysis
    wanted = up_to_next_look(plan, analysis)
    kept: list[Run] = []
    for arm, seeds in wanted.items():
        own = [run for run in runs if run.arm == arm]
        while len(own) > seeds and own[-1].status == "to do":
            own.pop()
        kept += own
    return analysis_of(plan, kept)


def _cleaned() -> Callable[[str], str]:
    return Masker(known_secrets([], [], None)).text


def _write(
    document: Document, analysis: Analysis, numbers: dict, out: Path, trials: Sequence[Run] = ()
) -> list[Path]:
    written = write_files(document, numbers, out)
    write_runs(analysis, out / "runs.csv", _cleaned(), trials)
    return [*written, out / "runs.csv"]


def write_files(document: Document, numbers: dict, out: Path) -> list[Path]:
    """The document as Markdown and as a page, its pictures, and its numbers."""
    document.sections = [section for section in document.sections if section.blocks]
    clean = _cleaned()
    out.mkdir(parents=True, exist_ok=True)
    for picture in document.pictures:
        (out / picture.file).write_bytes(picture.png)
    (out / "REPORT.md").write_text(write_markdown(document, clean), encoding="utf-8")
    (out / "report.html").write_text(write_page(document, clean), encoding="utf-8")
    write_json(out / "report.json", numbers)
    names = ("REPORT.md", "report.html", "report.json")
    return [out / name for name in (*names, *(picture.file for picture in document.pictures))]


def write_runs(
    analysis: Analysis, path: Path, clean: Callable[[str], str], trials: Sequence[Run]
) -> None:
    """One row per run, also without an outcome, and then one per trial of a study with tuning. The
    header has the metric; steps are GRPO steps."""
    metric = analysis.metric
    header = [
        "run_name", "arm", "seed", "status", "reason", "last_step",
        f"best_{metric}", "best_eval_step", f"final_{metric}", f"mean_{metric}",
        "collapsed_at", "seconds", "directory",
    ]  # fmt: skip
    with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        writer = csv.writer(file)
        for cells in (header, *(_csv_row(run, metric) for run in (*analysis.runs, *trials))):
            writer.writerow([clean(c) if isinstance(c, str) else c for c in cells])


def _csv_row(run: Run, metric: str) -> list[object]:
    s = run.summary(metric)
    values = [s.best, _whole(s.best_step), s.final, round(s.auc, 6)] if s else [None] * 4
    return [
        run.name, run.arm, run.seed, run.status, run.reason, _whole(run.last_step), *values,
        _whole(s.collapsed_at) if s else None, run.record.get("seconds"),
        id_of(run.directory.name) if run.directory else None,
    ]  # fmt: skip


def _whole(step: float | None) -> float | int | None:
    """171 for 171.0."""
    return int(step) if step is not None and step == int(step) else step
