"""Runs the parts one after the other, each in its own process, within a budget. No torch.

The results are written after every part, so that a run that was stopped can be continued.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from trl_ablate.bench.gpu.registry import PARTS, Part, Setup
from trl_ablate.errors import ConfigurationError
from trl_ablate.run.json_files import read_object, write_json
from trl_ablate.run.provenance import provenance

FINISHED = ("ok", "skipped")
"""Statuses of parts that a continued run does not repeat. A part that had no time left is not one
of them: it was not started."""

LEAST = 5.0
"""Seconds of the budget that a part needs to be started."""


class Process(Protocol):
    """A process in a session of its own; `wait` raises `subprocess.TimeoutExpired`."""

    pid: int

    def wait(self, timeout: float | None = None) -> int: ...


Start = Callable[[str, Setup, Path, IO[bytes]], Process]
"""Starts a part; its result goes to the path, what it prints to the open file."""


def fresh(part: str, setup: Setup, result: Path, log: IO[bytes]) -> Process:
    """A new interpreter. On a CPU it sees no GPU, so that all code takes the CPU's way."""
    words = [part, setup.device, str(int(setup.toy)), str(result)]
    return subprocess.Popen(
        [sys.executable, "-m", "trl_ablate.bench.gpu.one", *words],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=environment(setup),
        start_new_session=True,
    )


def environment(setup: Setup) -> dict[str, str]:
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if setup.device == "cpu" else {}
    return {**os.environ, "TRL_EXPERIMENTAL_SILENCE": "1", **hidden}


@dataclass
class Results:
    """The file of results, and what is in it."""

    file: Path
    setup: Setup
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def continued(cls, file: Path, setup: Setup) -> "Results":
        """The results of an earlier run, which must have been of the same device and size."""
        if not file.exists():
            return cls(file, setup)
        written = read_object(file)
        before = (written.get("device"), written.get("toy"))
        if before != (setup.device, setup.toy) or not isinstance(written.get("parts"), dict):
            raise ConfigurationError(
                f"{file} holds no results of device {setup.device} with toy={setup.toy}; give the "
                "options of the first run, or another --output"
            )
        return cls(file, setup, written["parts"])

    def add(self, name: str, result: dict[str, Any]) -> None:
        self.parts[name] = result
        machines = (one.get("machine") for one in self.parts.values())
        write_json(
            self.file,
            {
                "benchmark": "gpu",
                "device": self.setup.device,
                "toy": self.setup.toy,
                "machine": next(filter(None, machines), None),
                "parts": self.parts,
                **provenance(),
            },
        )

    def has(self, name: str) -> bool:
        return self.parts.get(name, {}).get("status") in FINISHED

    @property
    def all_well(self) -> bool:
        return all(one["status"] in FINISHED for one in self.parts.values())


def run(
    names: Iterable[str],
    results: Results,
    budget: float,
    *,
    start: Start = fresh,
    parts: Mapping[str, Part] = PARTS,
    tell: Callable[[str], object] = lambda line: None,
) -> None:
    """Run the parts that have no result yet; `tell` prints a line before and after each."""
    ends = time.monotonic() + budget
    for name in names:
        if results.has(name):
            continue
        left = ends - time.monotonic()
        if left < LEAST:
            reason = f"the budget of {budget:g} s is used up"
            result: dict[str, Any] = {"status": "not run", "reason": reason, "seconds": 0.0}
        else:
            tell(f"{name}: {parts[name].shows}")
            result = run_one(name, results.setup, min(parts[name].seconds, left), start)
        results.add(name, result)
        because = f": {result['reason']}" if result.get("reason") else ""
        tell(f"{name}: {result['status']}, {result['seconds']:.0f} s{because}")


def run_one(name: str, setup: Setup, seconds: float, start: Start) -> dict[str, Any]:
    """Start a part and wait for its result; whatever it started is killed at its end."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="trl_ablate_gpu_") as folder:
        file, printed = Path(folder) / "result.json", Path(folder) / "log"
        with printed.open("wb") as log:
            process = start(name, setup, file, log)
            try:
                code: int | None = process.wait(timeout=seconds)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                _kill(process)
        result = _result(code, file, printed, seconds)
    return {**result, "seconds": time.monotonic() - began}


def _kill(process: Process) -> None:
    """Kill the process and all of its session's group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=30)


def _result(code: int | None, file: Path, printed: Path, seconds: float) -> dict[str, Any]:
    if code is None:
        return {"status": "failed", "reason": f"not finished after {seconds:.0f} s; killed"}
    if file.exists():
        return read_object(file)
    lines = printed.read_text("utf-8", errors="replace").strip().splitlines()
    last = f"; its last line: {lines[-1][:200]}" if lines else ""
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    return {"status": "failed", "reason": f"{how} without a result{last}"}


def check_names(names: Sequence[str]) -> None:
    if wrong := [name for name in names if name not in PARTS]:
        raise ConfigurationError(f"'{wrong[0]}' is not a part of bench gpu; use {', '.join(PARTS)}")
