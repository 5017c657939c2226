"""Which world separates which setting: a table from the runs of a study of worlds × switches.

An arm of such a study is called WORLD.SWITCH, and `against` names the arm of its world that it is
compared with. An effect is a difference paired by seed; its verdict is corrected for all effects in
its world, which is a study of its own. No torch.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trl_ablate.errors import ConfigurationError
from trl_ablate.metrics import LENGTH
from trl_ablate.study.planned import Plan, PlannedArm
from trl_ablate.study.report.background import different_starts
from trl_ablate.study.report.curves import Run
from trl_ablate.study.report.document import Document, Grid, Items, Section, Text
from trl_ablate.study.report.numbers import NOTHING, difference, signed
from trl_ablate.study.report.stats import (
    BETTER,
    MIN_SEEDS,
    TOO_FEW,
    WORSE,
    Comparison,
    compare,
)

OF_THE_WORLD = ("dataset", "model_name_or_path", "template", "eval_by", "eval_size")
"""Settings by which worlds differ; all others belong to the switch."""
LAST_ROWS = 5
"""The length at the end is the mean over so many logged steps."""
QUANTITIES = ("final", "area", "length")
Values = dict[str, list[float | None]]

NOTE = (
    "Differences of the final evaluation reward, of its mean over training (area), and of the mean "
    "length in tokens over the last five steps, each against the named arm of the same world, "
    "paired by seed, with 95 % t intervals. A verdict needs three seeds and rests on Holm's "
    "correction for all effects in its world; an interval of two seeds is as wide as two seeds are "
    "uninformative. 'c/n' counts collapsed runs: they end below half of their best."
)


@dataclass(frozen=True)
class Effect:
    """What a switch changes in a world."""

    world: str
    switch: str
    against: str
    change: str
    of: Mapping[str, Comparison]
    """Quantity -> the comparison."""
    collapsed: int
    runs: int

    @property
    def separated(self) -> bool:
        """Whether the final reward or the area has a verdict."""
        return any(self.of[name].verdict in (BETTER, WORSE) for name in ("final", "area"))

    @property
    def undecided(self) -> bool:
        return all(self.of[name].verdict == TOO_FEW for name in ("final", "area"))


def effects(plan: Plan, runs: Sequence[Run]) -> list[Effect]:
    """Every arm that `against` compares within its world, in the plan's order."""
    arms = {arm.name: arm for arm in plan.arms}
    pairs = {name: plan.against[name] for name in arms if name in plan.against}
    for arm, reference in pairs.items():
        if world_of(arm) != world_of(reference):
            raise ConfigurationError(
                f"arm '{arm}' is compared with '{reference}', which is of another world; name an "
                f"arm {world_of(arm)}.SWITCH in `against`"
            )
    values = {arm: _values(arm, runs, plan) for arm in arms}
    compared = {world: _compared(pairs, values, world) for world in map(world_of, arms)}
    return [
        Effect(
            world=world_of(arm),
            switch=switch_of(arm),
            against=switch_of(reference),
            change=change(arms[arm], arms[reference]),
            of={name: compared[world_of(arm)][name][arm] for name in QUANTITIES},
            collapsed=len([run for run in runs if run.arm == arm and _collapsed(run, plan)]),
            runs=len([run for run in runs if run.arm == arm and run.counts]),
        )
        for arm, reference in pairs.items()
    ]


def _compared(
    pairs: Mapping[str, str], values: Mapping[str, Values], world: str
) -> dict[str, dict[str, Comparison]]:
    """Quantity -> arm -> comparison, of one world."""
    here = {arm: reference for arm, reference in pairs.items() if world_of(arm) == world}
    return {
        name: compare(
            [],
            {arm: values[arm][name] for arm in here},
            {arm: values[reference][name] for arm, reference in here.items()},
        )
        for name in QUANTITIES
    }


def world_of(arm: str) -> str:
    world, dot, switch = arm.rpartition(".")
    if not (world and dot and switch):
        raise ConfigurationError(f"arm '{arm}' is not called WORLD.SWITCH; rename it in the study")
    return world


def switch_of(arm: str) -> str:
    return arm.rpartition(".")[2]


def change(arm: PlannedArm, reference: PlannedArm) -> str:
    """The settings in which the two differ: `baseline: none`."""
    differing = [
        key
        for key in sorted(arm.values)
        if arm.values[key] != reference.values.get(key)
        and key not in OF_THE_WORLD
        and not (key in arm.inert and key in reference.inert)
    ]
    return ", ".join(f"{key} {_short(arm.values[key])}" for key in differing) or NOTHING


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value).lower()


