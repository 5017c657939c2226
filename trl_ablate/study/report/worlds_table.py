"""Which world separates which setting: a table from the runs of a study of worlds × switches.

An arm of such a study is called WORLD.SWITCH, and `against` names the arm of its world that it is
compared with. An effect is a difference paired by seed; its verdict is corrected for all effects in
its world on the same measure. No torch.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trl_ablate.errors import ConfigurationError
from trl_ablate.metrics import LENGTH
from trl_ablate.study.planned import Plan, PlannedArm
from trl_ablate.study.report.analysis import ArmResult
from trl_ablate.study.report.curves import Run
from trl_ablate.study.report.document import Columns, Document, Items, Section, Text, table
from trl_ablate.study.report.numbers import NOTHING, difference, signed
from trl_ablate.study.report.sections import different_starts
from trl_ablate.study.report.stats import MIN_SEEDS, Comparison, judge, pairs_of
from trl_ablate.study.verdict import Verdict

OF_THE_WORLD = ("dataset", "model_name_or_path", "template", "eval_by", "eval_size")
"""Settings by which worlds differ; all others belong to the switch."""
LAST_ROWS = 5
"""The length at the end is the mean over so many logged steps."""
NOTE = (
    "Differences of the final evaluation reward, of its mean over training (area), and of the mean "
    "length in tokens over the last five steps, each against the named arm of the same world, "
    "paired by seed, with 95 % t intervals. A verdict needs three seeds and rests on Holm's "
    "correction for all effects in its world on the same measure. A world separates a setting by a "
    "verdict on the final reward or on the area, without a correction for having two. 'c/n' counts "
    "collapsed runs: they end below half of their best."
)


@dataclass(frozen=True)
class Effect:
    """What a switch changes in a world."""

    world: str
    switch: str
    against: str
    change: str
    final: Comparison
    area: Comparison
    length: Comparison
    collapsed: int
    runs: int

    @property
    def separated(self) -> bool:
        """Whether the final reward or the area has a verdict."""
        return any(of.verdict.differs for of in (self.final, self.area))

    @property
    def undecided(self) -> bool:
        return self.final.verdict == self.area.verdict == Verdict.TOO_FEW


def effects(plan: Plan, runs: Sequence[Run]) -> list[Effect]:
    """Every arm that `against` compares within its world, world by world."""
    arms, results = {arm.name: arm for arm in plan.arms}, _results(plan, runs)
    values = {
        name: {"final": of.values("final"), "area": of.values("auc"), "length": _lengths(of)}
        for name, of in results.items()
    }
    found = []
    for world in dict.fromkeys(map(world_of, arms)):
        against = {arm: other for arm in arms if world_of(arm) == world
                   and (other := plan.against.get(arm))}  # fmt: skip
        for arm, other in against.items():
            if world_of(other) != world:
                raise ConfigurationError(
                    f"arm '{arm}' is compared with '{other}', which is of another world; name "
                    f"an arm {world}.SWITCH in `against`"
                )
        compared = {
            name: judge(
                {arm: pairs_of(values[of][name], values[arm][name]) for arm, of in against.items()}
            )
            for name in ("final", "area", "length")
        }
        for arm, other in against.items():
            found.append(
                Effect(
                    world, switch_of(arm), switch_of(other), change(arms[arm], arms[other]),
                    collapsed=results[arm].collapsed,
                    runs=sum(run.counts for run in results[arm].runs),
                    **{name: by_arm[arm] for name, by_arm in compared.items()},
                )
            )  # fmt: skip
    return found


def world_of(arm: str) -> str:
    world, dot, switch = arm.rpartition(".")
    if not (world and dot and switch):
        raise ConfigurationError(f"arm '{arm}' is not called WORLD.SWITCH; rename it in the study")
    return world


def switch_of(arm: str) -> str:
    return arm.rpartition(".")[2]


def change(arm: PlannedArm, reference: PlannedArm) -> str:
    """The settings in which the two differ: `baseline none`."""
    differing = [
        f"{key} {f'{value:.3g}' if isinstance(value, float) else str(value).lower()}"
        for key, value in sorted(arm.values.items())
        if value != reference.values.get(key)
        and key not in OF_THE_WORLD
        and not (key in arm.inert and key in reference.inert)
    ]
    return ", ".join(differing) or NOTHING


def _results(plan: Plan, runs: Sequence[Run]) -> dict[str, ArmResult]:
    own = {arm.name: tuple(run for run in runs if run.arm == arm.name) for arm in plan.arms}
    return {name: ArmResult(name, of, plan.primary_metric) for name, of in own.items()}


def _lengths(arm: ArmResult) -> list[float | None]:
    """By seed; None for a run without an outcome."""
    found = [run.series.get(LENGTH) if run.counts else None for run in arm.runs]
    ends = (one and one.values[-LAST_ROWS:] for one in found)
    return [statistics.fmean(values) if values else None for values in ends]


def leverage_page(plan: Plan, runs: Sequence[Run], command: str) -> Document:
    """The page: what each world separates, one table of verdicts, and the numbers by world."""
    found, results = effects(plan, runs), _results(plan, runs)
    worlds = list(dict.fromkeys(effect.world for effect in found))
    done, warned = sum(run.counts for run in runs), different_starts(plan, runs)
    overview = _overview(found, worlds)
    sections = [
        Section("What each world separates, by final reward or area",
                [Items(_sentences(found, worlds))]),
        *([Section("Warnings", [Items(warned)])] if warned else []),
        Section(overview.title, [*overview.blocks, Text(NOTE)]),
        *(_table(found, results, world) for world in worlds),
        Section("How this page was made", [Text(f"{command} ({done} of {len(runs)} runs done)")]),
    ]  # fmt: skip
    return Document("Leverage: which setting matters in which world", plan.question, sections)


def _sentences(found: Sequence[Effect], worlds: Sequence[str]) -> list[str]:
    lines = []
    for world in worlds:
        names = [e.switch for e in found if e.world == world and e.separated]
        lines.append(f"{world}: {', '.join(names) or 'nothing so far'}")
    separated = {effect.switch for effect in found if effect.separated}
    decided = {effect.switch for effect in found if not effect.undecided}
    switches = dict.fromkeys(effect.switch for effect in found)
    none = [name for name in switches if name in decided - separated]
    open_ = [name for name in switches if name not in decided]
    lines.append(f"separated by no world so far: {', '.join(none) or 'none'}")
    if open_:
        lines.append(f"fewer than {MIN_SEEDS} seeds, no verdict yet: {', '.join(open_)}")
    return lines


def _overview(found: Sequence[Effect], worlds: Sequence[str]) -> Section:
    """Rows are switches."""
    of = {(effect.switch, effect.world): effect for effect in found}
    against = {effect.switch: effect.against for effect in reversed(found)}

    def brief(switch: str, world: str) -> str:
        final = of[switch, world].final if (switch, world) in of else None
        if final is None or final.difference.mean is None:
            return NOTHING
        return signed(final.difference.mean) + " *" * final.verdict.differs

    columns: Columns = [
        ("switch", str),
        ("against", lambda switch: against[switch]),
        *((world, lambda switch, world=world: brief(switch, world)) for world in worlds),
    ]
    switches = dict.fromkeys(effect.switch for effect in found)
    note = "A star marks a verdict: better or worse."
    return table("Final reward, all worlds", switches, columns, note, 2)


def _table(found: Sequence[Effect], results: Mapping[str, ArmResult], world: str) -> Section:
    columns: Columns = [
        ("switch", lambda effect: effect.switch),
        ("changes", lambda effect: effect.change),
        ("against", lambda effect: effect.against),
        ("final", lambda effect: difference(effect.final.difference)),
        ("area", lambda effect: difference(effect.area.difference)),
        ("length", lambda effect: difference(effect.length.difference, 1)),
        ("c/n", lambda effect: f"{effect.collapsed}/{effect.runs}"),
        ("verdict on final", lambda effect: effect.final.verdict),
    ]
    own = [effect for effect in found if effect.world == world]
    compared = {effect.switch for effect in own}
    lines = []
    for name in (name for name in results if world_of(name) == world):
        if switch_of(name) not in compared:
            ends = ", ".join(f"{summary.final:.3f}" for summary in results[name].known)
            lines.append(f"{switch_of(name)} ended at {ends or NOTHING}")
    return table(world, own, columns, "; ".join(lines) + "." * bool(lines), 3)
