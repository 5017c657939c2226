"""The tables of single runs: those of a study, a row an arm, and published ones."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from statistics import median

from trl_ablate.study.report.analysis import Analysis, ArmResult
from trl_ablate.study.report.curves import Run, Summary
from trl_ablate.study.report.document import Columns, Section, table
from trl_ablate.study.report.numbers import NOTHING, number, step

RUNS_NOTE = (
    "A run has collapsed when it ends below half of its best and the loss is more than noise "
    "(0.02, and three standard errors of an evaluation). Collapsed and stopped runs count with "
    "what they ended at; failed and unfinished ones enter no mean. Minutes are the median."
)
Ends = Sequence[tuple[Run, Summary | None]]
"""The runs of an arm, each with its summary."""


def runs_table(analysis: Analysis) -> Section:
    """Each run by its seed; `runs.csv` has a row for each."""
    columns: Columns = [
        ("arm", lambda row: row[0].name),
        ("final, by seed", lambda row: _finals(row[1])),
        ("collapsed at step", lambda row: _collapses(row[1])),
        ("not finished", lambda row: _others(row[0])),
        ("minutes", lambda row: _minutes(row[0])),
    ]
    rows = [
        (arm, [(run, run.summary(analysis.metric)) for run in arm.runs]) for arm in analysis.arms
    ]
    return table("Runs", rows, columns, RUNS_NOTE, 4)


def published_table(runs: Sequence[Run], metric: str) -> Section:
    columns: Columns = [
        ("run", lambda each: each[0].name),
        ("final", lambda each: number(each[1].final)),
        ("best", lambda each: number(each[1].best)),
        ("best at", lambda each: step(each[1].best_step)),
    ]
    known = [(run, summary) for run in runs if (summary := run.summary(metric))]
    return table("Published curves", known, columns)


def _finals(ends: Ends) -> str:
    return _by_seed((run, number(end and end.final)) for run, end in ends if run.counts)


def _collapses(ends: Ends) -> str:
    return _by_seed((run, step(end.collapsed_at)) for run, end in ends if end and end.collapsed)


def _others(arm: ArmResult) -> str:
    ends = [(run, _ended(run)) for run in arm.runs if run.status != "finished"]
    kinds = dict.fromkeys(end for _, end in ends)
    alike = (_by_seed((run, end) for run, end in ends if end == one) for one in kinds)
    return "; ".join(alike) or NOTHING


def _ended(run: Run) -> str:
    at = f"at step {step(run.last_step)}" if run.last_step is not None else None
    return ": ".join(filter(None, (run.status, at, run.reason)))


def _minutes(arm: ArmResult) -> str:
    seconds = [run.record.get("seconds") for run in arm.runs if run.counts]
    known = [one for one in seconds if isinstance(one, (int, float))]
    return f"{median(known) / 60:.1f}" if known else NOTHING


def _by_seed(found: Iterable[tuple[Run, str]]) -> str:
    """`0 to 2: a, b, c; 4 to 7: d`, which all four have."""
    pairs = list(found)
    texts = {run.seed: text for run, text in pairs if run.seed is not None}
    parts = [text for run, text in pairs if run.seed is None]
    # seeds that follow each other are equally far from their places
    for _, group in groupby(enumerate(sorted(texts)), lambda at: at[1] - at[0]):
        seeds = [seed for _, seed in group]
        named = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else str(seeds[0])
        own = [texts[seed] for seed in seeds]
        parts.append(f"{named}: {', '.join(own if len(set(own)) > 1 else own[:1])}")
    return "; ".join(parts) or NOTHING
