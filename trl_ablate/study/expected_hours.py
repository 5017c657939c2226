"""Estimate the time, GPU-hours, disk space and cost of studies from measured steps of runs.

No torch. A run is estimated from finished runs of its arm with other seeds, else from a probe of
two steps (`probe`), else from the other arms of its study, else from other studies. If nothing has
been measured, the numbers are None.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import mean
from typing import NamedTuple

from trl_ablate.errors import ConfigurationError
from trl_ablate.guard.remedies import summed_step_times
from trl_ablate.study.engines import Job
from trl_ablate.study.engines.local import LocalEngine
from trl_ablate.study.planned import Plan, PlannedArm, PlannedRun
from trl_ablate.study.runner import last_line
from trl_ablate.study.runs import StudyRuns
from trl_ablate.study.store import RunStore, bytes_in

PROBE_STEPS = 2


class Measured(NamedTuple):
    """The cost of one run of an arm, by part, in seconds and bytes; `overhead`: outside of steps
    and evaluations."""

    overhead: float
    optimizer_step: float
    evaluation: float
    bytes: float
    steps: float
    """NaN of a probe, which ends early."""
    evaluations: float

    def seconds(self, arm: PlannedArm) -> float | None:
        """With the measured numbers of a run in epochs; None if a probe alone was measured."""
        steps, evaluations = arm.optimizer_steps, arm.evaluations
        if not steps:
            steps, evaluations = self.steps, self.evaluations
        found = self.overhead + steps * self.optimizer_step + evaluations * self.evaluation
        return None if math.isnan(found) else found


ByArm = Mapping[str, Measured | None]
Costs = dict[str, tuple[float, float] | None]
"""Run id -> seconds and bytes; None: nothing was measured."""


@dataclass
class Estimate:
    """What runs cost that are not done."""

    runs: set[str]
    done: set[str]
    costs: Costs
    unmeasured: tuple[str, ...] = ()
    """Arms without measurements of their own; they are estimated from the other arms."""

    @property
    def left(self) -> list[tuple[float, float] | None]:
        """The costs of the runs that are not done."""
        ids = self.runs - self.done
        return [cost for run_id, cost in self.costs.items() if run_id in ids]

    def hours(self, slots: int = 0) -> float | None:
        """Hours of one process, which are GPU-hours on a GPU; or until all have ended with these
        slots at once, if each run starts in the slot that is free first."""
        ends = [0.0] * max(1, slots)
        for cost in self.left:
            if cost is None:
                return None
            ends[ends.index(min(ends))] += cost[0]
        return max(ends) / 3600

    @property
    def gibibytes(self) -> float:
        return sum(cost[1] for cost in self.left if cost) / 2**30


def _add_costs(costs: Costs, plan: Plan, own: ByArm, other: Measured | None) -> None:
    """An arm that was not measured costs as much as those of its study that were, or `other`."""
    common = typical([found for found in own.values() if found]) or other
    for arm in plan.arms:
        measured = own[arm.name] or common
        seconds = measured and measured.seconds(arm)
        cost = (seconds, measured.bytes) if measured and seconds is not None else None
        for run in arm.runs:
            costs[run.id] = costs.get(run.id) or cost


@dataclass(frozen=True)
class Share:
    """What a study adds to those before it, at best and at worst; or what all of them take."""

    study: str
    best: Estimate
    worst: Estimate
    runs: tuple[int, int]
    """The runs that it needs at best and at worst, also those of a study before it."""


def total_of(studies: Sequence[StudyRuns]) -> tuple[list[Share], Share]:
    """What each study and all of them cost. A run that several studies need is counted once, with
    the first of them."""
    own = [measured_arms(runs) for runs in studies]
    every = typical([found for arms in own for found in arms.values() if found])
    costs, done, shares = Costs(), set[str](), []
    totals = set[str](), set[str]()
    for runs, arms in zip(studies, own, strict=True):
        least, most = runs.cases
        _add_costs(costs, runs.plan, arms, every)
        done |= runs.done
        new = (ids - total for ids, total in zip((least, most), totals, strict=True))
        unmeasured = tuple(name for name, measured in arms.items() if measured is None)
        best, worst = (Estimate(ids, ids & done, costs, unmeasured) for ids in new)
        shares.append(Share(runs.plan.study, best, worst, (len(least), len(most))))
        totals = totals[0] | least, totals[1] | most
    best, worst = (Estimate(ids, ids & done, costs) for ids in totals)
    return shares, Share("all", best, worst, (len(best.runs), len(worst.runs)))


def measured_arms(runs: StudyRuns) -> ByArm:
    """Of each arm the mean over its finished runs; without one, its probe."""
    found: dict[str, Measured | None] = {}
    for arm in runs.plan.arms:
        finished = [run.id for run in arm.runs if runs.states[run.id].status == "finished"]
        measured = [each for run_id in finished if (each := measure(runs.store, run_id))]
        found[arm.name] = typical(measured) or measure(runs.store, probe_name(arm.runs[0]))
    return found


def measure(store: RunStore, run_id: str) -> Measured | None:
    """The parts of a finished run; None if it is missing or damaged, not finished, or logged no
    step time."""
    directory = store.directory(run_id)
    record, rows = {}, []
    with suppress(ConfigurationError):
        record, rows = directory.record(), [*directory.metrics()]
    steps = summed_step_times(rows)
    evaluations = [row["time/eval"] for row in rows if row.get("time/eval") is not None]
    last = max(steps, default=0)
    if record.get("status") != "finished" or not last:
        return None
    return Measured(
        overhead=max(0.0, record["seconds"] - steps[last] - sum(evaluations)),
        optimizer_step=steps[last] / last,
        evaluation=mean(evaluations) if evaluations else 0.0,
        bytes=float(bytes_in(directory.path)),
        steps=last if last > PROBE_STEPS else math.nan,
        evaluations=len(evaluations),
    )


def typical(found: Sequence[Measured]) -> Measured | None:
    """The mean of each part; None without any."""
    return Measured(*map(mean, zip(*found, strict=True))) if found else None


def probe(runs: StudyRuns, engine: LocalEngine, say: Callable[[str], None]) -> None:
    """Run two steps of the first arm that can be measured so, unless an arm has been measured.

    A failed probe is reported and leaves its arm unmeasured. Ctrl-C ends the current probe.
    """
    if any(measured_arms(runs).values()):
        return
    steps = f"--grpo_steps={PROBE_STEPS}", "--max_steps=-1"  # which would win over grpo_steps
    options = (*steps, "--logging_steps=1", "--report_to=none", "--overwrite")
    store = runs.store
    for arm in runs.plan.arms:
        name = probe_name(arm.runs[0])
        lock = store.lock(name)
        if not lock.acquire():
            say(f"{arm.name} is being probed by another process; skipped")
            continue
        say(f"{arm.name}: probing {PROBE_STEPS} steps")
        target = store.directory(name).path, store.log(name), lock.descriptor, store.away(name)
        process = engine.start(Job((*arm.runs[0].words, *options), *target), 0)
        try:
            code = process.wait()
        finally:
            process.ask_to_end()
            process.end()
            lock.remove()
        if code != 0:
            say(f"{arm.name}: probe failed: {last_line(store.log(name))}")
        if measure(store, name) is not None:
            return


def probe_name(run: PlannedRun) -> str:
    return f"probes/{run.id}"
