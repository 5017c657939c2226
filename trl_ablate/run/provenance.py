"""Where a run comes from: code, versions, machine. No torch."""

import os
import platform
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

STACK = ("trl-ablate", "trl", "transformers", "torch", "accelerate", "peft", "datasets", "vllm")

DIFF_LIMIT = 100_000
"""Characters of an uncommitted change that are kept with a run."""


def provenance() -> dict[str, Any]:
    """Where a run comes from: code, versions, machine."""
    return {
        "git": git_state(Path(__file__).parent),
        "versions": {name: found for name in STACK if (found := _version(name))},
        "python": platform.python_version(),
        "host": platform.node(),
        "cpus": os.cpu_count(),
        "started": utc_now(),
    }


def utc_now() -> str:
    """The time as records write it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def git_state(folder: Path) -> dict[str, str] | None:
    """Commit and uncommitted change of the code that ran; None outside a checkout."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    return {"commit": commit.strip(), "diff": _whole_lines(_git(folder, "diff", "HEAD") or "")}


def _whole_lines(diff: str) -> str:
    """The diff, cut at a line end if it is too long: half a token would not be masked."""
    return diff if len(diff) <= DIFF_LIMIT else diff[: diff.rfind("\n", 0, DIFF_LIMIT) + 1]


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *words],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=10,
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
