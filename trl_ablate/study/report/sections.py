"""The sections of a report: the numbers as sentences and tables."""

from collections import Counter
from collections.abc import Sequence
from itertools import starmap

from trl_ablate.study.definition import Statistic
from trl_ablate.study.planned import Plan, setting, silent_differences
from trl_ablate.study.report import outcomes
from trl_ablate.study.report.analysis import STATISTICS, Analysis, ArmResult
from trl_ablate.study.report.curves import Run
from trl_ablate.study.report.document import Block, Grid, Items, Picture, Section, Text
from trl_ablate.study.report.numbers import MIXED, NOTHING, interval, number, p_value, step
from trl_ablate.study.report.verdicts import difference_of, finality, sentence

NAMES: dict[Statistic, str] = {"final": "final", "best": "best", "auc": "mean over training"}
TASKS = {
    "chains": "chains of additions and subtractions",
    "formats": "chains of additions and subtractions",
    "sums": "two-digit sums",
    "calculator": "two-digit sums with a tool",
    "gym": "a task of reasoning-gym",
}
"""Families of the miniature's worlds, in words."""

LOOKS_NOTE = (
    "Differences are paired by seed, over the seeds of the look that decides; the intervals cover "
    "with 95 % over all looks and comparisons together, whenever a study ends. Each look is a "
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


def answer(analysis: Analysis, plan: Plan | None, pictures: Sequence[Picture] = ()) -> Section:
    """The verdicts as sentences, their picture, and the necessary remarks."""
    reference = analysis.reference
    lead = (
        f"Reference {reference.name}: {NAMES[analysis.decide_on]} {analysis.metric} "
        f"{_arm_interval(reference, analysis.decide_on)} ({reference.outcome()})."
    )
    sentences = [sentence(c, analysis) for c in analysis.decisive.values()]
    sentences += outcomes.sentences(analysis)
    blocks: list[Block] = [Text(lead), Items(sentences)] if sentences else [Text(lead)]
    blocks += [Text(words) for words in finality(analysis)]
    blocks += pictures
    blocks += [Text(caveat) for caveat in caveats(analysis, plan)]
    return Section("Answer", blocks)


def caveats(analysis: Analysis, plan: Plan | None) -> list[str]:
    """Remarks that a reader of the answer needs: notes, collapses, missing runs."""
    notes = [] if plan is None else [note.strip() for note in plan.notes]
    if plan is not None and plan.miniatures:
        models = " and of ".join(starmap(_miniature, plan.miniatures))
        notes.append(
            f"These are the answers of {models}. They say what the method does there, and not "
            "what it does to a language model of useful size."
        )
    notes += [_mixed_outcome(arm) for arm in analysis.arms if arm.is_mixed]
    notes += _mixed_profiles(analysis)
    missing = [run.name for arm in analysis.arms for run in arm.runs if not run.counts]
    if missing:
        total = sum(len(arm.runs) for arm in analysis.arms)
        notes.append(f"{len(missing)} of {total} runs have no outcome: {', '.join(missing)}.")
    notes += [
        f"{run.name}: {run.skipped} lines of its metrics.jsonl are not logged rows and "
        "were skipped."
        for arm in analysis.arms
        for run in arm.runs
        if run.skipped
    ]
    if plan is not None:
        notes += [f"{sentence}." for sentence in silent_differences(plan)]
    return notes


def _miniature(millions: float, dataset: str) -> str:
    family = dataset.removeprefix("miniature/").partition("-")[0]
    task = f"{TASKS[family]} ({dataset})" if family in TASKS else dataset
    return f"a {millions:.2g} M parameter model on {task}"


def _mixed_outcome(arm: ArmResult) -> str:
    counted = [
        f"{number} {what}"
        for number, what in (
            (arm.collapsed, "collapsed"),
            (arm.fell_behind, "ended below half of the arm's median"),
        )
        if number
    ]
    return (
        f"{arm.name}: of {arm.ended} seeds {' and '.join(counted)}: the interval assumes one "
        "bell-shaped population and is misleading here (†)."
    )


def _mixed_profiles(analysis: Analysis) -> list[str]:
    """A profile sets dtype, optimizer and batch shape: arms of two profiles differ there, too."""
    counted = {
        arm.name: Counter(
            str(run.record["profile"]) for run in arm.runs if run.record.get("profile")
        )
        for arm in analysis.arms
    }
    if len({profile for profiles in counted.values() for profile in profiles}) < 2:
        return []
    by_arm = "; ".join(
        f"{arm}: {', '.join(f'{number} of {name}' for name, number in profiles.items())}"
        for arm, profiles in counted.items()
        if profiles
    )
    return [
        "The runs come from several profiles, which are different treatments (dtype, optimizer, "
        "batch shape), so that arms may differ by their profiles. Runs by arm and profile: "
        f"{by_arm}."
    ]


def arms_table(analysis: Analysis) -> Section:
    header = ["arm", "runs", *(f"{NAMES[s]} {analysis.metric}" for s in STATISTICS)]
    rows = [
        [arm.name, arm.outcome(), *(_arm_interval(arm, s) for s in STATISTICS)]
        for arm in analysis.ranked()
    ]
    note = ARMS_NOTE + MIXED_NOTE * any(arm.is_mixed for arm in analysis.arms)
    return Section("Arms, best first", [Grid(header, rows, note, numbers_from=2)])


def comparisons_table(analysis: Analysis) -> Section:
    others: list[Statistic] = [s for s in STATISTICS if s != analysis.decide_on]
    header = [
        "arm", "against", "verdict", f"{NAMES[analysis.decide_on]}: difference",
        "pairs" if analysis.looks else "p", "detectable",
        *(f"{NAMES[s]}: difference" for s in others), "leans on",
    ]  # fmt: skip
    rows = [
        [
            c.arm,
            analysis.reference_of(c.arm).name,
            c.verdict,
            difference_of(c, analysis),
            str(c.difference.n) if analysis.looks else p_value(c.p_corrected),
            number(c.detectable),
            *(difference_of(analysis.comparisons[s][c.arm], analysis) for s in others),
            c.leans_on,
        ]
        for c in analysis.decisive.values()
    ]
    title = "Comparisons" if analysis.against else f"Against {analysis.reference.name}"
    note = LOOKS_NOTE if analysis.looks else COMPARISON_NOTE
    note += MIXED_NOTE * any(arm.is_mixed for arm in analysis.arms)
    return Section(title, [Grid(header, rows, note, numbers_from=3)] if rows else [])


def differences_table(plan: Plan) -> Section:
    """The keys that any arm declares, and each arm's values; a star marks a declared value."""
    keys = sorted({key for arm in plan.arms for key in arm.declared})
    rows = [
        [arm.name, arm.recipe, *(setting(arm.values.get(k), k in arm.declared) for k in keys)]
        for arm in plan.arms
    ]
    proof = (
        f"Starred values are declared by the arm. {plan.base} with an arm's declared keys resolves "
        f"to that arm exactly, in all {plan.compared} settings: nothing else differs. Values are "
        "final, after the profile's scaling."
    )
    return Section("What differs", [Grid(["arm", "recipe", *keys], rows, proof, numbers_from=2)])


def runs_table(analysis: Analysis) -> Section:
    header = ["run", "status", "last step", "final", "best", "best at", "collapsed at", "minutes"]
    rows = []
    for arm in analysis.arms:
        for run in arm.runs:
            summary, seconds = run.summary(analysis.metric), run.record.get("seconds")
            numbers = [summary.final, summary.best] if summary else [None, None]
            rows.append(
                [
                    run.name,
                    run.status + (f": {run.reason}" if run.reason else ""),
                    step(run.last_step),
                    *map(number, numbers),
                    step(summary.best_step if summary else None),
                    step(summary.collapsed_at if summary else None),
                    f"{seconds / 60:.1f}" if isinstance(seconds, (int, float)) else NOTHING,
                ]
            )
    return Section("Runs", [Grid(header, rows, RUNS_NOTE, numbers_from=2)])


def published_table(runs: Sequence[Run], metric: str) -> Section:
    rows = []
    for run in runs:
        summary = run.summary(metric)
        if summary:
            rows.append(
                [run.name, number(summary.final), number(summary.best), step(summary.best_step)]
            )
    return Section("Published curves", [Grid(["run", "final", "best", "best at"], rows)])


def _arm_interval(arm: ArmResult, statistic: Statistic) -> str:
    return interval(arm.intervals[statistic]) + MIXED * arm.is_mixed
