"""Runs the parts one after the other, each in its own process, within a budget. No torch.

`python -m trl_ablate.bench.gpu.part_runs PART DEVICE TOY FILE` is such a process; TOY is 0 or 1.
Results are written after every part, so that a run that was stopped can be continued.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from trl_ablate.bench.gpu.parts import PARTS, Found, NotHere, Part, Setup
from trl_ablate.errors import ConfigurationError
from trl_ablate.run.failures import message_of
from trl_ablate.run.json_files import read_object, write_json
from trl_ablate.run.provenance import provenance

LEAST = 5.0
"""Seconds of the budget that a part needs to be started."""
FINISHED = ("ok", "skipped")
"""Statuses of parts that a continued run does not repeat. A part that had no time left is not one
of them: it was not started."""


@dataclass
class Results:
    """The file of results, and what is in it."""

    file: Path
    setup: Setup
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def continued(cls, file: Path, setup: Setup) -> "Results":
        """The results of an earlier run, which must have been of the same device and size."""
        written = read_object(file) if file.exists() else {**vars(setup), "parts": {}}
        before = {name: written.get(name) for name in vars(setup)}
        if before != vars(setup) or not isinstance(written.get("parts"), dict):
            raise ConfigurationError(
                f"{file} holds no results of device {setup.device} with toy={setup.toy}; give the "
                "options of the first run, or another --output"
            )
        return cls(file, setup, written["parts"])

    def add(self, name: str, result: dict[str, Any]) -> None:
        self.parts[name] = result
        machines = (one.get("machine") for one in self.parts.values())
        machine = next(filter(None, machines), None)
        about = {"benchmark": "gpu", **vars(self.setup), "machine": machine}
        write_json(self.file, {**about, "parts": self.parts, **provenance()})

    def has(self, name: str) -> bool:
        return self.parts.get(name, {}).get("status") in FINISHED

    @property
    def all_well(self) -> bool:
        return all(map(self.has, self.parts))


def run(
    names: Iterable[str], results: Results, budget: float, *, tell: Callable[[str], object]
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
            tell(f"{name}: {PARTS[name].shows}")
            result = _run_one(name, results.setup, min(PARTS[name].seconds, left))
        results.add(name, result)
        because = f": {result['reason']}" if result.get("reason") else ""
        tell(f"{name}: {result['status']}, {result['seconds']:.0f} s{because}")


def _run_one(name: str, setup: Setup, seconds: float) -> dict[str, Any]:
    """Start a part and wait for its result; whatever it started is killed at its end."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="trl_ablate_gpu_") as folder:
        file, printed = Path(folder) / "result.json", Path(folder) / "log"
        with printed.open("wb") as log:
            process = fresh(name, setup, file, log)
            try:
                code: int | None = process.wait(timeout=seconds)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait(timeout=30)
        if code is None:
            result = _failed(f"not finished after {seconds:.0f} s; killed")
        else:
            result = read_object(file) if file.exists() else _failed(_without_result(code, printed))
    return {**result, "seconds": time.monotonic() - began}


def fresh(part: str, setup: Setup, result: Path, log: IO[bytes]) -> subprocess.Popen:
    """Start a part in a new interpreter and a session of its own; its result goes to the path, what
    it prints to the open file."""
    words = [part, setup.device, str(int(setup.toy)), str(result)]
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if setup.device == "cpu" else {}
    return subprocess.Popen(
        [sys.executable, "-m", __name__, *words],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env={**os.environ, "TRL_EXPERIMENTAL_SILENCE": "1", **hidden},
        start_new_session=True,
    )


def _without_result(code: int, printed: Path) -> str:
    lines = printed.read_text("utf-8", errors="replace").strip().splitlines()
    last = f"; its last line: {lines[-1][:200]}" if lines else ""
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    return f"{how} without a result{last}"


def _failed(reason: str) -> dict[str, Any]:
    return {"status": "failed", "reason": reason}


def measure_into(name: str, device: str, toy: str, file: str) -> None:
    """Run a part and write its result, which also says what went wrong."""
    part, setup = PARTS[name], Setup(device, toy == "1")
    try:
        check_card(part, setup)
        found: Found = getattr(import_module(part.home), name)(setup)
        wrong = "; ".join(check for check, holds in found.checks.items() if not holds)
        reason = f"does not hold: {wrong}" if wrong else ""
        result = {"status": "wrong" if wrong else "ok", "reason": reason, **vars(found)}
    except NotHere as missing:
        result = {"status": "skipped", "reason": str(missing)}
    except Exception as error:
        traceback.print_exc()
        result = _failed(message_of(error) or f"{type(error).__name__}: {error}".split("\n")[0])
    if "torch" in sys.modules:
        from trl_ablate.bench.timing import machine

        result["machine"] = machine()
    write_json(Path(file), result)


def check_card(part: Part, setup: Setup) -> None:
    """Skip a part at full size if the card is too small for it."""
    if setup.device == "cuda" and not setup.toy:
        import torch

        found = torch.cuda.get_device_properties(0).total_memory / 2**30
        if found < part.card:
            raise NotHere(f"the card has {found:.0f} GiB; this part needs {part.card:.0f}")


if __name__ == "__main__":
    measure_into(*sys.argv[1:])