def _values(arm: str, runs: Sequence[Run], plan: Plan) -> Values:
    """By seed; None for a run without an outcome."""
    of_arm = [run for run in runs if run.arm == arm]
    summaries = [run.outcome(plan.primary_metric) for run in of_arm]
    return {
        "final": [None if one is None else one.final for one in summaries],
        "area": [None if one is None else one.auc for one in summaries],
        "length": [_length(run) if run.counts else None for run in of_arm],
    }


def _length(run: Run) -> float | None:
    series = run.series.get(LENGTH)
    return statistics.fmean(series.values[-LAST_ROWS:]) if series and series.values else None


def _collapsed(run: Run, plan: Plan) -> bool:
    summary = run.outcome(plan.primary_metric)
    return summary is not None and summary.collapsed_at is not None


def leverage_page(plan: Plan, runs: Sequence[Run], command: str) -> Document:
    """The page: what each world separates, one table of verdicts, and the numbers by world."""
    found = effects(plan, runs)
    worlds = list(dict.fromkeys(effect.world for effect in found))
    done, warned = sum(run.counts for run in runs), different_starts(plan, runs)
    sections = [
        Section("Which world separates what", [Items(_sentences(found, worlds))]),
        *([Section("Warnings", [Items(warned)])] if warned else []),
        Section("Final reward, all worlds", [_overview(found, worlds), Text(NOTE)]),
        *(Section(world, [_table(found, runs, plan, world)]) for world in worlds),
        Section("How this page was made", [Text(f"{command} ({done} of {len(runs)} runs done)")]),
    ]
    return Document("Leverage: which setting matters in which world", plan.question, sections)


def _sentences(found: Sequence[Effect], worlds: Sequence[str]) -> list[str]:
    lines = []
    for world in worlds:
        names = [e.switch for e in found if e.world == world and e.separated]
        lines.append(f"{world}: {', '.join(names) or 'nothing so far'}")
    switches = list(dict.fromkeys(effect.switch for effect in found))
    separated = {effect.switch for effect in found if effect.separated}
    decided = {effect.switch for effect in found if not effect.undecided}
    none = [name for name in switches if name in decided - separated]
    open_ = [name for name in switches if name not in decided]
    lines.append(f"separated by no world so far: {', '.join(none) or 'none'}")
    if open_:
        lines.append(f"fewer than {MIN_SEEDS} seeds, no verdict yet: {', '.join(open_)}")
    return lines


def _overview(found: Sequence[Effect], worlds: Sequence[str]) -> Grid:
    """Rows are switches; a star marks a verdict on the final reward."""
    by_place = {(effect.switch, effect.world): effect for effect in found}
    rows = []
    for switch in dict.fromkeys(effect.switch for effect in found):
        cells = [by_place.get((switch, world)) for world in worlds]
        against = next(effect.against for effect in cells if effect is not None)
        rows.append([switch, against, *(_brief(effect) for effect in cells)])
    note = "A star marks a verdict: better or worse."
    return Grid(["switch", "against", *worlds], rows, note, numbers_from=2)


def _brief(effect: Effect | None) -> str:
    final = effect.of["final"] if effect else None
    if final is None or final.difference.mean is None:
        return NOTHING
    return signed(final.difference.mean) + " *" * (final.verdict in (BETTER, WORSE))


def _table(found: Sequence[Effect], runs: Sequence[Run], plan: Plan, world: str) -> Grid:
    header = ["switch", "changes", "against", "final", "area", "length", "c/n", "verdict on final"]
    rows = [
        [
            effect.switch,
            effect.change,
            effect.against,
            difference(effect.of["final"].difference),
            difference(effect.of["area"].difference),
            difference(effect.of["length"].difference, 1),
            f"{effect.collapsed}/{effect.runs}",
            effect.of["final"].verdict,
        ]
        for effect in found
        if effect.world == world
    ]
    return Grid(header, rows, _reference(runs, plan, world, found), numbers_from=3)


def _reference(runs: Sequence[Run], plan: Plan, world: str, found: Sequence[Effect]) -> str:
    """The values of the arm that is compared with others only as their reference."""
    compared = {f"{effect.world}.{effect.switch}" for effect in found}
    names = [arm.name for arm in plan.arms if world_of(arm.name) == world]
    lines = []
    for name in (name for name in names if name not in compared):
        finals = [f"{v:.3f}" for v in _values(name, runs, plan)["final"] if v is not None]
        lines.append(f"{switch_of(name)} ended at {', '.join(finals) or NOTHING}")
    return "; ".join(lines) + "." if lines else ""
