"""Write a report: REPORT.md, report.html, report.json, pictures, runs.csv. No torch.

Each time, all is computed again from run directories, or from a CSV file of published curves.
"""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    tuning_sections,
    verdicts,
)
from trl_ablate.study.report.analysis import Analysis, analyse
from trl_ablate.study.report.curves import Run, planned_runs, read_curves
from trl_ablate.study.report.document import Document, Picture, Section, with_texts
from trl_ablate.study.report.effect_pictures import effect_pictures
from trl_ablate.study.report.factorial import Factorial, entries_of, factorial
from trl_ablate.study.report.markdown import write_markdown
from trl_ablate.study.report.page import write_page
from trl_ablate.study.report.pictures import draw_curves, draw_differences, references
from trl_ablate.study.report.record import numbers_of
from trl_ablate.study.report.sharpening import sharpening_table
from trl_ablate.study.report.stats import Interval
from trl_ablate.study.report.tuned import TunedRuns, split
from trl_ablate.study.report.xray_section import xray_section
from trl_ablate.study.runs import analysis_of
from trl_ablate.study.schedule import up_to_next_look
from trl_ablate.study.store import RunStore, id_of

Parameters = dict[str, dict[str, Interval]]

PICTURES_ABOUT = (
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
    analysis = _analysis(plan, judged)
    effects = factorial(plan, judged) if plan.design else None
    parameters = growth.parameters(analysis)
    compared, curves = _pictures(analysis, reference, compared=effects is None)
    opening, shown = _opening(plan, analysis, effects, tuned, compared)
    document = Document(plan.study, plan.question, opening)
    document.sections += [
        section
        for section in (
            verdicts.expectations(analysis, plan),
            background.seeds_answer(plan),
            Section("Curves", [curves]),
            sections.arms_table(analysis),
            sections.comparisons_table(analysis) if effects is None else None,
            outcomes.outcomes_table(analysis) if effects is None else None,
            costs.costs_table(analysis) if effects is None else None,
            xray_section(store, plan.study, analysis),
            growth.growth_table(parameters),
            sharpening_table(analysis),
            sections.published_table(reference, plan.primary_metric) if reference else None,
            verdicts.what_would_change(analysis) if effects is None else None,
            sections.differences_table(plan),
            background.warnings(plan, runs),
            sections.runs_table(analysis),
            background.samples(analysis),
            background.environment(runs),
            background.commands(plan, study),
        )
        if section is not None and section.blocks
    ]
    written = Written(
        document=document,
        analysis=analysis,
        pictures=[*shown, curves],
        numbers=numbers_of(
            analysis,
            entries_of(effects) if effects else (),
            _means(parameters),
            _masker().text,
            plan=plan,
            sentences=effect_sections.sentences_of(effects) if effects else (),
        ),
        trials=_trials(tuned),
    )
    return _write(written, out)


@dataclass(frozen=True)
class Written:
    """What the files of a report hold."""

    document: Document
    analysis: Analysis
    pictures: Sequence[Picture]
    numbers: Mapping[str, Any]
    trials: Sequence[Run] = ()
    """Runs of tuning, which no comparison uses."""


def _trials(tuned: TunedRuns | None) -> list[Run]:
    values = tuned.trials.values() if tuned else ()
    return [run for value in values for runs in value for run in runs if run.counts]


def _opening(
    plan: Plan,
    analysis: Analysis,
    effects: Factorial | None,
    tuned: TunedRuns | None,
    compared: Sequence[Picture],
) -> tuple[list[Section], list[Picture]]:
    """The sections before the curves, and the pictures in them."""
    shown = [*compared]
    if effects is None:
        opening = [sections.answer(analysis, plan, compared)]
    else:
        drawn = effect_pictures(effects, analysis)
        opening = [effect_sections.answer(effects, analysis, plan),
                   Section("Pictures of the effects", [*drawn]),
                   effect_sections.effects_table(effects)]  # fmt: skip
        shown += drawn
    if tuned is not None:
        opening[0].blocks.insert(0, tuning_sections.lead(tuned))
        picture = tuning_sections.sensitivity(tuned)
        shared = tuning_sections.at_reference(tuned, plan, analysis)
        opening += [shared] if shared else []
        opening.append(tuning_sections.trials(tuned, picture))
        shown += [picture] if picture else []
    return [section for section in opening if section.blocks], shown


def _analysis(plan: Plan, runs: Sequence[Run]) -> Analysis:
    """With looks, runs at the end of an arm that no comparison needs yet are left out."""
    analysis = analysis_of(plan, runs)
    if not plan.looks:
        return analysis
    wanted = up_to_next_look(plan, analysis)
    kept: list[Run] = []
    for arm in plan.arms:
        own = [run for run in runs if run.arm == arm.name]
        while own[-1].status == "to do" and arm.runs[len(own) - 1].id not in wanted:
            own.pop()
        kept += own
    return analysis_of(plan, kept)


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
    parameters = growth.parameters(analysis)
    headline, drawn = _pictures(analysis, reference)
    document = Document(
        curves.stem.replace("_", " "),
        f"{len(runs)} published runs, read from {curves.name}",
        [
            sections.answer(analysis, None, headline),
            Section("Curves", [drawn]),
            sections.arms_table(analysis),
            sections.comparisons_table(analysis),
        ],
    )
    more = (
        outcomes.outcomes_table(analysis),
        costs.costs_table(analysis),
        growth.growth_table(parameters),
        verdicts.what_would_change(analysis),
    )
    document.sections += [section for section in more if section]
    document.sections.append(sections.runs_table(analysis))
    if reference:
        document.sections.append(sections.published_table(reference, metric))
    numbers = numbers_of(analysis, (), _means(parameters), _masker().text)
    return _write(Written(document, analysis, [*headline, drawn], numbers), out)


def _pictures(
    analysis: Analysis, reference: Sequence[Run], *, compared: bool = True
) -> tuple[list[Picture], Picture]:
    """The picture of the headline, if there is an interval to draw, and the curves."""
    about = PICTURES_ABOUT.format(metric=analysis.metric)
    curves = Picture("curves.png", draw_curves(analysis, reference), about)
    differences = draw_differences(analysis) if compared else None
    if differences is None:
        return [], curves
    about = f"each arm's difference from {references(analysis)} with its 95 % interval"
    return [Picture("differences.png", differences, about)], curves


def _masker() -> Masker:
    return Masker(known_secrets([], [], None))


def _write(written: Written, out: Path) -> list[Path]:
    masker = _masker()
    document = with_texts(written.document, masker.text)
    out.mkdir(parents=True, exist_ok=True)
    for picture in written.pictures:
        (out / picture.file).write_bytes(picture.png)
    (out / "REPORT.md").write_text(write_markdown(document), encoding="utf-8")
    (out / "report.html").write_text(write_page(document), encoding="utf-8")
    write_runs(written.analysis, out / "runs.csv", masker.text, written.trials)
    write_json(out / "report.json", written.numbers)
    names = ("REPORT.md", "report.html", "report.json", "runs.csv")
    return [out / name for name in (*names, *(picture.file for picture in written.pictures))]


def _means(parameters: Parameters) -> dict[str, dict[str, float | None]]:
    return {
        arm: {name: found.mean for name, found in each.items()} for arm, each in parameters.items()
    }


def write_runs(
    analysis: Analysis,
    path: Path,
    clean: Callable[[str], str] = str,
    trials: Sequence[Run] = (),
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
        writer.writerow(header)
        for run in (*(run for arm in analysis.arms for run in arm.runs), *trials):
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
        id_of(run.directory.name) if run.directory else None,
    ]


def _whole(step: float | None) -> float | int | None:
    """171 for 171.0."""
    return int(step) if step is not None and step == int(step) else step
