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

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from trl_ablate.errors import ConfigurationError
from trl_ablate.run.failures import DIVERGED, in_words
from trl_ablate.run.files import (
    append_jsonl,
    read_jsonl,
    read_object,
    write_json,
    write_jsonl,
)
from trl_ablate.run.folders import beside_while_replaced, where_it_stands
from trl_ablate.run.termination import Terminated

KEYBOARD = "interrupted from the keyboard"
PREEMPTED = "ended by SIGTERM"
INTERRUPTED = (KEYBOARD, PREEMPTED)
"""Reasons of a run that was stopped from outside, not by a rule: it can go on."""

MARK = ".running"
"""A file that exists, and is locked, while a process uses the run."""

_CHECKPOINT = re.compile(r"checkpoint-\d+")
_ROLLOUTS = re.compile(r"step_\d+\.jsonl")
_UNFINISHED = re.compile(r"\.(run|resolved_config|metrics|alerts)\.jsonl?\.\d+")
"""What a kill leaves of a file that was being written."""


@dataclass
class Outcome:
    """How a run ended: finished, unless something stopped it before its last step."""

    status: str = "finished"
    reason: str | None = None
    entries: dict[str, Any] = field(default_factory=dict)

    def stopped(self, reason: str, **entries: Any) -> None:
        """Ended before its last step, on purpose."""
        self.status, self.reason, self.entries = "stopped", reason, entries

    def diverged(self, grpo_step: float) -> None:
        """Ended because there is no policy any more to sample from."""
        self.stopped(DIVERGED.format(step=grpo_step), diverged_at=grpo_step)


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
        return read_object(file) if file.exists() else None

    def rollout_file(self, step: int) -> Path:
        return self.path / "rollouts" / f"step_{step:06d}.jsonl"

    def write_rollouts(self, step: int, rows: list[dict[str, Any]]) -> None:
        """Replace the rollouts kept for a step."""
        file = self.rollout_file(step)
        file.parent.mkdir(exist_ok=True)
        write_jsonl(file, rows)

    def rows_until(self, step: int, most: int | None = None) -> Iterator[dict[str, Any]]:
        """The rows of metrics up to a step, at most so many."""
        return islice((row for row in self.metrics() if row["step"] <= step), most)

    def rewind(self, step: int, rows: int | None = None) -> None:
        """Forget what was recorded after a step, and the rows of metrics behind the first so many
        (None: no row at that step or before it): a resumed run will record it again."""
        if self.metrics_file.exists():
            write_jsonl(self.metrics_file, self.rows_until(step, rows))
        if self.alerts_file.exists():
            alerts = _with_steps(self.alerts_file)
            write_jsonl(self.alerts_file, (row for row in alerts if row["step"] <= step))
        for file in self.rollout_files():
            if int(file.stem.removeprefix("step_")) > step:
                file.unlink()

    def traces(self) -> list[Path]:
        """Whatever shows that a run was here: its record, or else what a new one would mix with."""
        saved = (self.checkpoint_last, self.checkpoint_best)
        known = (self.run_file, self.metrics_file, *map(where_it_stands, saved))
        return [*filter(os.path.lexists, known), *self.checkpoints()]

    def checkpoints(self) -> list[Path]:
        """Every `checkpoint-N`, whole or not."""
        return [path for path in self.path.glob("checkpoint-*") if _CHECKPOINT.fullmatch(path.name)]

    def rollout_files(self) -> list[Path]:
        """Every `rollouts/step_N.jsonl`."""
        found = self.rollout_file(0).parent.glob("step_*.jsonl")
        return [path for path in found if _ROLLOUTS.fullmatch(path.name)]

    def entries(self) -> list[Path]:
        """All that a run writes, as far as it is there. Other files are not ours to move."""
        saved = (self.checkpoint_last, self.checkpoint_best)
        named = [self.run_file, self.config_file, self.metrics_file, self.alerts_file, *saved]
        named += [beside for folder in saved for beside in beside_while_replaced(folder)]
        parts = [path for path in self.path.glob(".*") if _UNFINISHED.fullmatch(path.name)]
        there = filter(os.path.lexists, named)
        return [*there, *parts, *self.checkpoints(), *self.rollout_files()]

    @contextmanager
    def recorded(self, *, clean: Callable[[str], str] = str, **entries: Any):
        """`run.json` from the first moment to the last, however the run ends.

        Error messages go through `clean`. `claimed` keeps room on the disk for the last entries.
        """
        started = time.monotonic() - self.seconds_so_far()
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
            if (self.path / MARK).exists():
                os.truncate(self.path / MARK, 0)
            seconds = time.monotonic() - started
            last_words = {
                "status": outcome.status,
                "reason": outcome.reason,
                "seconds": round(seconds, 1),
                "gpu_hours": round(seconds / 3600 * entries.get("gpus", 0), 4),
                "peak_memory_gib": self.peak_memory(),
            }
            self.update(**{**entries, **last_words, **outcome.entries})

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

    def settings(self) -> dict[str, Any]:
        """The settings that the run was started with, or resumed with last."""
        found = read_object(self.config_file).get("settings")
        if not isinstance(found, dict):
            raise ConfigurationError(
                f"{self.config_file} holds no settings; restore it, or start over with --overwrite"
            )
        return found

    def read(self) -> dict[str, Any]:
        return read_object(self.run_file)

    def append_metrics(self, row: dict[str, Any]) -> None:
        append_jsonl(self.metrics_file, row)

    def metrics(self) -> Iterator[dict[str, Any]]:
        """The logged rows, a half-written last line left out."""
        return _with_steps(self.metrics_file)


def _with_steps(file: Path) -> Iterator[dict[str, Any]]:
    """The rows of a JSONL file, each with the number of its step."""
    for number, row in enumerate(read_jsonl(file), start=1):
        if not isinstance(row.get("step"), int | float):
            raise ConfigurationError(
                f"{file}, row {number}, has no number as its step; restore the file, or start over "
                "with --overwrite"
            )
        yield row


def _reason(error: BaseException) -> str:
    known = None if isinstance(error, ConfigurationError) else in_words(error)
    return known or f"{type(error).__name__}: {error}"
