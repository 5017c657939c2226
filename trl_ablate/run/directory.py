"""The run directory: what a run writes, and how it is read. No torch.

    resolved_config.json     all resolved settings
    run.json                 status, reason, recipe, arm, seed, git, versions, host, time, memory
    metrics.jsonl            one object per logged step
    alerts.jsonl             alerts of the guard
    rollouts/                prompts and completions, one file per evaluated step
    completions/             those of TRL, with log_completions
    README.md                TRL's model card
    checkpoint-N/            TRL's checkpoints
    checkpoint_last/         the model at the end
    checkpoint_best/         the model of the best evaluation

JSON files are written atomically; JSONL is appended line by line. Both are readable after a kill at
any moment.

One process at a time uses the folder: it is `claimed` before anything is written. An earlier run in
it stays as it is until the new start has a trainer; then `delete` removes it if it is to be
overwritten. A start that is refused before its first step leaves nothing in an empty folder.
filelock is not used: its lock would pass to forked graders, and opening it would empty the file.
"""

import fcntl
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Literal

from trl_ablate.errors import ConfigurationError
from trl_ablate.run.failures import message_of
from trl_ablate.run.folders import put_back, where_it_stands
from trl_ablate.run.identity import portable
from trl_ablate.run.json_files import (
    append_jsonl,
    finite,
    is_named,
    read_jsonl,
    read_object,
    write_json,
    write_jsonl,
)
from trl_ablate.run.termination import Terminated

KEYBOARD = "interrupted from the keyboard"
PREEMPTED = "ended by SIGTERM"
INTERRUPTED = (KEYBOARD, PREEMPTED)
"""Reasons of a run that was stopped from outside, not by a rule, and can be resumed."""

OF_A_STOP = ("diverged_at", "rule", "step", "value", "reference")
"""Entries of `run.json` about a stop, which a resumed run loses."""

MARK = ".running"
"""A file that exists and is locked while a process uses the run."""
RESERVE = 1 << 20
"""Its bytes."""

Mode = Literal["new", "resume", "overwrite"]

CARD = b"generated_from_trainer"
"""A tag of TRL's model card, which is written with every numbered checkpoint."""

_ROLLOUTS = re.compile(r"step_\d+\.jsonl")
_UNFINISHED = re.compile(
    r"\.(run|resolved_config|metrics|alerts)\.jsonl?\.\d+|\.checkpoint_(last|best)\.(part|old)"
)
"""Temporary files and folders that a kill leaves behind."""


def is_checkpoint(path: Path) -> bool:
    """Whether it is a `checkpoint-N`; `checkpoint-2.bak` is a folder of the user."""
    return re.fullmatch(r"checkpoint-\d+", path.name) is not None


@dataclass
class Outcome:
    """How a run ended: finished, unless something stopped it before its last step."""

    status: str = "finished"
    reason: str | None = None
    entries: dict[str, Any] = field(default_factory=dict)

    def stopped(self, reason: str, **entries: Any) -> None:
        self.status, self.reason, self.entries = "stopped", reason, finite(entries)


class _Below:
    def __init__(self, name: str):
        self._name = name

    def __get__(self, run: "RunDirectory", owner: type) -> Path:
        return run.path / self._name


