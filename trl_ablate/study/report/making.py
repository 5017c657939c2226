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
                                "disagreement", "collapses": false if most runs did, but no more
                                often than the reference's, or too few have ended}},
                 "sentences": [the sentence of each effect, or null]}}

`arms` has every arm that is compared, with "threshold", "successes" (of the arm and of its
reference), "shares_p" and "all_runs" (the difference over all runs, with its own 95 % interval)
where runs are judged in two parts. The two p-values hold over all looks and parts, of one arm
alone: `benjamini_hochberg` takes those of a page. Numbers that are not known are null.
"""

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trl_ablate.errors import ConfigurationError
from trl_ablate.metrics import EVAL_REWARD
from trl_ablate.run.json_files import write_json
from trl_ablate.run.masking import Masker, known_secrets
from trl_ablate.study.planned import Plan
from trl_ablate.study.report import (
    costs,
    factorial,
    growth,
    outcomes,
    run_tables,
    sections,
    tuned,
    verdicts,
)
from trl_ablate.study.report.analysis import Analysis, analyse
from trl_ablate.study.report.answer_pictures import differences_picture
from trl_ablate.study.report.curves import Run, planned_runs
from trl_ablate.study.report.document import Document, Picture, Section, write_markdown, write_page
from trl_ablate.study.report.effect_pictures import effect_pictures
from trl_ablate.study.report.foreign_runs import metric_of, read_curves
from trl_ablate.study.report.pictures import about_curves, draw_curves, sensitivity
from trl_ablate.study.report.stats import Comparison, Interval
from trl_ablate.study.report.xray_outcomes import xray_section
from trl_ablate.study.runs import StudyRuns, analysis_of, up_to_next_look
from trl_ablate.study.store import RunStore, id_of
from trl_ablate.study.two_part import ALPHA
from trl_ablate.study.verdict import Verdict


def report_study(
    plan: Plan, store: RunStore, study: Path, out: Path, reference: Sequence[Run] = ()
) -> list[Path]:
    """Write a study's report into `out`, with published runs, the `reference`, drawn beside its
    own; returns the written files."""
    runs = planned_runs(plan, store)
    if not any(plan.primary_metric in run.series for run in runs):
        yet = f"no run has logged {plan.primary_metric} yet; `run` the study first"
        raise ConfigurationError(f"study {study}: {StudyRuns(plan, store).unlogged or yet}")
    tuning = tuned.split(plan, runs) if plan.tuning else None
    judged = tuning.own if tuning else runs
    analysis = replace(_without_idle_runs(plan, judged), beside=runs)
    effects = factorial.factorial(plan, analysis) if plan.design else None
    parameters = growth.parameters(analysis)
    parts = [
        *_opening(plan, analysis, effects, tuning),
        verdicts.expectations(analysis, plan),
        sections.seeds_answer(plan),
        *_numbers(analysis, reference, compared=effects is None),
        xray_section(store, plan.study, analysis),
        growth.growth_table(parameters),
        growth.sharpening_table(analysis),
        run_tables.published_table(reference, plan.primary_metric),
        *([] if effects or plan.pool else [verdicts.what_would_change(analysis)]),
        sections.differences_table(plan),
        sections.warnings(plan, runs),
        run_tables.runs_table(analysis),
        sections.samples(analysis),
        sections.environment(runs),
        sections.commands(plan, study),
    ]
    document = Document(plan.study, plan.question, parts)
    numbers = numbers_of(analysis, parameters, plan, effects)
    trials = tuning.ended_trials if tuning else ()
    return [*write_files(document, numbers, out), _write_runs(analysis, trials, out)]


def report_curves(
    curves: Path, out: Path, *, metric: str = EVAL_REWARD, reference: Sequence[Run] = ()
) -> list[Path]:
    """Write the report of published curves into `out`; the first run is the reference arm."""
    runs = _as_long_as_the_longest(read_curves(curves))
    analysis = analyse(runs, metric_of(runs, metric, f"curves {curves}"))
    parameters = growth.parameters(analysis)
    parts = [
        verdicts.answer(analysis, None, differences_picture(analysis)),
        *_numbers(analysis, reference, unit="steps"),
        growth.growth_table(parameters),
        verdicts.what_would_change(analysis),
        run_tables.runs_table(analysis),
        run_tables.published_table(reference, analysis.metric),
    ]
    lead = f"{len(runs)} published runs, read from {curves.name}"
    document = Document(curves.stem.replace("_", " "), lead, parts)
    numbers = numbers_of(analysis, parameters)
    return [*write_files(document, numbers, out), _write_runs(analysis, (), out)]


def _as_long_as_the_longest(runs: Sequence[Run]) -> list[Run]:
    """Others' runs, of which no plan is known: one that ends early keeps its last value."""
    longest = max((run.last_step or 0 for run in runs), default=0)
    return [replace(run, planned_steps=longest) for run in runs]


