"""Print a plan, for a check before the study starts, and the grid of its runs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import zip_longest
from statistics import mean

from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from trl_ablate.errors import ConfigurationError
from trl_ablate.run.directory import RunDirectory
from trl_ablate.run.untrusted import FirstThatFits
from trl_ablate.study.expected_hours import PROBE_STEPS, Estimate, Share, total_of
from trl_ablate.study.factors import Design, alias_lines, level_text, relation_text
from trl_ablate.study.planned import Plan, PlannedArm, PlannedRun, setting, silent_differences
from trl_ablate.study.runs import Finished, StudyRuns, bounds
from trl_ablate.study.tuning import Tuning, trials_per_arm

SPREADS = (0.8, 1.0, 1.25)
"""Standard deviations between runs, as shares of the margin, for which power is printed."""


def show_plan(
    console: Console, runs: StudyRuns, slots: int, price_per_hour: float | None = None
) -> Share:
    """Print a plan, and what it takes with `slots` runs at once: with looks, from the first one to
    the last one."""
    (share,), _ = total_of([runs])
    lines = [Text(line) for line in _needed(runs, share, slots, price_per_hour)]
    for part in (*_parts(runs), *lines):
        console.print(part, soft_wrap=not console.is_terminal)
    return share


def _needed(runs: StudyRuns, share: Share, slots: int, price: float | None) -> Iterator[str]:
    plan, looks = runs.plan, runs.plan.looks
    best, worst = (_what_it_takes(of, plan, slots, price) for of in (share.best, share.worst))
    if not looks:
        yield worst
    elif share.best.done >= share.best.runs and not runs.undecided:
        yield "all comparisons have ended: no run is needed"
    else:
        known = runs.analysis.decisive.values() if runs.done else ()
        seeds = max((of.next_look or 0 for of in known), default=0) or looks[0]
        yield f"best case, all comparisons decided with {seeds} seeds: {best}"
        yield f"worst case, comparisons undecided until {looks[-1]} seeds: {worst}"


def _parts(runs: StudyRuns) -> Iterator[RenderableType]:
    plan = runs.plan
    yield Text(f"{plan.question.strip()}\n", style="bold")
    yield Text(f"profile '{plan.profile}' ({plan.profile_reason})")
    if plan.design is None:
        yield from _differences(plan)
    yield Text(
        f"checked: {plan.base} with an arm's declared settings is exactly that arm in all "
        f"{plan.compared} settings; nothing else differs\n"
    )
    if plan.design is None:
        own = [f"{arm} with {reference}" for arm, reference in plan.against.items()]
        yield Text(f"compared with {plan.names[0]}{', but ' * bool(own)}{', '.join(own)}\n")
    else:
        yield from _design(plan, plan.design)
    if plan.tuning:
        yield Text(f"{tuning_text(plan, plan.tuning, runs.finished)}\n")
    if plan.design is None and plan.equivalence_margin:
        yield from power_lines(plan, plan.equivalence_margin)
    yield from _remarks(plan)
    yield grid(runs)
    yield Text("")


def power_lines(plan: Plan, margin: float) -> Iterator[Text]:
    """The power of every comparison for the margin that the study asks about."""
    from trl_ablate.study.decision import can_reach
    from trl_ablate.study.nominal import nominal_level
    from trl_ablate.study.two_part import level_of_means, power_of

    n = min(len(arm.runs) for arm in plan.arms) - plan.trials
    looks, compared = plan.looks or (n,), len(plan.names) - 1
    if n < 2 or not compared:
        return
    two_part = plan.judge == "two_part"
    level = level_of_means(looks, compared) if two_part else nominal_level(looks, 0.05 / compared)
    together: dict[tuple[str, int], list[str]] = {}
    for arm in plan.names[1:]:
        other = plan.reference_of(arm)
        of = plan.pool if plan.pool and other == plan.names[0] else n
        together.setdefault((other, of), []).append(arm)
    exact = not two_part and can_reach(n, level if plan.looks else 0.05)
    lower = " (an exact test has to agree, which lowers it)" * exact
    yield Text(
        f"power{lower} at {n} runs of each arm, if none fails: to see a difference of {margin:g} "
        f"| to find equal arms equivalent within {margin:g}"
    )
    for (other, of), arms in together.items():
        words = []
        for sd in (margin * share for share in SPREADS):
            found = power_of(sd, margin, n=n, pool=of, level=level, is_paired=not two_part)
            words.append(f"{found.difference:.2f} | {found.equivalence:.2f} (sd {sd:.3g})")
        yield Text(f"  {', '.join(arms)} against {other} ({of} runs): {', '.join(words)}")
    yield Text()


def _design(plan: Plan, design: Design) -> Iterator[Text]:
    """The factorial design: its levels, where the profile changes one also that value, its size,
    what a fraction cannot separate, and excluded cells."""
    cells = plan.tuning.arms if plan.tuning else {cell: [cell] for cell in design.cells}
    values = {arm.name: arm.values for arm in plan.arms}
    for name in design.factors:
        levels = {}
        for cell, own in design.cells.items():
            level, here = level_text(own[name]), setting(values[cells[cell][0]].get(name))
            levels[level] = level if level == here else f"{level} (here {here})"
        yield Text(f"  {name}: {', '.join(levels.values())}")
    size = " × ".join(f"{name} ({len(found)})" for name, found in design.factors.items())
    share = f", fraction {design.fraction}" if design.words else ""
    yield Text(f"factors: {size}{share}: {len(design.cells)} cells")
    if design.words:
        yield Text(f"defining relation: {relation_text(design)}; not separable:")
        yield from (Text(f"  {line}") for line in alias_lines(design))
    for name, why in design.excluded.items():
        yield Text(f"excluded: {name}: {why}", "yellow")
    yield Text()


def _differences(plan: Plan) -> Iterator[Text]:
    """The settings in which the arms differ: all of them of the first arm, and of each other arm
    those in which it differs from the first."""
    texts = [{key: setting(value) for key, value in arm.values.items()} for arm in plan.arms]
    first = texts[0]
    keys = [key for key in first if len({own[key] for own in texts}) > 1]
    for arm, own in zip(plan.arms, texts, strict=True):
        shown = [f"{key} {own[key]}" for key in keys if own is first or own[key] != first[key]]
        yield Text(f"{arm.name}: {', '.join(shown) or 'the same'}")


def _remarks(plan: Plan) -> Iterator[Text]:
    """Remarks: notes, differences without effect, warnings, shared runs, inert settings."""
    owners: dict[str, str] = {}
    remarks = [note.strip() for note in plan.notes] + silent_differences(plan)
    remarks += [f"{words}; eval_delay is in optimizer steps" for words in plan.unequal_evaluations]
    for arm in plan.arms:
        remarks += [f"{arm.name}: {warning}" for warning in arm.warnings]
        twin = owners.setdefault(arm.runs[0].id, arm.name)
        if twin != arm.name:
            remarks += [f"{arm.name} resolves to the same settings as {twin}: they share runs"]
    yield from (Text(remark, "yellow") for remark in remarks)
    everywhere = set.intersection(*({*arm.inert} for arm in plan.arms))
    if everywhere:
        yield Text(f"inert in every arm: {', '.join(sorted(everywhere))}\n", "dim")


def _what_it_takes(expected: Estimate, plan: Plan, slots: int, price: float | None) -> str:
    done = len(expected.done)
    left = len(expected.runs) - done
    words = f"{len(expected.runs)} runs: {done} done, {left} to do, {slots} at once"
    if not left:
        return words
    hours, wall = expected.hours(), expected.hours(slots)
    if hours is None or wall is None:
        return (
            f"{words}; time, disk and cost: not measured yet; add --probe to measure "
            f"{PROBE_STEPS} steps of one run"
        )
    shown = f"{wall:.1f} hours" if wall >= 1 else f"{wall * 60:.0f} minutes"
    kind = "GPU-hours" if plan.for_gpu else "process-hours"
    words += f"; about {shown}, {hours:.2f} {kind}, {expected.gibibytes:.2f} GiB"
    if price is not None:
        words += f", {hours * price:.2f} at {price:g} an hour"
    if expected.unmeasured:
        all_of, measured = len(plan.arms), len(plan.arms) - len(expected.unmeasured)
        words += f" ({measured} of {all_of} arms measured; the others as their mean)"
    return words


def tuning_text(plan: Plan, tuning: Tuning, finished: Finished) -> str:
    """The number of trials and of other runs, for people."""
    least, most = (len(runs) for runs in bounds(plan, finished))
    halved = ", half of the values left after each" if tuning.halving else ""
    both = "" if plan.pool else " and at its reference's best"
    return (
        f"tuning: {trials_per_arm(tuning)} runs of each of {len(tuning.arms)} arms "
        f"({len(tuning.values)} values of {tuning.key}, {len(tuning.seeds)} tuning seeds{halved}), "
        f"then each arm at its own best{both} with fresh seeds: "
        f"{' to '.join(dict.fromkeys((str(least), str(most))))} runs in all"
    )


MARKS = {
    "finished": ("✓", "green"),
    "stopped": ("■", "yellow"),
    "failed": ("✗", "red"),
    "running": ("▶", "cyan"),
    "interrupted": ("…", "yellow"),
    "to do": ("·", "dim"),
}
"""The symbol and style of each status."""
LEGEND = "✓ finished  ■ stopped by a rule  ✗ failed  ▶ running  … interrupted  · to do"


def grid(runs: StudyRuns) -> FirstThatFits:
    """The state of every run, its step while it runs, and the last value of the primary metric;
    where that has no room, the states alone, and the mean of the last values.

    Runs that the outcomes so far do not ask for, as another value was chosen, have no cell.
    """
    plan, needed = runs.plan, {run.id for run in runs.needed}
    by_seed = zip_longest(*(arm.runs for arm in plan.arms))
    seeds = ["/".join(map(str, sorted({run.seed for run in of if run}))) for of in by_seed]
    alone = _table(plan, [f"seed {n}" for n in seeds])
    together = _table(plan, [f"seeds {seeds[0]} .. {seeds[-1]}", "mean"])
    for arm in plan.arms:
        marks, cells, values = Text(), [], []
        for run in arm.runs:
            mark, words, value = Text(" "), [], None
            if run.id in needed:
                mark = Text(*MARKS[runs.states[run.id].status])
                words, value = _progress(arm, run, runs)
            marks.append_text(mark)
            cells.append(Text(" ").join([mark, *map(Text, words)]))
            values += [] if value is None else [value]
        alone.add_row(arm.name, *cells)
        together.add_row(arm.name, marks, f"{mean(values):.3f}" if values else "")
    return FirstThatFits(alone, together)


def _progress(arm: PlannedArm, run: PlannedRun, runs: StudyRuns) -> tuple[list[str], float | None]:
    """In words, the step while a run goes on and its last value; and this value."""
    status, directory = runs.states[run.id].status, runs.store.directory(run.id)
    if status == "to do":
        return [], None
    try:
        file = directory.metrics_file.stat()
        change = file.st_mtime_ns, file.st_size
        step, value = _last(directory, runs.plan.primary_metric, change)
    except FileNotFoundError:  # it has none, or a new attempt is about to replace it
        return [], None
    except ConfigurationError:  # other runs are shown, and go on; the report says what is damaged
        return ["damaged"], None
    goes_on = status in ("running", "interrupted") and step is not None
    words = [f"{step:g}/{arm.grpo_steps}"] if goes_on else []
    return (words if value is None else [*words, f"{value:.3f}"]), value


@lru_cache(maxsize=4096)
def _last(
    directory: RunDirectory, metric: str, change: tuple[int, int]
) -> tuple[float | None, float | None]:
    """The last step and the last value of the metric, kept until the file changes: the live grid
    is drawn twice a second."""
    step = value = None
    for row in directory.metrics():
        step = row.get("grpo_step")
        value = value if row.get(metric) is None else row[metric]
    return step, value


def _table(plan: Plan, columns: list[str]) -> Table:
    table = Table(title=f"{plan.study}: {plan.primary_metric}", title_justify="left", box=None,
                  caption=LEGEND, caption_justify="left", padding=(0, 3, 0, 0))  # fmt: skip
    table.add_column("arm", overflow="fold")
    for name in columns:
        table.add_column(name, no_wrap=not name.startswith("seeds"), overflow="fold")
    return table


@contextmanager
def live_grid(runs: StudyRuns, console: Console) -> Iterator[Callable[[], None]]:
    """A function that draws the grid anew at the bottom of the terminal; elsewhere it does
    nothing."""
    if not console.is_terminal:
        yield lambda: None
        return
    with Live(console=console, auto_refresh=False) as live:
        yield lambda: live.update(grid(runs.again()), refresh=True)
