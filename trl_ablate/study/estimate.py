"""Estimate the time, GPU-hours, disk space and cost of a study from measured steps of runs.

No torch. A run is estimated from finished runs of its arm with other seeds, else from a probe of
two steps (`probe`), else from the other arms of the study. If nothing has been measured, the
numbers are None.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trl_ablate.study.engines import Engine, Job
from trl_ablate.study.planned import Plan, PlannedArm, PlannedRun
from trl_ablate.study.runner import last_line
from trl_ablate.study.runs import StudyRuns
from trl_ablate.study.schedule import bounds
from trl_ablate.study.store import RunStore

PROBES = "probes"
PROBE_STEPS = 2


@dataclass(frozen=True)
class Measured:
    """The cost of one run of an arm, by part."""

    overhead: float
    """Seconds outside of steps and evaluations: loading, saving."""
    optimizer_step: float
    evaluation: float
    bytes: float

    def seconds(self, arm: PlannedArm) -> float:
        steps = arm.optimizer_steps * self.optimizer_step
        return self.overhead + steps + arm.evaluations * self.evaluation


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


def estimate(plan: Plan, store: RunStore, slots: int, seeds: int | None = None) -> Estimate:
    """Estimate the runs that are not done, with `slots` processes at once: with tuning, those of
    the worst case; with `seeds`, those of the first seeds of every arm."""
    known = StudyRuns(plan, store)
    _, most = bounds(plan, known.finished)
    first = {run.id for arm in plan.arms for run in arm.runs[:seeds]}
    wanted = {run.id for run in most} & first
    done = wanted & known.done
    own = {arm.name: measured_for(arm, store) for arm in plan.arms}
    common = typical([measured for measured in own.values() if measured])
    hours, size = [], []
    seen = set(done)
    for arm in plan.arms:
        measured = own[arm.name] or common
        for run in arm.runs:
            if run.id in seen or run.id not in wanted or measured is None:
                continue
            seen.add(run.id)
            hours.append(measured.seconds(arm) / 3600)
            size.append(measured.bytes / 2**30)
    unknown = common is None and len(done) < len(wanted)
    return Estimate(
        runs=len(wanted),
        done=len(done),
        wall_hours=None if unknown else wall_hours(hours, slots),
        machine_hours=None if unknown else sum(hours),
        gibibytes=None if unknown else sum(size),
        unmeasured=tuple(name for name, measured in own.items() if measured is None),
    )


def measured_for(arm: PlannedArm, store: RunStore) -> Measured | None:
    """The mean over the arm's finished runs; without one, its probe."""
    finished = [run.id for run in arm.runs if store.state(run.id).status == "finished"]
    found = [measured for run_id in finished if (measured := measure(store, run_id))]
    return typical(found) or measure(store, probe_name(arm.runs[0]))


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
    parts = sum(steps) + sum(evaluations)
    return Measured(
        overhead=max(0.0, directory.read()["seconds"] - parts),
        optimizer_step=statistics.mean(steps),
        evaluation=statistics.mean(evaluations) if evaluations else 0.0,
        bytes=float(store.bytes(run_id)),
    )


def probe(plan: Plan, store: RunStore, engine: Engine, say: Callable[[str], None]) -> None:
    """Probe the first arm that can be probed, unless an arm has been measured.

    A failed probe is reported and leaves its arm unmeasured. Ctrl-C ends the current probe.
    """
    for arm in plan.arms:
        if any(measured_for(one, store) for one in plan.arms):
            return
        run = arm.runs[0]
        name = probe_name(run)
        lock = store.lock(name)
        if not lock.acquire():
            say(f"{arm.name} is being probed by another process; skipped")
            continue
        say(f"{arm.name}: probing {PROBE_STEPS} steps")
        words = (*run.words, f"--grpo_steps={PROBE_STEPS}", "--report_to=none", "--overwrite")
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


def probe_name(run: PlannedRun) -> str:
    return f"{PROBES}/{run.id}"


def typical(found: Sequence[Measured]) -> Measured | None:
    """The mean of each part; None without any."""
    if not found:
        return None
    return Measured(
        overhead=statistics.mean(m.overhead for m in found),
        optimizer_step=statistics.mean(m.optimizer_step for m in found),
        evaluation=statistics.mean(m.evaluation for m in found),
        bytes=statistics.mean(m.bytes for m in found),
    )


def wall_hours(hours: Sequence[float], slots: int) -> float:
    """Hours until all runs have ended, if each run starts in the slot that is free first."""
    ends = [0.0] * slots
    for run in hours:
        ends[ends.index(min(ends))] += run
    return max(ends)
