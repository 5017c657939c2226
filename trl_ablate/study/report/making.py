"""Write a report: REPORT.md, report.html, report.json, pictures, runs.csv. No torch.

Each time, all is computed again from run directories, or from a CSV file of published curves.
`report.json` has the numbers for other tools:

    {"reference", "metric",
     "arms": {arm: {"verdict", "difference", "low", "high", "pairs", "collapsed": [k, n],
                    "equivalence_margin", "p_difference", "p_equivalent"}},
     "effects": [{"factor" or "factors", "levels", "estimate", "low", "high", "verdict"}],
     "curves": {arm: {"A", "B", "C_mid"}},
     "details": {"question", "runs", "margin", "means": {arm: mean}, "mixed": [arm],
                 "arms": {arm: {"against", "expected", "agreement", "next_look",
                                "disagreement"}},
                 "sentences": [the sentence of each effect, or null]}}

`arms` has every arm that is compared, with "threshold", "successes" (of the arm and of its
reference), "shares_p" and "all_runs" (the difference over all runs, with its own 95 % interval)
where runs are judged in two parts. The two p-values hold over all looks and parts, of one arm
alone: `benjamini_hochberg` takes those of a page. Numbers that are not known are null.
"""

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trl_ablate.errors import ConfigurationError
from trl_ablate.metrics import EVAL_REWARD
from trl_ablate.run.json_files import write_json
from trl_ablate.run.masking import Masker, known_secrets
from trl_ablate.study.planned import Plan
from trl_ablate.study.report import (
    costs,
    effect_sections,
    growth,
    outcomes,
    sections,
    verdicts,
)
from trl_ablate.study.report.analysis import Analysis, analyse
from trl_ablate.study.report.answer_pictures import differences_picture
from trl_ablate.study.report.curves import Run, planned_runs
from trl_ablate.study.report.document import Document, Picture, Section, write_markdown, write_page
from trl_ablate.study.report.effect_pictures import effect_pictures
from trl_ablate.study.report.effect_sections import sentences_of
from trl_ablate.study.report.factorial import Factorial, entries_of, factorial
from trl_ablate.study.report.foreign_runs import metric_of, read_curves
from trl_ablate.study.report.growth import sharpening_table
from trl_ablate.study.report.pictures import about_bands, draw_curves, sensitivity
from trl_ablate.study.report.stats import Interval
from trl_ablate.study.report.tuned import TunedRuns, at_reference, lead, split, trials_table
from trl_ablate.study.report.verdicts import agreement, disagreement, found_of
from trl_ablate.study.report.xray_outcomes import xray_section
from trl_ablate.study.runs import StudyRuns, analysis_of, up_to_next_look
from trl_ablate.study.store import RunStore, id_of
from trl_ablate.study.two_part import ALPHA, TwoPart
from trl_ablate.study.verdict import Verdict

