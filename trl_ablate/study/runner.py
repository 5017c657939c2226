"""Execute the runs of a study: skip, start, retry, wait, stop. No torch.

The runner stores no state of its own: it reads everything from the run directories. So it can be
killed at any time and started again. A run that fails is retried, then left as failed, while the
other runs continue. A run that is refused would be refused again, and is not retried; nor is one
whose recipe was edited meanwhile.
"""

import math
import shlex
import time
from collections import deque
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from pathlib import Path

from trl_ablate.errors import REFUSED, ConfigurationError
from trl_ablate.run.checkpoints import latest_whole_checkpoint
from trl_ablate.run.termination import Terminated, held_back
from trl_ablate.study.engines import Engine, Job, Process
from trl_ablate.study.planned import PlannedRun, in_order
from trl_ablate.study.runs import StudyRuns, next_runs
from trl_ablate.study.store import RunLock, State

POLL_SECONDS = 0.5


@dataclass
class Active:
    """A run that this runner has started, when its record was written before that (None: it had
    none), and whether it was asked to save and end."""

    run: PlannedRun
    process: Process
    lock: RunLock
    attempt: int
    slot: int
    recorded_at: int | None
    asked: bool = False


@dataclass
class Outcome:
    """The ids of the runs by result when the runner ends; `left` are not finished."""

    done: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


