"""Folders of tests: what one holds, one that is made once, and small disks."""

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest


def contents(folder: Path) -> dict[str, str]:
    """Every file below a folder, with a hash of its bytes."""
    return {
        file.relative_to(folder).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def shared_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder that `make(folder)` fills in the first worker that asks; the others wait for it."""
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # each worker has a folder of its own in the session's
        base = base.parent
    folder = base / "shared" / name
    folder.parent.mkdir(exist_ok=True)
    made = folder.with_name(f"{name}.made")
    with folder.with_name(f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of one that failed
            folder.mkdir()
            make(folder)
            made.touch()
    return folder


def mount(folder: Path, options: str) -> None:
    """Mount a disk in memory at the folder, or remount it."""
    folder.mkdir(exist_ok=True)
    words = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if subprocess.run(words, capture_output=True).returncode != 0:
        pytest.skip("a small disk can be mounted by root alone")


def unmount(folder: Path) -> None:
    """Unmount what was mounted there, if anything."""
    while folder.is_mount():
        subprocess.run(["umount", str(folder)], check=True)
