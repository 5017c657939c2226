"""The tables of a report: arms, comparisons, settings, runs."""

from collections.abc import Callable, Sequence

from trl_ablate.study.planned import Plan, setting
from trl_ablate.study.report.analysis import STATISTICS, Analysis
from trl_ablate.study.report.curves import Run, Summary
from trl_ablate.study.report.document import Columns, Section, table
from trl_ablate.study.report.numbers import MIXED, NOTHING, interval, number, p_value, step
from trl_ablate.study.report.verdicts import difference_of

LOOKS_NOTE = (
    "Differences are paired by seed, over the seeds of the look that decides; the intervals cover "
    "with 95 % over all looks and comparisons together, whenever a study ends; that of an "
    "equivalent arm is of the two one-sided tests, and covers with less. Each look is a "
    "paired t test at a lower level (nominal), computed for these looks; 'leans on' names what the "
    "verdict assumes. 'Detectable' is the smallest true difference that one look at these seeds "
    "finds with 80 % probability, given the spread seen here."
)
COMPARISON_NOTE = (
    "Differences are paired by seed, with 95 % t intervals of their own; verdicts rest on the "
    "p-values of the paired t test with Holm's correction over all comparisons of the study, so "
    "an interval may miss 0 where the verdict is still 'not distinguishable'. 'Detectable' is the "
    "smallest true difference that these seeds find with 80 % probability at the strictest step "
    "of the correction, given the spread seen here."
)
RUNS_NOTE = (
    "A run has collapsed when it ends below half of its best and the loss is more than noise "
    "(0.02, and three standard errors of an evaluation). Collapsed and stopped runs count with "
    "what they ended at. Failed and unfinished ones are shown with what they had reached, and "
    "enter no mean."
)
MIXED_NOTE = (
    " † Some seeds of an arm collapsed or never learned and others did not (named in the answer): "
    "the interval assumes one bell-shaped population and is misleading there."
)
ARMS_NOTE = (
    "Mean ± half the 95 % t interval over seeds. The mean over training is the area under the "
    "curve divided by its length; a run that was stopped keeps its last value to the planned end."
)


def arms_table(analysis: Analysis) -> Section:
    columns: Columns = [
        ("arm", lambda arm: arm.name),
        ("runs", lambda arm: arm.outcome()),
        *(
            (f"{name} {analysis.metric}", lambda arm, s=s: interval(arm.intervals[s])
             + MIXED * arm.is_mixed)
            for s, name in STATISTICS.items() if s in analysis.comparisons
        ),
    ]  # fmt: skip
    note = ARMS_NOTE + MIXED_NOTE * any(arm.is_mixed for arm in analysis.arms)
    return table("Arms, best first", analysis.ranked(), columns, note, 2)


def comparisons_table(analysis: Analysis) -> Section:
    looks, decides = analysis.looks, analysis.decide_on

    def p_or_pairs(c) -> str:
        return str(c.difference.n) if looks else p_value(c.p_corrected)

    columns: Columns = [
        ("arm", lambda c: c.arm),
        ("against", lambda c: analysis.reference_of(c.arm).name),
        ("verdict", lambda c: c.verdict),
        (f"{STATISTICS[decides]}: difference", lambda c: difference_of(c, analysis)),
        ("pairs" if looks else "p", p_or_pairs),
        ("detectable", lambda c: number(c.detectable)),
        *(
            (f"{name}: difference",
             lambda c, s=s: difference_of(analysis.comparisons[s][c.arm], analysis))
            for s, name in STATISTICS.items() if s in analysis.comparisons and s != decides
        ),
        ("leans on", lambda c: c.leans_on),
    ]  # fmt: skip
    title = "Comparisons" if analysis.against else f"Against {analysis.reference.name}"
    note = LOOKS_NOTE if looks else COMPARISON_NOTE
    note += MIXED_NOTE * any(arm.is_mixed for arm in analysis.arms)
    return table(title, analysis.decisive.values(), columns, note, 3)


def differences_table(plan: Plan) -> Section:
    """The keys that any arm declares, and each arm's values; a star marks a declared value."""
    columns: Columns = [
        ("arm", lambda arm: arm.name),
        ("recipe", lambda arm: arm.recipe),
        *(
            (key, lambda arm, key=key: setting(arm.values.get(key), key in arm.declared))
            for key in sorted({key for arm in plan.arms for key in arm.declared})
        ),
    ]
    proof = (
        f"Starred values are declared by the arm. {plan.base} with an arm's declared keys resolves "
        f"to that arm exactly, in all {plan.compared} settings: nothing else differs. Values are "
        "final, after the profile's scaling."
    )
    return table("What differs", plan.arms, columns, proof, 2)


def runs_table(analysis: Analysis) -> Section:
    def status(run: Run) -> str:
        return run.status + (f": {run.reason}" if run.reason else "")

    def minutes(run: Run) -> str:
        seconds = run.record.get("seconds")
        return f"{seconds / 60:.1f}" if isinstance(seconds, (int, float)) else NOTHING

    of = {id(run): run.summary(analysis.metric) for run in analysis.runs}
    columns: Columns = [
        ("run", lambda run: run.name),
        ("status", status),
        ("last step", lambda run: step(run.last_step)),
        *_summary_columns(lambda run: of[id(run)]),
        ("collapsed at", lambda run: step(of[id(run)] and of[id(run)].collapsed_at)),
        ("minutes", minutes),
    ]
    return table("Runs", analysis.runs, columns, RUNS_NOTE, 2)


def published_table(runs: Sequence[Run], metric: str) -> Section:
    known = [run for run in runs if run.summary(metric)]
    columns = [("run", lambda run: run.name), *_summary_columns(lambda run: run.summary(metric))]
    return table("Published curves", known, columns)


def _summary_columns(of: Callable[[Run], Summary | None]) -> Columns:
    return [
        ("final", lambda run: number((s := of(run)) and s.final)),
        ("best", lambda run: number((s := of(run)) and s.best)),
        ("best at", lambda run: step((s := of(run)) and s.best_step)),
    ]
