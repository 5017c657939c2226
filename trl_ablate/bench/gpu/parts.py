"""The parts of `trl-ablate bench gpu`, most telling first; each runs in its own process, within a
budget, and its results are written at once, so that a stopped run can be continued. No torch.

`python -m trl_ablate.bench.gpu.parts PART DEVICE TOY FILE` is such a process; TOY is 0 or 1.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from trl_ablate.errors import ConfigurationError
from trl_ablate.recipe.places import LARGE_GPU_GIB
from trl_ablate.run.identity import provenance
from trl_ablate.run.json_files import read_object, write_json
from trl_ablate.run.untrusted import for_markdown, markdown_table

LEAST = 5.0
"""Seconds of the budget that a part needs to be started."""
FINISHED = ("ok", "skipped")
"""Statuses of parts that a continued run does not repeat. A part that had no time left is not one
of them: it was not started."""
LOG = 4000
"""Characters of what a part printed last that are kept, unless it is ok."""


@dataclass(frozen=True)
class Setup:
    """Where and at what size the parts run. `device`: cuda or cpu; `toy`: a miniature model."""

    device: str
    toy: bool


@dataclass(frozen=True)
class Part:
    """One part: the function of its name in the module `home`, what it measures, its time limit,
    and the GiB that it needs of a card at full size."""

    home: str
    shows: str
    seconds: float
    card: float = 8.0


@dataclass
class Found:
    """What a part found. `checks`: what must hold -> whether it does."""

    rows: list[dict[str, Any]]
    checks: dict[str, bool] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


class NotHere(Exception):
    """A part cannot run here; the message states what is missing."""


UNSAVED = LARGE_GPU_GIB
"""GiB for 1.5 B parameters trained without memory savings, beside an engine."""
_C, _W = (f"{__package__}.{name}" for name in ("comparisons", "whole_runs"))

PARTS = {
    "gradients": Part(
        _C, "gradients of stock TRL and of trl_ablate, in float32 and bfloat16", 120, UNSAVED
    ),
    "step": Part(
        _W, "a step of 256 rollouts: rollout, reward, training, against stock TRL", 240, UNSAVED
    ),
    "engine": Part(
        _W, "vLLM in the process: log-probability gap over ten steps, sleep mode", 180, UNSAVED
    ),
    "memory_cap": Part(_C, "the 24 GiB profile under a cap on the card's memory", 90, 23.0),
    "resume": Part(_W, "a run that is stopped and resumed ends in the same bits", 90),
    "sigterm": Part(_W, "SIGTERM ends a training after its step, with a whole checkpoint", 180),
    "microbatches": Part(_C, "microbatches of 1 to 16 rows: time and memory", 150, UNSAVED),
    "optimizers": Part(_C, "AdamW with 32 and with 8 bits: time and memory", 60, UNSAVED),
    "checkpointing": Part(
        _C, "gradient checkpointing: time, memory, the same gradients", 60, UNSAVED
    ),
    "head": Part(_C, "a vocabulary of 151,936: the positions that the LM head computes", 90),
    "packing": Part(_C, "microbatches packed into one row, against regrouped ones", 120, UNSAVED),
}


@dataclass
class Results:
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
        made_by = provenance()
        git = made_by.get("git") or {}
        changed = " with uncommitted changes" * bool(git.get("diff"))
        self.parts[name] = {**result, "commit": git.get("commit", "unknown")[:12] + changed}
        written = {"benchmark": "gpu", **vars(self.setup), "parts": self.parts, **made_by}
        write_json(self.file, written)
        self.page.write_text(page(written), encoding="utf-8")

    @property
    def page(self) -> Path:
        return self.file.with_suffix(".md")

    def status(self, name: str) -> str:
        return self.parts.get(name, {}).get("status", "")


def run(
    names: Iterable[str], results: Results, budget: float, *, tell: Callable[[str], object]
) -> None:
    """Run the parts that have no result yet, those that failed before last; `tell` prints a line
    before and after each."""
    ends = time.monotonic() + budget
    for name in sorted(names, key=lambda name: results.status(name) in ("failed", "wrong")):
        if results.status(name) in FINISHED:
            continue
        if (left := ends - time.monotonic()) < LEAST:
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
        file, log = Path(folder) / "result.json", Path(folder) / "log"
        with log.open("wb") as to:
            process = fresh(name, setup, file, to)
            try:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=seconds)
            finally:
                code = process.poll()
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait(timeout=30)
        printed = log.read_text("utf-8", errors="replace")
        if code is None:
            result = _failed(f"not finished after {seconds:.0f} s; killed")
        elif file.exists():
            result = read_object(file)
        else:
            how = (
                f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
            )
            lines = printed.strip().splitlines()
            last = f"; its last line: {lines[-1][:200]}" if lines else ""
            result = _failed(f"{how} without a result{last}")
    if result["status"] not in FINISHED:
        result["log"] = printed[-LOG:]
    return {**result, "seconds": time.monotonic() - began}


def _failed(reason: str) -> dict[str, Any]:
    return {"status": "failed", "reason": reason}


def fresh(part: str, setup: Setup, result: Path, log: IO[bytes]) -> subprocess.Popen:
    """Start a part in a new interpreter and a session of its own; its result goes to the path, what
    it prints to the open file."""
    words = [part, setup.device, str(int(setup.toy)), str(result)]
    gpus = first_gpus(0 if setup.device == "cpu" else 1)
    return subprocess.Popen(
        [sys.executable, "-m", __name__, *words],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env={**os.environ, "TRL_EXPERIMENTAL_SILENCE": "1", **gpus},
        start_new_session=True,
    )


def first_gpus(count: int, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variable that shows only so many GPUs: of several, TRL splits a model over all in one
    process, or refuses them."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    names = list(map(str, range(count))) if visible is None else visible.split(",")
    return {"CUDA_VISIBLE_DEVICES": ",".join(names[:count])}


def measure_into(name: str, device: str, toy: str, file: str) -> None:
    """Run a part and write its result, which also says what went wrong."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
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
        told = isinstance(error, ConfigurationError)
        result = _failed(str(error) if told else f"{type(error).__name__}: {error}".split("\n")[0])
    if "torch" in sys.modules:
        from trl_ablate.bench.timing import machine

        result["machine"] = machine()
    write_json(Path(file), result)