@dataclass(frozen=True)
class RunDirectory:
    """A run's folder, and the name of every path in it."""

    path: Path

    config_file = _Below("resolved_config.json")
    run_file = _Below("run.json")
    metrics_file = _Below("metrics.jsonl")
    alerts_file = _Below("alerts.jsonl")
    checkpoint_last = _Below("checkpoint_last")
    checkpoint_best = _Below("checkpoint_best")

    def best(self) -> dict[str, Any] | None:
        """Metric, value and step of `checkpoint_best`; None where there is none yet."""
        file = where_it_stands(self.checkpoint_best) / "best.json"
        return read_object(file) if file.exists() else None

    def rollout_file(self, step: int) -> Path:
        return self.path / "rollouts" / f"step_{step:06d}.jsonl"

    def write_rollouts(self, step: int, rows: list[dict[str, Any]]) -> None:
        file = self.rollout_file(step)
        file.parent.mkdir(exist_ok=True)
        write_jsonl(file, rows)

    def rows_until(self, step: int, most: int | None = None) -> Iterator[dict[str, Any]]:
        """The rows of metrics up to a step, at most `most` of them."""
        return islice((row for row in self.metrics() if row["step"] <= step), most)

    def rewind(self, step: int, rows: int | None = None) -> None:
        """Delete what was recorded after a step. Of the rows of metrics up to it, keep the first
        `rows` (None: all). A resumed run will record the rest again."""
        if self.metrics_file.exists():
            write_jsonl(self.metrics_file, self.rows_until(step, rows))
        if self.alerts_file.exists():
            alerts = _with_steps(self.alerts_file)
            write_jsonl(self.alerts_file, (row for row in alerts if row["step"] <= step))
        for file in self.rollout_files():
            if int(file.stem.removeprefix("step_")) > step:
                file.unlink()

    def traces(self) -> list[Path]:
        """Traces of an earlier run: its record, or files that would mix with those of a new run. A
        start that was killed before it had a record leaves none."""
        saved = map(where_it_stands, (self.checkpoint_last, self.checkpoint_best))
        known = (self.run_file, self.metrics_file, *saved, *self.checkpoints())
        return [*filter(os.path.lexists, known)]

    def checkpoints(self) -> list[Path]:
        """Every `checkpoint-N`, whole or not."""
        return [path for path in self.path.glob("checkpoint-*") if is_checkpoint(path)]

    def rollout_files(self) -> list[Path]:
        found = self.rollout_file(0).parent.glob("step_*.jsonl")
        return [path for path in found if _ROLLOUTS.fullmatch(path.name)]

    def entries(self) -> list[Path]:
        """Every existing path that a run writes: its record first, its traces last. Other files are
        the user's and stay in place."""
        parts = [path for path in self.path.glob(".*") if _UNFINISHED.fullmatch(path.name)]
        parts += self.rollout_file(0).parent.glob(".step_*.jsonl.*")
        named = [self.run_file, self.config_file, self.alerts_file, *self.rollout_files(), *parts]
        named += [self.checkpoint_last, self.checkpoint_best, self.metrics_file]
        named += self.path.glob("completions/completions_*.parquet")
        cards = filter(Path.is_file, self.path.glob("README.md"))
        named += [card for card in cards if CARD in card.read_bytes()]
        return [*filter(os.path.lexists, [*named, *self.checkpoints()])]

    def others(self) -> Iterator[Path]:
        """All other paths in its folder: files of the user, and folders of either."""
        written = {*self.entries(), self.path / MARK}
        return (at for at in self.path.rglob("*") if not written & {at, *at.parents})

    @contextmanager
    def recorded(self, *, clean: Callable[[str], str] = str, **entries: Any):
        """Keep `run.json` up to date from the start of the run to its end, however it ends; `clean`
        masks error messages."""
        record, before = self.record(), self.seconds_so_far()
        since = before - record.get("seconds", 0.0)  # on the GPUs that were recorded
        hours = record.get("gpu_hours", 0.0) + since / 3600 * record.get("gpus", 0)
        so_far = {"seconds": before, "seconds_before": before, "gpu_hours": hours} if before else {}
        kept = {key: value for key, value in record.items() if key not in OF_A_STOP}
        write_json(self.run_file, kept | {"status": "running", "reason": None, **so_far, **entries})
        started = time.monotonic()
        outcome = Outcome()
        try:
            yield outcome
        except KeyboardInterrupt as error:
            outcome.stopped(PREEMPTED if isinstance(error, Terminated) else KEYBOARD)
            raise
        except BaseException as error:
            known = None if isinstance(error, ConfigurationError) else message_of(error)
            outcome.status, outcome.entries = "failed", {}
            outcome.reason = clean(known or f"{type(error).__name__}: {error}")
            raise
        finally:
            if (self.path / MARK).exists():
                os.truncate(self.path / MARK, 0)  # which makes room on a full disk
            seconds = time.monotonic() - started
            entries |= {
                "status": outcome.status,
                "reason": outcome.reason,
                "seconds": round(before + seconds, 1),
                "gpu_hours": round(hours + seconds / 3600 * entries.get("gpus", 0), 4),
                "peak_memory_gib": self.peak_memory(),
            }
            self.update(**(entries | outcome.entries))

    def seconds_so_far(self) -> float:
        """Seconds that a resumed run has already taken, by its logged rows."""
        return max((row.get("seconds", 0.0) for row in self.metrics()), default=0.0)

    def peak_memory(self) -> float | None:
        """The highest logged peak, in GiB; None if none was logged."""
        peaks = (row[key] for row in self.metrics() for key in row if key.startswith("memory/peak"))
        return max((peak for peak in peaks if peak is not None), default=None)

    def write_config(self, resolved: dict[str, Any]) -> None:
        write_json(self.config_file, resolved)

    def update(self, **entries: Any) -> None:
        write_json(self.run_file, self.record() | entries)

    def settings(self) -> dict[str, Any]:
        """The settings that the run was started with, or resumed with last; files by content."""
        written = read_object(self.config_file)
        found, files = written.get("settings"), written.get("files") or {}
        if not isinstance(found, dict):
            raise ConfigurationError(
                f"{self.config_file} holds no settings; restore it, or start over with --overwrite"
            )
        return portable(found, files)

    def read(self) -> dict[str, Any]:
        return read_object(self.run_file)

    def record(self) -> dict[str, Any]:
        """The same; empty where there is none yet."""
        return self.read() if self.run_file.exists() else {}

    def append_metrics(self, row: dict[str, Any]) -> None:
        append_jsonl(self.metrics_file, row)

    def metrics(self) -> Iterator[dict[str, Any]]:
        """The logged rows, without a half-written last line."""
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


