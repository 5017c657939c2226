"""Brings every run of a plan to its end: skips, starts, retries, waits, stops. No torch.

Everything it knows it reads from the run directories; it holds no state of its own, so that it can
be killed at any moment and started again. An arm that fails is tried again, then left as failed
while the others go on.
"""

import time
from collections import deque
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from pathlib import Path

from trl_ablate.run.checkpoints import latest_whole_checkpoint
from trl_ablate.run.directory import RunDirectory
from trl_ablate.run.termination import Terminated
from trl_ablate.study.engines import Engine, Job, Process
from trl_ablate.study.plan import Plan, PlannedRun, in_order
from trl_ablate.study.store import RunLock, RunStore

POLL_SECONDS = 0.5
LOG_TAIL = 2000


@dataclass
class Active:
    """A run that was started here."""

    run: PlannedRun
    process: Process
    lock: RunLock
    attempt: int
    slot: int
    asked: bool = False
    """Whether it was asked to save and end."""


@dataclass
class Outcome:
    """How a study was left, by run id."""

    done: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    """Not begun or not finished, as the time was up."""


class Runner:
    """Runs a plan.

    Args:
        retries: how often a failed run is tried again.
        max_hours: wall-clock hours after which runs are stopped, to be taken up another time.
        stay: whether to wait until everything has ended; False: start what can be started, take in
            what has ended, and leave, which is for engines whose runs then go on.
        only: ids of the runs to do, and not to wait for where somebody else is at them; None: all.
        say: told of every start and end, in words.
        watch: called between polls, to redraw.
    """

    def __init__(
        self,
        plan: Plan,
        store: RunStore,
        engine: Engine,
        *,
        retries: int = 1,
        max_hours: float | None = None,
        stay: bool = True,
        only: Container[str] | None = None,
        say: Callable[[str], None] = lambda text: None,
        watch: Callable[[], None] = lambda: None,
    ):
        self._store, self._engine = store, engine
        self._retries, self._say, self._watch = retries, say, watch
        self._until = None if max_hours is None else time.monotonic() + max_hours * 3600
        self._stay, self._waits_for_others = stay, only is None
        self._waiting = deque((run, 1) for run in in_order(plan) if only is None or run.id in only)
        self._active: list[Active] = []
        self._outcome = Outcome()

    def run(self) -> Outcome:
        """Until all runs are done, failed for good, or out of time. Ctrl-C ends the started ones;
        SIGTERM (`Terminated`) has them save first."""
        try:
            while self._waiting or self._active:
                if self._until is not None and time.monotonic() >= self._until:
                    self._say("the time is up: stopping what runs")
                    break
                self._take_in()
                self._hand_out()
                self._watch()
                if not self._stay:
                    self._take_in()
                    self._hand_out()
                    break
                if self._waiting or self._active:
                    time.sleep(POLL_SECONDS)
        except Terminated:
            for active in self._active:
                active.process.ask_to_save()
                active.asked = True
            raise
        finally:
            self._outcome.left += [run.id for run, _ in self._waiting]
            self._end_all()
        self._watch()
        return self._outcome

    def _hand_out(self) -> None:
        """Start what is to be started, as far as there are slots; runs of another runner are
        passed."""
        for _ in range(len(self._waiting)):
            free = set(range(self._engine.slots)) - {active.slot for active in self._active}
            if not free:
                return
            run, attempt = self._waiting.popleft()
            lock = self._store.lock(run.id)
            if not lock.acquire():
                if self._waits_for_others:
                    self._waiting.append((run, attempt))
                else:
                    self._say(f"somebody else is at {describe(run)}")
            elif self._settled(run, attempt):
                lock.release()
            else:
                self._start(run, attempt, lock, min(free))

    def _settled(self, run: PlannedRun, attempt: int) -> bool:
        """Whether a run needs nothing; asked under its lock, so that the answer stays true."""
        state = self._store.state_unlocked(run.id)
        if state.done:
            self._outcome.done.append(run.id)
            return True
        if attempt > 1 + self._retries:
            self._outcome.failed.append(run.id)
            return True
        return False

    def _start(self, run: PlannedRun, attempt: int, lock: RunLock, slot: int) -> None:
        log = self._store.log(run.id)
        with log.open("a", encoding="utf-8") as file:
            file.write(f"--- attempt {attempt}, {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
        directory = self._store.directory(run.id)
        words = [*run.words, taking_up(directory, self._engine.in_place)]
        away = self._store.away(run.id)
        process = self._engine.start(Job(words, directory.path, log, lock.descriptor, away), slot)
        self._active.append(Active(run, process, lock, attempt, slot))
        self._say(f"started {describe(run)}" + (f", attempt {attempt}" if attempt > 1 else ""))

    def _take_in(self) -> None:
        """Judge the runs whose process has ended, by what their directory says."""
        for active in [active for active in self._active if active.process.poll() is not None]:
            self._active.remove(active)
            state = self._store.state_unlocked(active.run.id)
            if state.done:
                self._outcome.done.append(active.run.id)
                self._say(f"{state.status} {describe(active.run)}")
            else:
                reason = self._record_failure(active, state.reason if state.record else None)
                self._say(f"failed {describe(active.run)}: {reason}")
                self._waiting.append((active.run, active.attempt + 1))
            active.lock.release()

    def _record_failure(self, active: Active, known: str | None) -> str:
        """See to it that the directory says `failed` and why, whatever the process still could."""
        code = active.process.poll()
        ended = (
            f"killed by signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        )
        reason = known or f"{ended}; {last_line(self._store.log(active.run.id))}"
        directory = self._store.directory(active.run.id)
        directory.path.mkdir(parents=True, exist_ok=True)
        directory.update(
            status="failed", reason=reason, seed=active.run.seed, attempts=active.attempt
        )
        return reason

    def _end_all(self) -> None:
        """Stop what was started here; a second Ctrl-C stops waiting for it to end well."""
        for active in self._active:
            if not active.asked:
                active.process.ask_to_end()
        try:
            for active in self._active:
                active.process.end()
        except KeyboardInterrupt:
            for active in self._active:
                active.process.end(patience=0)
            raise
        finally:
            for active in self._active:
                active.lock.release()
                done = self._store.state_unlocked(active.run.id).done
                (self._outcome.done if done else self._outcome.left).append(active.run.id)
            self._active.clear()


def taking_up(directory: RunDirectory, in_place: bool) -> str:
    """What scripts/train.py is told to do with what an earlier attempt left: to go on from its last
    whole checkpoint, if it is done where that lies, or else to begin again."""
    left_something = directory.run_file.exists() and latest_whole_checkpoint(directory.path)
    return "--resume" if in_place and left_something else "--overwrite"


def describe(run: PlannedRun) -> str:
    arm = run.words[run.words.index("--arm") + 1] if "--arm" in run.words else run.id
    return f"{arm}, seed {run.seed}"


def last_line(log: Path) -> str:
    """The last line a process printed, which is where Python says what went wrong."""
    if not log.exists():
        return "it printed nothing"
    lines = log.read_text(encoding="utf-8", errors="replace")[-LOG_TAIL:].split("\n")
    printed = [
        line.strip() for line in lines if line.strip() and not line.startswith("--- attempt")
    ]
    return printed[-1][:300] if printed else "it printed nothing"