class Runner:
    """Executes the runs of a study.

    Args:
        retries: how often a failed run is retried.
        max_hours: wall-clock hours after which runs save and stop, and can be resumed later; on a
            service they go on.
        stay: True: wait until all runs have ended. False: collect ended runs, start new ones and
            return, for engines whose runs then continue without this process.
        only: ids of the runs to do; those that another process holds are skipped. None: do all
            runs that the study needs, and wait for those that another process holds.
        say: called with a line of text at every start and end of a run.
        watch: called between polls, to redraw the grid.
    """

    def __init__(
        self,
        runs: StudyRuns,
        engine: Engine,
        *,
        retries: int = 1,
        max_hours: float | None = None,
        stay: bool = True,
        only: Container[str] | None = None,
        waits_for_others: bool = False,
        say: Callable[[str], None] = lambda text: None,
        watch: Callable[[], None] = lambda: None,
    ):
        self._runs, self._plan, self._store, self._engine = runs, runs.plan, runs.store, engine
        self._attempts, self._say, self._watch = 1 + retries, say, watch
        self._until = math.inf if max_hours is None else time.monotonic() + max_hours * 3600
        self._stay, self._waits_for_others = stay, waits_for_others or only is None
        self._schedules = only is None
        chosen = [] if only is None else in_order(runs.plan, only)
        self._waiting = deque((run, 1) for run in chosen)
        self._met = {run.id for run in chosen}
        self._ended: dict[str, float | None] = {}
        self._active: list[Active] = []
        self._outcome = Outcome()

    def run(self) -> Outcome:
        """Run until all runs are done or have failed, or the time limit is reached. Ctrl-C ends the
        started runs; SIGTERM (`Terminated`) and the limit let them save first."""
        try:
            while self._plan_more() or self._waiting or self._active:
                if time.monotonic() >= self._until:
                    here = self._engine.in_place
                    words = "save and stop" if here else "go on where they are"
                    self._say(f"time limit reached: the runs {words}")
                    self._ask_to_save()
                    break
                self._take_in()
                self._hand_out()
                self._watch()
                if not self._stay:
                    self._take_in()
                    self._hand_out()
                    while self._plan_more():
                        self._hand_out()
                    break
                if self._waiting or self._active:
                    time.sleep(POLL_SECONDS)
        except Terminated:
            self._ask_to_save()
            raise
        finally:
            self._outcome.left += [run.id for run, _ in self._waiting]
            self._end_all()
        self._watch()
        return self._outcome

    def _plan_more(self) -> bool:
        """Queue the runs that can start now, given the outcomes so far; whether there are any."""
        found = next_runs(self._plan, self._ended) if self._schedules else []
        new = [run for run in found if run.id not in self._met]
        self._waiting.extend((run, 1) for run in new)
        self._met |= {run.id for run in new}
        return bool(new)

    def _end(self, run: PlannedRun, ids: list[str]) -> None:
        """Add a run to `ids`, done or failed; runs may follow from its outcome."""
        ids.append(run.id)
        arm = next(arm for arm in self._plan.arms if run in arm.runs)
        self._ended[run.id] = self._runs.outcome(arm, run)

    def _hand_out(self) -> None:
        """Start waiting runs while there are free slots; skip runs that another runner holds."""
        for _ in range(len(self._waiting)):
            free = set(range(self._engine.slots)) - {active.slot for active in self._active}
            if not free:
                return
            run, attempt = self._waiting.popleft()
            lock = self._store.lock(run.id)
            if not lock.acquire(tries=1 if self._waits_for_others else 3):
                if self._waits_for_others:
                    self._waiting.append((run, attempt))
                else:
                    self._say(f"{describe(run)} is held by another runner; skipped")
                continue
            state = self._store.state_unlocked(run.id)  # it stays so while the lock is held
            if state.done or state.damaged or attempt > self._attempts:
                self._end(run, self._outcome.done if state.done else self._outcome.failed)
                lock.release()
                continue
            try:
                self._start(run, attempt, lock, min(free))
            except BaseException:
                lock.release()
                raise

    def _start(self, run: PlannedRun, attempt: int, lock: RunLock, slot: int) -> None:
        away = self._store.away(run.id)
        if away.exists():
            (there,) = self._store.away_by_engine([run.id])
            if there != self._engine.name:  # which alone can continue it
                words = [self._plan.path or self._plan.study, "--runs", str(self._store.path)]
                raise ConfigurationError(
                    f"{describe(run)} is at {there}; collect it with `trl-ablate study fetch "
                    f"{shlex.join(words)}`, or remove {away} to start it anew"
                )
        log = self._store.log(run.id)
        with log.open("a", encoding="utf-8") as file:
            file.write(f"--- attempt {attempt}, {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
        directory = self._store.directory(run.id, run.folder)
        words = [*run.words, self._taking_up(run.id)]
        job = Job(words, directory.path, log, lock.descriptor, away)
        recorded_at = self._recorded_at(run.id)
        with held_back():  # else Ctrl-C could leave a run behind that nobody knows
            process = self._engine.start(job, slot)
            self._active.append(Active(run, process, lock, attempt, slot, recorded_at))
        self._say(f"started {describe(run)}" + f", attempt {attempt}" * (attempt > 1))

    def _taking_up(self, run_id: str) -> str:
        """The option for `trl-ablate train` after an earlier attempt: `--resume` if the run is
        executed in place and left a complete checkpoint, not that of a recipe that was edited
        meanwhile; else `--overwrite`."""
        directory = self._store.directory(run_id)
        left_something = (
            directory.run_file.exists()
            and self._store.is_what_it_is_called(run_id)
            and latest_whole_checkpoint(directory.path)
        )
        return "--resume" if self._engine.in_place and left_something else "--overwrite"

    def _take_in(self) -> None:
        """Handle the runs whose process has ended; their directory shows the result."""
        for active in [active for active in self._active if active.process.poll() is not None]:
            state = self._store.state_unlocked(active.run.id)
            if state.done:
                self._end(active.run, self._outcome.done)
                self._say(f"{state.status} {describe(active.run)}")
            else:
                reason = state.reason if state.damaged else self._record_failure(active, state)
                self._say(f"failed {describe(active.run)}: {reason}")
                is_final = active.process.poll() == REFUSED or state.is_another
                attempt = self._attempts if is_final else active.attempt
                self._waiting.append((active.run, attempt + 1))
            self._active.remove(active)
            active.lock.release()

    def _recorded_at(self, run_id: str) -> int | None:
        file = self._store.directory(run_id).run_file
        return file.stat().st_mtime_ns if file.exists() else None

    def _record_failure(self, active: Active, state: State) -> str:
        """Record `failed` and the reason in the directory, as the process may not have done it."""
        code, run = active.process.poll() or 0, active.run
        ended = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        is_new = self._recorded_at(run.id) != active.recorded_at
        known = state.reason if is_new else None  # else it is that of an earlier attempt
        reason = known or f"{ended}; {last_line(self._store.log(run.id))}"
        directory = self._store.directory(run.id, run.folder)
        directory.path.mkdir(parents=True, exist_ok=True)
        directory.update(status="failed", reason=reason, seed=run.seed, attempts=active.attempt)
        return reason

    def _ask_to_save(self) -> None:
        for active in self._active:
            active.process.ask_to_save()
            active.asked = True

    def _end_all(self) -> None:
        """Stop the runs that were started here; a second Ctrl-C kills them."""
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


def describe(run: PlannedRun) -> str:
    return f"{run.arm or run.id}, seed {run.seed}"


def last_line(log: Path) -> str:
    """The last line that a process printed; after a Python error, this is its message."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    for line in reversed(text[-2000:].split("\n")):
        if line.strip() and not line.startswith("--- attempt"):
            return line.strip()[:300]
    return "it printed nothing"