def _numbers(
    analysis: Analysis,
    reference: Sequence[Run],
    *,
    compared: bool = True,
    unit: str = "GRPO steps",
) -> list[Section]:
    """The curves and the tables; a factorial study compares no arms."""
    about = about_curves(analysis, unit)
    tables = [sections.arms_table]
    if analysis.judge == "two_part":
        tables = [sections.two_part_arms_table, sections.successes_table]
    elif compared:
        tables += [sections.comparisons_table, outcomes.outcomes_table, costs.costs_table]
    curves = Picture("curves.png", draw_curves(analysis, reference, unit=unit), about)
    return [Section("Curves", [curves]), *(make(analysis) for make in tables)]


def _opening(
    plan: Plan,
    analysis: Analysis,
    effects: factorial.Factorial | None,
    tuning: tuned.TunedRuns | None,
) -> list[Section]:
    """The answers: the sections before the curves."""
    if effects is None:
        found = [verdicts.answer(analysis, plan, differences_picture(analysis))]
    else:
        found = [
            factorial.answer(effects, analysis, plan),
            Section("Pictures of the effects", [*effect_pictures(effects, analysis)]),
            factorial.effects_table(effects),
        ]
    if tuning is not None:
        found[0].blocks.insert(0, tuned.lead(tuning))
        found += [] if plan.pool else [tuned.at_reference(tuning, analysis)]
        found += [tuned.trials_table(tuning, sensitivity(tuning))]
    return found


def _without_idle_runs(plan: Plan, runs: Sequence[Run]) -> Analysis:
    """With looks, runs at the end of an arm that no comparison needs yet are left out."""
    analysis = analysis_of(plan, runs)
    if not plan.looks:
        return analysis
    kept: list[Run] = []
    for arm, seeds in up_to_next_look(plan, analysis).items():
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


def _write_runs(analysis: Analysis, trials: Sequence[Run], out: Path) -> Path:
    """`runs.csv`: one row per run, also without an outcome, and then one per trial of a study with
    tuning. The header has the metric; steps are GRPO steps."""
    clean, metric = _cleaned(), analysis.metric

    def row(run: Run) -> dict[str, object]:
        s = run.summary(metric)
        return {
            "run_name": run.name, "arm": run.arm, "seed": run.seed, "status": run.status,
            "reason": run.reason, "last_step": _whole(run.last_step),
            f"best_{metric}": s and s.best, "best_eval_step": s and _whole(s.best_step),
            f"final_{metric}": s and s.final, f"mean_{metric}": s and round(s.auc, 6),
            "collapsed_at": s and _whole(s.collapsed_at), "seconds": run.record.get("seconds"),
            "directory": run.directory and id_of(run.directory.name),
        }  # fmt: skip

    rows = [row(run) for run in (*analysis.runs, *trials)]
    file = out / "runs.csv"
    with file.open("w", encoding="utf-8", errors="backslashreplace", newline="") as opened:
        csv.writer(opened).writerows(
            [_no_formula(clean(cell)) if isinstance(cell, str) else cell for cell in cells]
            for cells in (rows[0], *(each.values() for each in rows))
        )
    return file


