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
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from trl_ablate.bench.gpu.parts import PARTS, Found, NotHere, Results, Setup
from trl_ablate.run.failures import message_of
from trl_ablate.run.json_files import read_object, write_json

LEAST = 5.0
"""Seconds of the budget that a part needs to be started."""


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


def run(
    names: Iterable[str],
    results: Results,
    budget: float,
    *,
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


def _without_result(code: int, printed: Path) -> str:
    lines = printed.read_text("utf-8", errors="replace").strip().splitlines()
    last = f"; its last line: {lines[-1][:200]}" if lines else ""
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    return f"{how} without a result{last}"


def _failed(reason: str) -> dict[str, Any]:
    return {"status": "failed", "reason": reason}


def measure_into(part: str, device: str, toy: bool, file: str, home: str | None = None) -> None:
    """Run a part and write its result, which also says what went wrong."""
    setup = Setup(device, toy)
    try:
        check_card(part, setup)
        room = import_module(home or f"{__package__}.{PARTS[part].home}")
        result = result_of(getattr(room, part)(setup))
    except NotHere as missing:
        result = {"status": "skipped", "reason": str(missing)}
    except Exception as error:
        traceback.print_exc()
        result = _failed(message_of(error) or f"{type(error).__name__}: {error}".split("\n")[0])
    write_json(Path(file), result | {"machine": _machine()})


def check_card(part: str, setup: Setup) -> None:
    """Skip a part at full size if the card is too small for it."""
    if setup.device == "cuda" and not setup.toy:
        import torch

        found = torch.cuda.get_device_properties(0).total_memory / 2**30
        if found < PARTS[part].card:
            raise NotHere(f"the card has {found:.0f} GiB; this part needs {PARTS[part].card:.0f}")


def result_of(found: Found) -> dict[str, Any]:
    wrong = [check for check, holds in found.checks.items() if not holds]
    return {
        "status": "wrong" if wrong else "ok",
        "reason": f"does not hold: {'; '.join(wrong)}" if wrong else "",
        **vars(found),
    }


def _machine() -> str | None:
    """The machine, if torch has been imported; a part that imports none leaves it to others."""
    if "torch" not in sys.modules:
        return None
    from trl_ablate.bench.timing import machine

    return machine()


if __name__ == "__main__":
    name, device, toy, file = sys.argv[1:]
    measure_into(name, device, bool(int(toy)), file)
