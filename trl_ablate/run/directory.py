"""The run directory: what a run writes, and how it is read. No torch.

    resolved_config.json     everything the recipe came to
    run.json                 status, reason, recipe, arm, seed, git, versions, host, time, memory
    metrics.jsonl            one object per logged step
    alerts.jsonl             what the guard saw
    rollouts/                what the model said, one file per evaluated step
    checkpoint-N/            TRL's checkpoints
    checkpoint_last/         the model at the end
    checkpoint_best/         the model of the best evaluation

JSON files appear whole or not at all; JSONL is appended and flushed line by line, so that a run
killed at any moment leaves both readable.
"""

import fcntl
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from trl_ablate.errors import ConfigurationError
from trl_ablate.run.failures import in_words
from trl_ablate.run.files import append_jsonl, read_json, read_jsonl, write_json, write_jsonl
from trl_ablate.run.folders import put_back, where_it_stands
from trl_ablate.run.termination import Terminated

KEYBOARD = "interrupted from the keyboard"
PREEMPTED = "ended by SIGTERM"
INTERRUPTED = (KEYBOARD, PREEMPTED)
"""Reasons of a run that was stopped from outside, not by a rule: it can go on."""

MARK = ".running"
"""A file that is there, and locked, while a process is at the run."""
RESERVE = 1 << 20
"""Its bytes: room for the last words in `run.json`, should the disk fill up."""


@dataclass
class Outcome:
    """How a run ended: finished, unless somebody says otherwise. `scripts/train.py` raises where a
    training ended before its last step although nobody stopped it."""

    status: str = "finished"
    reason: str | None = None
    entries: dict[str, Any] = field(default_factory=dict)

    def stopped(self, reason: str, **entries: Any) -> None:
        """Ended before its time, on purpose."""
        self.status, self.reason, self.entries = "stopped", reason, entries


