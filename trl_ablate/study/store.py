"""The folder of runs that studies share: each run's state, and its lock. No torch.

    runs/<arm>-<hash>-seed<k>/ a run directory; a hash of its settings and the seed are its id, and
                               its arm is one of those that share it; in older stores no arm
    runs/<hash>-seed<k>.lock   held by the run's process and by the process that started it
    runs/<hash>-seed<k>.log    output of the process, all attempts
    runs/<hash>-seed<k>.away   where to find a run that continues on another machine
    runs/studies/<name>.json   the plans

A lock is an flock: the kernel releases it when the last process that holds it ends, for any
reason. The training process inherits it, so the run stays locked if the runner is killed.
"""

import fcntl
import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trl_ablate.errors import ConfigurationError
from trl_ablate.run.directory import INTERRUPTED, RunDirectory
from trl_ablate.run.identity import portable
from trl_ablate.run.json_files import is_named, read_object
from trl_ablate.study.planned import identity

Status = Literal["to do", "running", "interrupted", "finished", "stopped", "failed"]
DONE: tuple[Status, ...] = ("finished", "stopped")
"""Runs with one of these statuses have a result; all others still have to be done."""

FOLDER = re.compile(r"\.?(?P<name>(?:.+-)?(?P<id>[0-9a-f]{10}-seed-?\d+))(?:\.old)?")
"""A run's folder, or what is left of it if a kill came while it was replaced (see `folders`)."""
SECONDS_OF_A_LOOK = 0.05
CLOCK_TICK = 100_000_000
"""Nanoseconds in which two changes of a folder can have the same time."""


@dataclass(frozen=True)
class State:
    """The status of a run, and its record (`run.json`)."""

    status: Status
    reason: str | None
    record: dict[str, Any]

    @property
    def done(self) -> bool:
        return self.status in DONE

    @property
    def is_another(self) -> bool:
        """Whether it is finished, but with other settings."""
        return self.status == "to do" and bool(self.record)

    @property
    def damaged(self) -> bool:
        """Whether its files cannot be read. It may have finished, so nothing replaces it."""
        return self.status == "failed" and not self.record


def id_of(folder: str) -> str:
    """The id in the name of a run's folder."""
    match = FOLDER.fullmatch(folder)
    return match["id"] if match else folder


def bytes_in(path: Path) -> int:
    """The size of a file, or of all files in a folder."""
    files = [path] if path.is_file() else filter(Path.is_file, path.rglob("*"))
    return sum(file.stat().st_size for file in files)


class RunLock:
    """The lock of one run."""

    def __init__(self, path: Path):
        self._path = path
        self._descriptor: int | None = None

    @property
    def descriptor(self) -> int:
        """The file descriptor that the run's process inherits."""
        assert self._descriptor is not None, f"{self._path} is not held"
        return self._descriptor

    def acquire(self, *, tries: int = 3) -> bool:
        """Whether this process now holds it. A look at the run (`RunStore.state`) also holds it for
        a moment, so one try says little."""
        while not self._try():
            tries -= 1
            if not tries:
                return False
            time.sleep(SECONDS_OF_A_LOOK)
        return True

    def _try(self) -> bool:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        if not is_named(descriptor, self._path):  # cleaning up has removed it
            os.close(descriptor)
            return self._try()
        self._descriptor = descriptor
        return True

    def remove(self) -> None:
        """Remove the file and release the lock. Call it only while holding the lock."""
        self._path.unlink(missing_ok=True)
        self.release()

    def release(self) -> None:
        """Release the lock in this process; a process that inherited it still holds it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class RunStore:
    """The runs in one folder, by id."""

    def __init__(self, path: Path):
        self.path = path
        self._folders: dict[str, list[str]] = {}
        self._listed: int | None = None

    @property
    def plans(self) -> Path:
        return self.path / "studies"

    def directory(self, run_id: str, new: str | None = None) -> RunDirectory:
        """The folder that has this id, whichever arm named it; without one, `new`."""
        self._list()
        name, *copies = self._folders.get(run_id) or [new or run_id]
        if copies:
            raise ConfigurationError(
                f"{self.path} has two folders of the run {run_id}: {name} and {copies[0]}; move "
                "one elsewhere"
            )
        return RunDirectory(self.path / name)

    def _list(self) -> None:
        """Read the names of the folders again, unless none has come or gone since then."""
        changed = self.path.stat().st_mtime_ns if self.path.is_dir() else 0
        if changed == self._listed:
            return
        names = sorted(os.listdir(self.path)) if changed else []
        names = [name for name in names if not name.startswith("._")]  # of macOS, beside a copy
        found = {match["name"]: match["id"] for match in map(FOLDER.fullmatch, names) if match}
        self._folders = {}
        for name, run_id in found.items():
            self._folders.setdefault(run_id, []).append(name)
        settled = time.time_ns() - changed > CLOCK_TICK
        self._listed = changed if settled else None

    def log(self, run_id: str) -> Path:
        return self.path / f"{run_id}.log"

    def away(self, run_id: str) -> Path:
        return self.path / f"{run_id}.away"

    def away_by_engine(self, run_ids: Iterable[str]) -> dict[str, list[str]]:
        """Runs that an engine does elsewhere, by its name; early notes of Modal have none."""
        found: dict[str, list[str]] = {}
        for run_id in run_ids:
            engine = read_object(self.away(run_id)).get("engine", "modal")
            found.setdefault(str(engine), []).append(run_id)
        return found

    def lock(self, run_id: str) -> RunLock:
        return RunLock(self.path / f"{run_id}.lock")

    def state(self, run_id: str) -> State:
        """The state of a run, from its folder and from whether a process is using it."""
        state = self.state_unlocked(run_id)
        if not state.done and (self._in_use(run_id) or self.away(run_id).exists()):
            return State("running", None, state.record)
        return state

    def state_unlocked(self, run_id: str) -> State:
        """The state for a caller that holds the lock, so that no other process uses the run. One
        whose files cannot be read has failed; so other runs go on."""
        try:
            return self._recorded(run_id)
        except FileNotFoundError:  # a new attempt is about to replace it
            return State("to do", None, {})
        except ConfigurationError as error:
            what, folder = str(error).rpartition("; ")[0], self.directory(run_id).path
            remedy = f"restore it, or remove the folder {folder} to do the run anew"
            return State("failed", f"{what}; {remedy}", {})

    def _recorded(self, run_id: str) -> State:
        directory = self.directory(run_id)
        if not directory.run_file.exists():
            return State("to do", None, {})
        record = directory.read()
        status, reason = record.get("status"), record.get("reason")
        is_another = not self.is_what_it_is_called(run_id)
        if status == "failed":
            return State(status, reason, record)
        if status not in DONE or reason in INTERRUPTED:
            return State("interrupted", reason, record)
        if is_another:
            what = "its folder contains a run with other settings, of a recipe that was edited "
            return State("to do", f"{what}meanwhile; start the study again", record)
        return State(status, reason, record)

    def _in_use(self, run_id: str) -> bool:
        try:
            with (self.path / f"{run_id}.lock").open() as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def is_what_it_is_called(self, run_id: str) -> bool:
        """Whether the settings match the id; they differ if a recipe was edited after planning."""
        file = self.directory(run_id).config_file
        written = read_object(file) if file.exists() else {}
        settings, files = written.get("settings"), written.get("files") or {}
        same = isinstance(settings, dict) and identity(portable(settings, files))
        return bool(same) and run_id.startswith(f"{same}-")