def _end_with(parent: int) -> None:
    """Kill this part and what it started once the command is gone: it would use the card beside
    those of the command that continues."""
    while os.getppid() == parent:
        time.sleep(1)
    os.killpg(0, signal.SIGKILL)


def check_card(part: Part, setup: Setup) -> None:
    """Skip a part at full size if the card is too small for it."""
    if setup.device == "cuda" and not setup.toy:
        import torch

        found = torch.cuda.get_device_properties(0).total_memory / 2**30
        if found < part.card:
            raise NotHere(f"the card has {found:.0f} GiB; this part needs {part.card:.0f}")


def page(written: Mapping[str, Any]) -> str:
    size = "toy size" if written["toy"] else "full size"
    found = written["parts"]
    made = {
        name: f"{one.get('machine') or 'unknown machine'}, commit {one['commit']}"
        for name, one in found.items()
    }
    several = len(set(made.values())) > 1
    summary = [
        {"part": name, "result": one["status"], "s": one["seconds"], "what": PARTS[name].shows,
         "why": one.get("reason", ""), **({"made on": made[name]} if several else {})}
        for name, one in found.items()
    ]  # fmt: skip
    blocks = [f"# bench gpu: {written['device']}, {size}"]
    blocks += [] if several else [for_markdown(f"Made on {made[next(iter(made))]}.")]
    blocks += [_table(summary)]
    for name, one in found.items():
        if one.get("rows"):
            held = {check: "yes" if holds else "NO" for check, holds in one["checks"].items()}
            facts = [f"{key}: {_cell(value)}" for key, value in (one["facts"] | held).items()]
            blocks += [f"## {name}", _table(one["rows"])]
            blocks += ["\n".join(f"- {for_markdown(fact)}" for fact in facts)] if facts else []
    return "\n\n".join(blocks) + "\n"


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table; a row may lack columns of others."""
    header = list(dict.fromkeys(column for row in rows for column in row))
    cells = [[for_markdown(_cell(row.get(column, ""))) for column in header] for row in rows]
    return markdown_table(header, cells)


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":  # the parts raise the `NotHere` of the module, not of this copy
    import_module("trl_ablate.bench.gpu.parts").measure_into(*sys.argv[1:])
