"""What identifies a run: its settings, the code that ran, and the machine. No torch.

A run is defined by what it computes. Settings of its place, of saving, logging and publishing, and
of the machine may change from one start to the next; each change is recorded in `run.json`. Any
other change makes another run.
"""

import json
import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trl_ablate.errors import ConfigurationError
from trl_ablate.switches import named

STACK = ("trl-ablate", "trl", "transformers", "torch", "accelerate", "peft", "datasets", "vllm")

DIFF_LIMIT = 100_000
"""Characters of an uncommitted change that are kept with a run."""

NOT_WRITTEN = {"evaluation": "one_shot"}
"""What the records of runs do not contain that were made when it was the default. To keep the ids
of these runs, `portable` leaves it out of later records, too."""

MINIATURE = "miniature"
SUMS = f"{MINIATURE}/sums"
"""Runs on this world keep the ids that they had when it was the only one, and had no name."""


def portable(settings: Mapping[str, Any], files: Mapping[str, str]) -> dict[str, Any]:
    """The settings with the text that identifies each file in place of where the file is (absolute
    path -> that text), the world of sums by its former name, and without `NOT_WRITTEN`."""
    return {key: _portable(value, files) for key, value in settings.items()
            if (key, value) not in NOT_WRITTEN.items()}  # fmt: skip


def _portable(value: Any, files: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {key: _portable(one, files) for key, one in value.items()}
    if isinstance(value, list):
        return [_portable(one, files) for one in value]
    if not isinstance(value, str):
        return value
    if value == SUMS or value.startswith(f"{SUMS}/"):
        return MINIATURE + value.removeprefix(SUMS)
    world = value.startswith(f"{MINIATURE}/")  # the file of a world, and perhaps a stage
    file, end = (value.removeprefix(f"{MINIATURE}/"), "/") if world else (value, ":")
    path = next((one for one in files if file == one or file.startswith(one + end)), None)
    return value if path is None else value.replace(path, files[path], 1)


def changed_settings(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Every setting that differs: key -> [old, new]. Absent is null."""
    before, now = (json.loads(json.dumps(each, default=str)) for each in (before, now))
    return {
        key: [before.get(key), now.get(key)]
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
    }


def changed_batches(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, list[int]]:
    """Which batches differ between two configurations, however a machine divides them: key ->
    [old, new] completions, over all processes; nothing if the older one was not written."""

    def batches(config: Mapping[str, Any]) -> dict[str, int]:
        rollout = config["generation_batch_size"]
        microbatch = rollout // config["steps_per_generation"]
        together = microbatch * config["gradient_accumulation_steps"]
        return {"generation_batch_size": rollout, "optimizer_batch_size": together}

    return changed_settings(batches(before), batches(now)) if before else {}


def check_same_run(folder: object, changed: Mapping[str, list[Any]], schedule: str) -> None:
    """Refuse to resume with settings that make another run. A run can be made longer or shorter if
    the learning rate does not depend on its length."""
    longer = schedule == "constant"
    free = {*named("place", "record", "machine"), *(named("length") if longer else ())}
    kept = {key: values for key, values in changed.items()
            if key not in free and not key.startswith("guard_")}  # fmt: skip
    if kept:
        raise ConfigurationError(
            f"the run in {folder} cannot be resumed with other settings ({described(kept)}): that "
            "is another run; resume it with the settings it was started with, or give another "
            "--output_dir"
        )


def described(changed: Mapping[str, list[Any]]) -> str:
    return ", ".join(f"{key} {old} -> {new}" for key, (old, new) in changed.items())


def provenance() -> dict[str, Any]:
    """Where a run comes from: code, versions, machine."""
    import platform  # as importlib.metadata below, slow to import, and only a start needs it

    return {
        "git": git_state(Path(__file__).parents[1]),
        "versions": {name: found for name in STACK if (found := version_of(name))},
        "python": platform.python_version(),
        "host": platform.node(),
        "cpus": os.cpu_count(),
        "started": utc_now(),
    }


def cores() -> int:
    """Those that this process may use."""
    known = hasattr(os, "sched_getaffinity")  # not on macOS
    return len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1


def utc_now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def git_state(folder: Path) -> dict[str, str] | None:
    """Commit and uncommitted change of the code that ran, new files by name; None outside a
    checkout, also where it is installed into somebody's."""
    if _git(folder, "ls-files", "--error-unmatch", ".") is None:
        return None
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    diff = _git(folder, "diff", "HEAD") or ""
    new = _git(folder, "ls-files", "--others", "--exclude-standard", "--", "*.py") or ""
    diff = "".join(f"untracked: {name}\n" for name in new.splitlines()) + diff
    if len(diff) > DIFF_LIMIT:
        diff = diff[: diff.rfind("\n", 0, DIFF_LIMIT) + 1]  # half a token would not be masked
    return {"commit": commit.strip(), "diff": diff}


def _git(folder: Path, *words: str) -> str | None:
    how: dict[str, Any] = {"capture_output": True, "text": True, "errors": "replace"}
    try:
        done = subprocess.run(["git", *words], cwd=folder, timeout=10, **how)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def version_of(package: str) -> str | None:
    """The version of an installed distribution."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None
