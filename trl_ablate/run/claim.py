"""A run's folder, locked by one process at a time. No torch.

The lock is taken before anything is written. An earlier run in the folder stays as it is until the
new start has a trainer; then `delete` removes it if it is to be overwritten. A start that is
refused before its first step leaves nothing in an empty folder.

filelock is not used: its lock would pass to forked graders, and opening it would empty the file.
"""

import fcntl
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

RESERVE = 1 << 20
"""Bytes of the locked file: room for the last entries of `run.json` if the disk fills up."""


@contextmanager
def claimed(run: RunDirectory, mode: Mode) -> Iterator[None]:
    """Lock the folder of a run, or refuse: neither two processes nor two runs may write to it."""
    if run.path.exists() and not run.path.is_dir():
        raise ConfigurationError(f"{run.path} is a file; give another --output_dir")
    run.path.mkdir(parents=True, exist_ok=True)
    with _locked(run.path):
        for folder in (run.checkpoint_last, run.checkpoint_best):
            put_back(folder)
        earlier = run.traces()
        if earlier and mode == "new":
            raise ConfigurationError(
                f"{run.path} holds {_described(run, earlier)}; give another --output_dir, or "
                "--overwrite to replace it, or --resume to continue it"
            )
        try:
            yield
        except ConfigurationError:
            if not earlier and next(run.metrics(), None) is None:
                delete(run)
            raise


def delete(run: RunDirectory) -> None:
    """Delete what a run writes, and nothing else.

    Its record goes first: if a kill comes in between, the rest is recognised as no run, and the
    next start with --overwrite deletes it.
    """
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


def _described(run: RunDirectory, left: list[Path]) -> str:
    if run.run_file in left:
        return f"a run already ({run.read().get('status', 'unknown')})"
    return f"what is left of a run ({left[0].name}, but no {run.run_file.name})"
