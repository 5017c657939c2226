"""A run's folder, held by one process at a time, and the run that was in it before. No torch.

The lock is taken before anything is written. A run that is to be overwritten is moved aside, into
a folder beside its files, and given up once the new one has a trainer; a start that fails before
puts it back, and so does the next start after a kill.
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

Mode = Literal["new", "resume", "overwrite"]

ASIDE = ".replaced"
"""The former run, whole; what lies beside it is of a new one."""
MOVING = ".replaced.part"
"""A part of the former run; the other part lies beside it."""
GIVEN_UP = ".replaced.old"

RESERVE = 1 << 20
"""Bytes of the locked file: room for the last entries of `run.json` if the disk fills up."""


@contextmanager
def claimed(run: RunDirectory, mode: Mode) -> Iterator[None]:
    """Hold the folder of a run, or refuse: two processes never write to it, nor two runs."""
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
        finally:
            _restore(run)


def give_up_former(run: RunDirectory) -> None:
    """Delete the run that was moved aside: the new one has started."""
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
    if _is_current(mark, folder / MARK):
        return mark
    mark.close()  # the process that held it has removed it in between
    return _lock(folder)


def _is_current(mark: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(mark.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _described(run: RunDirectory, left: list[Path]) -> str:
    if run.run_file in left:
        return f"a run already ({run.read().get('status', 'unknown')})"
    return f"what is left of a run ({left[0].name}, but no {run.run_file.name})"


def _set_aside(run: RunDirectory) -> None:
    _move(run, run.path / MOVING)
    os.replace(run.path / MOVING, run.path / ASIDE)


def _restore(run: RunDirectory) -> None:
    """The run that was moved aside and not given up comes back, in the place of a failed start.

    Each step leaves a state from which the next start finishes it. Folders that a kill has left
    half replaced are put back, too.
    """
    aside, moving = run.path / ASIDE, run.path / MOVING
    if aside.exists():
        for entry in run.entries():
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        os.replace(aside, moving)
    if moving.exists():
        _move(RunDirectory(moving), run.path)
        shutil.rmtree(moving)
    shutil.rmtree(run.path / GIVEN_UP, ignore_errors=True)
    for folder in (run.checkpoint_last, run.checkpoint_best):
        put_back(folder)


def _move(run: RunDirectory, to: Path) -> None:
    """Move what a run writes, and nothing else, into another folder of the same disk."""
    to.mkdir(exist_ok=True)
    for entry in run.entries():
        target = to / entry.relative_to(run.path)
        target.parent.mkdir(exist_ok=True)
        os.replace(entry, target)
