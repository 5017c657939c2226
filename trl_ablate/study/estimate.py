"""Estimate the time, GPU-hours, disk space and cost of studies from measured steps of runs.

No torch. A run is estimated from finished runs of its arm with other seeds, else from a probe of
two steps (`probe`), else from the other arms of its study, else from other studies. If nothing has
been measured, the numbers are None.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import NamedTuple

from trl_ablate.study.engines import Engine, Job
from trl_ablate.study.planned import Plan, PlannedArm, PlannedRun
from trl_ablate.study.runner import last_line
from trl_ablate.study.runs import StudyRuns
from trl_ablate.study.schedule import bounds
from trl_ablate.study.store import RunStore, bytes_in

PROBES = "probes"
PROBE_STEPS = 2


class Measured(NamedTuple):
    """The cost of one run of an arm, by part."""

    overhead: float
    """Seconds outside of steps and evaluations: loading, saving."""
    optimizer_step: float
    evaluation: float
    bytes: float

    def seconds(self, arm: PlannedArm) -> float:
        steps = arm.optimizer_steps * self.optimizer_step
        return self.overhead + steps + arm.evaluations * self.evaluation


ByArm = Mapping[str, Measured | None]


@dataclass(frozen=True)
class Estimate:
    """The cost of the remaining runs; the numbers are None if nothing was measured."""

    runs: int
    done: int
    wall_hours: float | None
    machine_hours: float | None
    """Hours of one process: GPU-hours on a GPU."""
    gibibytes: float | None
    unmeasured: tuple[str, ...]
    """Arms without measurements of their own; they are estimated from the other arms."""


def estimate(runs: StudyRuns, slots: int, seeds: int | None = None) -> Estimate:
    """Estimate the runs that are not done, with `slots` processes at once: with tuning, those of
    the worst case; with `seeds`, those of the first seeds of every arm."""
    plan = runs.plan
    wanted = {run.id for run in bounds(plan, runs.finished)[1]} & plan.up_to(seeds)
    own = measured_arms(runs)
    costs = costs_of(plan, wanted - runs.done, own)
    hours = None if costs is None else [seconds / 3600 for seconds, _ in costs]
    return Estimate(
        runs=len(wanted),
        done=len(wanted & runs.done),
        wall_hours=None if hours is None else wall_hours(hours, slots),
        machine_hours=None if hours is None else sum(hours),
        gibibytes=None if costs is None else sum(size for _, size in costs) / 2**30,
        unmeasured=tuple(name for name, measured in own.items() if measured is None),
    )


def costs_of(
    plan: Plan, ids: Collection[str], own: ByArm, other: Measured | None = None
) -> list[tuple[float, float]] | None:
    """Seconds and bytes of each run; an arm that was not measured costs as much as those of its
    study that were, or as `other`. None if nothing was measured."""
    common = typical([found for found in own.values() if found]) or other
    if common is None:
        return [] if not ids else None
    costs: dict[str, tuple[float, float]] = {}
    for arm in plan.arms:
        measured = own[arm.name] or common
        for run in arm.runs:
            if run.id in ids:
                costs.setdefault(run.id, (measured.seconds(arm), measured.bytes))
    return list(costs.values())


def wall_hours(hours: Sequence[float], slots: int) -> float:
    """Hours until all runs have ended, if each run starts in the slot that is free first."""
    ends = [0.0] * slots
    for run in hours:
        ends[ends.index(min(ends))] += run
    return max(ends)


@dataclass
class Case:
    """The runs of a study, or of several, at best or at worst."""

    runs: set[str]
    new: set[str]
    """Runs that no study before has."""
    seconds: list[float] | None
    """Of each new run that is not done; None: nothing was measured."""

    def hours(self, slots: int = 0) -> float | None:
        """Hours of one process, or until all have ended with these slots at once."""
        if self.seconds is None:
            return None
        hours = [each / 3600 for each in self.seconds]
        return wall_hours(hours, slots) if slots else sum(hours)


@dataclass(frozen=True)
class Share:
    """What a study adds to those before it; or what all of them take together."""

    study: str
    best: Case
    worst: Case
    done: int
    """Of the new runs of the worst case."""


def total_of(studies: Sequence[StudyRuns]) -> tuple[list[Share], Share]:
    """What each study and all of them cost. A run that several studies need is counted once, with
    the first of them."""
    own = [measured_arms(runs) for runs in studies]
    every = typical([found for arms in own for found in arms.values() if found])
    best, worst = (Case(set(), set(), [] if every else None) for _ in range(2))
    shares: list[Share] = []
    for runs, arms in zip(studies, own, strict=True):
        least, most = ({run.id for run in case} for case in bounds(runs.plan, runs.finished))
        if runs.plan.looks:  # all comparisons are decided at the first one
            least &= runs.plan.up_to(runs.plan.looks[0])
        cases = [_added(ids, total, runs, arms, every) for ids, total in
                 ((least, best), (most, worst))]  # fmt: skip
        shares.append(Share(runs.plan.study, *cases, done=len(cases[1].new & runs.done)))
    return shares, Share("all", best, worst, sum(share.done for share in shares))


def _added(ids: set[str], total: Case, runs: StudyRuns, own: ByArm, every: Measured | None) -> Case:
    """The case of one study, which is added to that of all."""
    new = ids - total.runs
    costs = costs_of(runs.plan, new - runs.done, own, every) if every else None
    case = Case(ids, new, None if costs is None else [seconds for seconds, _ in costs])
    total.runs |= new
    total.new |= new
    if total.seconds is not None:
        total.seconds += case.seconds or []
    return case


def measured_arms(runs: StudyRuns) -> ByArm:
    """Of each arm the mean over its finished runs; without one, its probe."""
    found: dict[str, Measured | None] = {}
    for arm in runs.plan.arms:
        finished = [run.id for run in arm.runs if runs.states[run.id].status == "finished"]
        measured = [each for run_id in finished if (each := measure(runs.store, run_id))]
        found[arm.name] = typical(measured) or measure(runs.store, probe_name(arm.runs[0]))
    return found


def measure(store: RunStore, run_id: str) -> Measured | None:
    """The parts of a finished run; None if it is missing, not finished, or logged no step time."""
    directory = store.directory(run_id)
    if not directory.run_file.exists() or directory.read().get("status") != "finished":
        return None
    rows = list(directory.metrics())
    steps = [row["step_time"] for row in rows if row.get("step_time") is not None]
    evaluations = [row["time/eval"] for row in rows if row.get("time/eval") is not None]
    if not steps:
        return None
    return Measured(
        overhead=max(0.0, directory.read()["seconds"] - sum(steps) - sum(evaluations)),
        optimizer_step=mean(steps),
        evaluation=mean(evaluations) if evaluations else 0.0,
        bytes=float(bytes_in(directory.path)),
    )


def typical(found: Sequence[Measured]) -> Measured | None:
    """The mean of each part; None without any."""
    return Measured(*map(mean, zip(*found, strict=True))) if found else None


def probe(runs: StudyRuns, engine: Engine, say: Callable[[str], None]) -> None:
    """Probe the first arm that can be probed, unless an arm has been measured.

    A failed probe is reported and leaves its arm unmeasured. Ctrl-C ends the current probe.
    """
    if any(measured_arms(runs).values()):
        return
    for arm in runs.plan.arms:
        if _probe(arm, runs.store, engine, say):
            return


def _probe(arm: PlannedArm, store: RunStore, engine: Engine, say: Callable[[str], None]) -> bool:
    """Run two steps of an arm; whether that measured it."""
    name = probe_name(arm.runs[0])
    lock = store.lock(name)
    if not lock.acquire():
        say(f"{arm.name} is being probed by another process; skipped")
        return False
    say(f"{arm.name}: probing {PROBE_STEPS} steps")
    words = (*arm.runs[0].words, f"--grpo_steps={PROBE_STEPS}", "--report_to=none", "--overwrite")
    target = store.directory(name).path, store.log(name), lock.descriptor, store.away(name)
    process = engine.start(Job(words, *target), 0)
    try:
        code = process.wait()
    finally:
        process.ask_to_end()
        process.end()
        lock.remove()
    if code != 0:
        say(f"{arm.name}: probe failed: {last_line(store.log(name))}")
    return measure(store, name) is not None


def probe_name(run: PlannedRun) -> str:
    return f"{PROBES}/{run.id}"