def _no_formula(text: str) -> str:
    """A spreadsheet takes a text that starts like a formula for one, whoever named the arm."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def _whole(step: float | None) -> float | int | None:
    """171 for 171.0."""
    return int(step) if step is not None and step == int(step) else step


def numbers_of(
    analysis: Analysis,
    curves: Mapping[str, Mapping[str, Interval]],
    plan: Plan | None = None,
    effects: factorial.Factorial | None = None,
) -> dict[str, Any]:
    """The content of `report.json`; `curves` has the parameters of each arm's learning curve."""
    clean, decisive, arms = _cleaned(), analysis.decisive.items(), analysis.arms
    sentences = factorial.sentences_of(effects) if effects else []
    mixed = [arm for arm in arms if arm.is_mixed and analysis.judge == "paired"]
    return {
        "reference": clean(analysis.reference.name),
        "metric": clean(analysis.metric),
        "arms": {clean(name): _arm(found, analysis) for name, found in decisive},
        "effects": factorial.entries_of(effects) if effects else [],
        "curves": {
            clean(arm): {name: found.mean for name, found in each.items()}
            for arm, each in curves.items()
        },
        "details": {
            "question": clean(plan.question) if plan else None,
            "runs": sum(arm.ended for arm in arms),
            "margin": analysis.margin,
            "means": {clean(arm.name): arm.intervals[analysis.decide_on].mean for arm in arms},
            "mixed": [clean(arm.name) for arm in mixed],  # two parts are made for such arms
            "arms": {
                clean(name): {
                    "against": clean(analysis.reference_of(name).name),
                    **_expected(name, analysis, plan),
                    "next_look": found.next_look,
                    "disagreement": verdicts.disagreement(found),
                    **({} if effects else _no_collapse(name, analysis)),
                }
                for name, found in decisive
            },
            "sentences": [text and clean(text) for text in sentences],
        },
    }


def _expected(name: str, analysis: Analysis, plan: Plan | None) -> dict[str, Any]:
    if plan is None or name not in plan.expect:
        return {"expected": None, "agreement": None}
    expected = plan.expect[name]
    return {"expected": expected, "agreement": verdicts.as_expected(name, expected, analysis)}


def _no_collapse(name: str, analysis: Analysis) -> dict[str, bool]:
    most = analysis.judge == "paired" and verdicts.mostly_collapsed(analysis.arm(name))
    is_one = verdicts.found_of(name, analysis) is Verdict.COLLAPSE
    return {"collapses": False} if most and not is_one else {}


def _arm(found: Comparison, analysis: Analysis) -> dict[str, Any]:
    arm, of, parts = analysis.arm(found.arm), found.difference, found.two_part
    known = found.verdict is not Verdict.INESTIMABLE
    differs, same = (min(1.0, p) if known else None for p in found.p_values)
    numbers = {
        "verdict": found.verdict,
        "difference": of.mean,
        "low": _finite(of.low),
        "high": _finite(of.high),
        "pairs": found.n,
        "collapsed": [arm.collapsed, arm.ended],
        "equivalence_margin": analysis.margin,
        "p_difference": differs,
        "p_equivalent": same,
    }
    if parts:
        shares, everyone = parts.shares, parts.everyone
        numbers |= {
            "threshold": parts.threshold,
            "successes": shares and [shares.arm, shares.reference],
            "shares_p": shares and shares.p,
            "all_runs": everyone and [everyone.difference, *map(_finite, everyone.interval(ALPHA))],
        }
    return numbers


def _finite(limit: float | None) -> float | None:
    """Runs that do not vary at all have an interval without limits, which JSON cannot hold."""
    return limit if limit is not None and math.isfinite(limit) else None