CURVES_ABOUT = (
    "{metric} against GRPO steps, and time or tokens, gradient norm, response length and entropy; "
    "lines are means over seeds"
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
        yet = f"no run has logged {plan.primary_metric} yet; `run` the study first"
        raise ConfigurationError(f"study {study}: {StudyRuns(plan, store).unlogged or yet}")
    tuned = split(plan, runs) if plan.tuning else None
    judged = tuned.own if tuned else runs
    analysis = _without_idle_runs(plan, judged)
    effects = factorial(plan, judged) if plan.design else None
    parts = [
        *_opening(plan, analysis, effects, tuned),
        verdicts.expectations(analysis, plan),
        sections.seeds_answer(plan),
        *_numbers(analysis, reference, compared=effects is None),
        xray_section(store, plan.study, analysis),
        growth.growth_table(parameters := growth.parameters(analysis)),
        sharpening_table(analysis),
        sections.published_table(reference, plan.primary_metric),
        *([] if effects or plan.pool else [verdicts.what_would_change(analysis)]),
        sections.differences_table(plan),
        sections.warnings(plan, runs),
        sections.runs_table(analysis),
        sections.samples(analysis),
        sections.environment(runs),
        sections.commands(plan, study),
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
        verdicts.answer(analysis, None, differences_picture(analysis)),
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
    about += about_bands(analysis)
    curves = Picture("curves.png", draw_curves(analysis, reference), about)
    if analysis.judge == "two_part":
        tables = (sections.two_part_arms_table, sections.successes_table)
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
        found = [verdicts.answer(analysis, plan, differences_picture(analysis))]
    else:
        found = [
            effect_sections.answer(effects, analysis, plan),
            Section("Pictures of the effects", [*effect_pictures(effects, analysis)]),
            effect_sections.effects_table(effects),
        ]
    if tuned is not None:
        found[0].blocks.insert(0, lead(tuned))
        found += [
            *([] if plan.pool else [at_reference(tuned, plan, analysis)]),
            trials_table(tuned, sensitivity(tuned)),
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


def write_files(document: Document, numbers: dict, out: Path) -> list[Path]:
    """The document as Markdown and as a page, its pictures, and its numbers."""
    document.sections = [section for section in document.sections if section.blocks]
    clean = _cleaned()
    out.mkdir(parents=True, exist_ok=True)
    for picture in document.pictures:
        (out / picture.file).write_bytes(picture.png)
    (out / "REPORT.md").write_text(write_markdown(document, clean), encoding="utf-8")
    (out / "report.html").write_text(write_page(document, clean), encoding="utf-8")
    write_json(out / "report.json", numbers, indent=None)
    names = ("REPORT.md", "report.html", "report.json")
    return [out / name for name in (*names, *(picture.file for picture in document.pictures))]


def _write(
    document: Document, analysis: Analysis, numbers: dict, out: Path, trials: Sequence[Run] = ()
) -> list[Path]:
    """The files of a report, and `runs.csv`: one row per run, also without an outcome, and then one
    per trial of a study with tuning. The header has the metric; steps are GRPO steps."""
    written, clean, metric = write_files(document, numbers, out), _cleaned(), analysis.metric
    header = [
        "run_name", "arm", "seed", "status", "reason", "last_step",
        f"best_{metric}", "best_eval_step", f"final_{metric}", f"mean_{metric}",
        "collapsed_at", "seconds", "directory",
    ]  # fmt: skip
    file = out / "runs.csv"
    with file.open("w", encoding="utf-8", errors="backslashreplace", newline="") as opened:
        writer = csv.writer(opened)
        for cells in (header, *(_csv_row(run, metric) for run in (*analysis.runs, *trials))):
            writer.writerow([_no_formula(clean(c)) if isinstance(c, str) else c for c in cells])
    return [*written, file]


def _csv_row(run: Run, metric: str) -> list[object]:
    s = run.summary(metric)
    values = [s.best, _whole(s.best_step), s.final, round(s.auc, 6)] if s else [None] * 4
    return [
        run.name, run.arm, run.seed, run.status, run.reason, _whole(run.last_step), *values,
        _whole(s.collapsed_at) if s else None, run.record.get("seconds"),
        id_of(run.directory.name) if run.directory else None,
    ]  # fmt: skip


def _no_formula(text: str) -> str:
    """A spreadsheet takes a text that starts like a formula for one, whoever named the arm."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def _whole(step: float | None) -> float | int | None:
    """171 for 171.0."""
    return int(step) if step is not None and step == int(step) else step


def numbers_of(
    analysis: Analysis,
    curves: Mapping[str, Mapping[str, Interval]],
    clean: Callable[[str], str],
    plan: Plan | None = None,
    effects: Factorial | None = None,
) -> dict[str, Any]:
    """The content of `report.json`, with `clean` applied to all names and sentences.

    Args:
        curves: the parameters of learning curves, by arm.
        plan: the plan of a study; other curves have none.
        effects: of a factorial study.
    """
    means = {arm.name: arm.intervals[analysis.decide_on].mean for arm in analysis.arms}
    sentences = sentences_of(effects) if effects else []
    return {
        "reference": clean(analysis.reference.name),
        "metric": clean(analysis.metric),
        "arms": {clean(name): _arm(name, analysis) for name in analysis.decisive},
        "effects": entries_of(effects) if effects else [],
        "curves": {
            clean(arm): {name: found.mean for name, found in each.items()}
            for arm, each in curves.items()
        },
        "details": {
            "question": clean(plan.question) if plan else None,
            "runs": sum(arm.ended for arm in analysis.arms),
            "margin": analysis.margin,
            "means": {clean(name): mean for name, mean in means.items()},
            "mixed": [
                clean(arm.name)
                for arm in analysis.arms
                if arm.is_mixed and analysis.judge == "paired"  # two parts are made for such arms
            ],
            "arms": _details(analysis, plan, clean),
            "sentences": [text and clean(text) for text in sentences],
        },
    }


def _details(
    analysis: Analysis, plan: Plan | None, clean: Callable[[str], str]
) -> dict[str, dict[str, Any]]:
    expect = plan.expect if plan else {}
    return {
        clean(name): {
            "against": clean(analysis.reference_of(name).name),
            "expected": expect.get(name),
            "agreement": agreement(expect[name], found_of(name, analysis), analysis.margin)
            if name in expect
            else None,
            "next_look": found.next_look,
            "disagreement": disagreement(found),
        }
        for name, found in analysis.decisive.items()
    }


def _arm(name: str, analysis: Analysis) -> dict[str, Any]:
    comparison, arm = analysis.decisive[name], analysis.arm(name)
    of, compared = comparison.difference, comparison.verdict is not Verdict.INESTIMABLE
    differs, same = (min(1.0, p) if compared else None for p in comparison.p_values)
    return {
        "verdict": comparison.verdict,
        "difference": of.mean,
        "low": of.low,
        "high": of.high,
        "pairs": comparison.n,
        "collapsed": [arm.collapsed, arm.ended],
        "equivalence_margin": analysis.margin,
        "p_difference": differs,
        "p_equivalent": same,
        **(_two_part(comparison.two_part) if comparison.two_part else {}),
    }


def _two_part(found: TwoPart) -> dict[str, Any]:
    shares, everyone = found.shares, found.everyone
    return {
        "threshold": found.threshold,
        "successes": shares and [shares.arm, shares.reference],
        "shares_p": shares and shares.p,
        "all_runs": everyone and [everyone.difference, *everyone.interval(ALPHA)],
    }
