"""A probe: two steps of one run, to estimate a study."""

from collections.abc import Callable

from trl_ablate.study.engines import Engine, Job
from trl_ablate.study.estimate import PROBE_STEPS, measured_for, probe_name
from trl_ablate.study.plan import Plan
from trl_ablate.study.runner import last_line
from trl_ablate.study.store import RunStore


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
