"""A run's folder, locked by one process at a time, and the former run in it. No torch.

The lock is taken before anything is written. A run that is to be overwritten is first moved into a
subfolder, and deleted once the new run has a trainer. A start that fails before then restores it;
after a kill, the next start does. A new run that is refused before its first step leaves nothing.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal

from trl_ablate.errors import ConfigurationError
from trl_ablate.run.directory import MARK, RunDirectory
from trl_ablate.run.folders import put_back
from trl_ablate.run.json_files import is_named

Mode = Literal["new", "resume", "overwrite"]

ASIDE = ".replaced"
"""Holds the complete former run; the files beside it belong to a new run."""
MOVING = ".replaced.part"
"""Holds a part of the former run; the other part is still beside it."""
GIVEN_UP = ".replaced.old"

RESERVE = 1 << 20
"""Bytes of the locked file: room for the last entries of `run.json` if the disk fills up."""


@contextmanager
def claimed(run: RunDirectory, mode: Mode) -> Iterator[None]:
    """Lock the folder of a run, or refuse: neither two processes nor two runs may write to it."""
    if run.path.exists() and not run.path.is_dir():
        raise ConfigurationError(f"{run.path} is a file; give another --output_dir")
    run.path.mkdir(parents=True, exist_ok=True)
    with _locked(run.path):
        _restore(run)
        left = run.traces()
        if left and mode == "new":
            raise ConfigurationError(
                f"{run.path} holds {_described(run, left)}; give another --output_dir, or "
                "--overwrite to replace it, or --resume to continue it"
            )
        if mode == "overwrite":
            _set_aside(run)
        try:
            yield
        except ConfigurationError:
            if mode == "new" and next(run.metrics(), None) is None:
                _remove(run)
            raise
        finally:
            _restore(run)


def give_up_former(run: RunDirectory) -> None:
    """Delete the run that was moved aside, once the new one has started."""
    if (run.path / ASIDE).exists():
        os.replace(run.path / ASIDE, run.path / GIVEN_UP)
    shutil.rmtree(run.path / GIVEN_UP, ignore_errors=True)


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


def _described(run: RunDirectory, left: list[Path]) -> str:
    if run.run_file in left:
        return f"a run already ({run.read().get('status', 'unknown')})"
    return f"what is left of a run ({left[0].name}, but no {run.run_file.name})"


def _set_aside(run: RunDirectory) -> None:
    _move(run, run.path / MOVING)
    os.replace(run.path / MOVING, run.path / ASIDE)


def _restore(run: RunDirectory) -> None:
    """Put back a run that was moved aside and not deleted; remove what a failed start has written.

    Each step leaves a state from which the next start can finish. Folders that a kill left half
    replaced are restored as well.
    """
    aside, moving = run.path / ASIDE, run.path / MOVING
    if aside.exists():
        _remove(run)
        os.replace(aside, moving)
    if moving.exists():
        _move(RunDirectory(moving), run.path)
        shutil.rmtree(moving)
    shutil.rmtree(run.path / GIVEN_UP, ignore_errors=True)
    for folder in (run.checkpoint_last, run.checkpoint_best):
        put_back(folder)


def _remove(run: RunDirectory) -> None:
    """Remove what a run writes, and nothing else."""
    for entry in run.entries():
        shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()


def _move(run: RunDirectory, to: Path) -> None:
    """Move what a run writes, and nothing else, into another folder of the same disk."""
    to.mkdir(exist_ok=True)
    for entry in run.entries():
        target = to / entry.relative_to(run.path)
        target.parent.mkdir(exist_ok=True)
        os.replace(entry, target)