@contextmanager
def claimed(run: RunDirectory, mode: Mode) -> Iterator[None]:
    """Lock the folder of a run, or refuse: neither two processes nor two runs may write to it."""
    if run.path.exists() and not run.path.is_dir():
        raise ConfigurationError(f"{run.path} is a file; give another --output_dir")
    try:
        run.path.mkdir(parents=True, exist_ok=True)
    except FileNotFoundError:
        raise ConfigurationError(
            f"{run.path} cannot be created; give another --output_dir"
        ) from None
    with _locked(run.path):
        for folder in (run.checkpoint_last, run.checkpoint_best):
            put_back(folder)
        earlier = run.traces()
        if earlier and mode == "new":
            held = f"what is left of a run ({earlier[0].name}, but no {run.run_file.name})"
            if run.run_file in earlier:
                held = f"a run already ({run.read().get('status', 'unknown')})"
            raise ConfigurationError(
                f"{run.path} holds {held}; give another --output_dir, or --overwrite to replace "
                "it, or --resume to continue it"
            )
        try:
            yield
        except ConfigurationError:
            if not earlier and next(run.metrics(), None) is None:
                delete(run)
            raise


def delete(run: RunDirectory) -> None:
    """Delete what a run writes, and nothing else. Its record goes first: after a kill in between,
    the rest is recognised as no run, and the next start with --overwrite deletes it."""
    for entry in run.entries():
        shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    mark = _lock(folder)
    try:
        mark.write(bytes(max(0, RESERVE - mark.tell())))
        mark.flush()
        yield
    finally:
        (folder / MARK).unlink(missing_ok=True)
        mark.close()


def _lock(folder: Path) -> BinaryIO:
    """The locked file; forked children do not inherit the lock."""
    mark = (folder / MARK).open("ab")
    try:
        fcntl.lockf(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        mark.close()
        raise ConfigurationError(
            f"run {folder} is in use by another process; wait for it or stop it (the processes of "
            "a launcher that was killed may still run), or give another --output_dir"
        ) from error
    if is_named(mark.fileno(), folder / MARK):
        return mark
    mark.close()  # the process that held the lock has removed the file
    return _lock(folder)