@dataclass(frozen=True)
class RunDirectory:
    """A run's folder; every path in it has its name here."""

    path: Path

    @property
    def config_file(self) -> Path:
        return self.path / "resolved_config.json"

    @property
    def run_file(self) -> Path:
        return self.path / "run.json"

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def alerts_file(self) -> Path:
        return self.path / "alerts.jsonl"

    @property
    def checkpoint_last(self) -> Path:
        return self.path / "checkpoint_last"

    @property
    def checkpoint_best(self) -> Path:
        return self.path / "checkpoint_best"

    def best(self) -> dict[str, Any] | None:
        """Metric, value and step of `checkpoint_best`; None where there is none yet."""
        file = where_it_stands(self.checkpoint_best) / "best.json"
        return read_json(file) if file.exists() else None

    def rollout_file(self, step: int) -> Path:
        return self.path / "rollouts" / f"step_{step:06d}.jsonl"

    def write_rollouts(self, step: int, rows: list[dict[str, Any]]) -> None:
        """Replace the rollouts kept for a step."""
        file = self.rollout_file(step)
        file.parent.mkdir(exist_ok=True)
        write_jsonl(file, rows)

    def rewind(self, step: int, rows: int | None = None) -> None:
        """Forget what was recorded after a step, and the rows of metrics behind the first so many
        (None: no row at that step or before it): a resumed run will record it again."""
        for file, most in ((self.metrics_file, rows), (self.alerts_file, None)):
            if file.exists():
                kept = (row for row in read_jsonl(file) if row["step"] <= step)
                write_jsonl(file, islice(kept, most))
        for file in self.rollout_file(0).parent.glob("step_*.jsonl"):
            if int(file.stem.removeprefix("step_")) > step:
                file.unlink()

    def prepare(self, *, overwrite: bool = False, resume: bool = False) -> None:
        """Make the folder ready, or say why it is not: runs are never mixed. What a kill has left
        half replaced is put back."""
        if self.path.exists() and not self.path.is_dir():
            raise ConfigurationError(f"{self.path} is a file; give another --output_dir")
        left = self._left()
        if left and not (overwrite or resume):
            raise ConfigurationError(
                f"{self.path} holds {self._described(left)}; give another --output_dir, or "
                "--overwrite to replace it, or --resume to go on with it"
            )
        if left:
            mark = self._enter()
            for folder in (self.checkpoint_last, self.checkpoint_best):
                put_back(folder)
            self._leave(mark)
        if left and overwrite:
            self._clear()
        self.path.mkdir(parents=True, exist_ok=True)

    def _left(self) -> list[Path]:
        """What tells of a run: its record, or else what a new one would be mixed with."""
        saved = (self.checkpoint_last, self.checkpoint_best)
        known = (self.run_file, self.metrics_file, *map(where_it_stands, saved))
        return [*filter(Path.exists, known), *self.path.glob("checkpoint-[0-9]*")]

    def _described(self, left: list[Path]) -> str:
        if self.run_file in left:
            return f"a run already ({self.read().get('status', 'unknown')})"
        return f"what is left of a run ({left[0].name}, but no {self.run_file.name})"

    def _clear(self) -> None:
        """Remove the run: all there is, or, where no record says that it is a run's, its own."""
        if self.run_file.exists():
            shutil.rmtree(self.path)
            return
        rollouts = self.rollout_file(0).parent.glob("step_*.jsonl")
        for path in (*self._left(), self.alerts_file, *rollouts):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    @contextmanager
    def recorded(self, *, clean: Callable[[str], str] = str, **entries: Any):
        """`run.json` from the first moment to the last, however the run ends.

        What an error says goes through `clean`. Room for it is kept, so that a full disk is told.
        Until the end nobody else can be at this run.
        """
        mark = self._enter()
        started = time.time() - self.seconds_so_far()
        self.update(status="running", reason=None, **entries)
        outcome = Outcome()
        try:
            yield outcome
        except KeyboardInterrupt as error:
            outcome.stopped(PREEMPTED if isinstance(error, Terminated) else KEYBOARD)
            raise
        except BaseException as error:
            outcome.status, outcome.entries = "failed", {}
            outcome.reason = clean(_reason(error))
            raise
        finally:
            self._leave(mark)
            seconds = time.time() - started
            last_words = {
                "status": outcome.status,
                "reason": outcome.reason,
                "seconds": round(seconds, 1),
                "gpu_hours": round(seconds / 3600 * entries.get("gpus", 0), 4),
                "peak_memory_gib": self.peak_memory(),
            }
            self.update(**{**entries, **last_words, **outcome.entries})

    def _enter(self) -> BinaryIO:
        """Open and lock the file that tells others that somebody is at this run."""
        mark = (self.path / MARK).open("ab")
        try:
            fcntl.lockf(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)  # forked children do not inherit it
        except BlockingIOError as error:
            raise ConfigurationError(
                f"another process is at the run in {self.path}; wait for its end, or end it (after "
                "a launcher was killed its processes may go on), or give another --output_dir"
            ) from error
        mark.write(bytes(max(0, RESERVE - mark.tell())))
        mark.flush()
        return mark

    def _leave(self, mark: BinaryIO) -> None:
        mark.close()
        (self.path / MARK).unlink(missing_ok=True)

    def seconds_so_far(self) -> float:
        """What a run that is resumed has taken already, by its last logged row."""
        return max((row.get("seconds", 0.0) for row in self.metrics()), default=0.0)

    def peak_memory(self) -> float | None:
        """The highest peak that was logged, in GiB; None where none was."""
        peaks = [
            value
            for row in self.metrics()
            for key, value in row.items()
            if key.startswith("memory/peak") and value is not None
        ]
        return max(peaks, default=None)

    def write_config(self, resolved: dict[str, Any]) -> None:
        write_json(self.config_file, resolved)

    def update(self, **entries: Any) -> None:
        """Add entries to `run.json`."""
        write_json(self.run_file, {**(self.read() if self.run_file.exists() else {}), **entries})

    def read(self) -> dict[str, Any]:
        return read_json(self.run_file)

    def append_metrics(self, row: dict[str, Any]) -> None:
        append_jsonl(self.metrics_file, row)

    def metrics(self) -> Iterator[dict[str, Any]]:
        """The logged rows, a half-written last line left out."""
        return read_jsonl(self.metrics_file)


def _reason(error: BaseException) -> str:
    known = None if isinstance(error, ConfigurationError) else in_words(error)
    return known or f"{type(error).__name__}: {error}"
