"""Small disks of their own for tests of full and read-only ones."""

import subprocess
from pathlib import Path

import pytest


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
