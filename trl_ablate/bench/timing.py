"""How the modes measure: ways that alternate, trainers whose steps are timed, and the table with
medians and spreads that is printed and written as JSON."""

import platform
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.table import Table
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from trl_ablate.bench.positions import Positions
from trl_ablate.config import AblationConfig
from trl_ablate.errors import ConfigurationError
from trl_ablate.metrics import GRAD_NORM
from trl_ablate.run.identity import provenance
from trl_ablate.run.json_files import write_json
from trl_ablate.run.untrusted import FirstThatFits, SafeConsole
from trl_ablate.trainer.ablation import AblationTrainer
from trl_ablate.trainer.update import peak_memory, reset_peak_memory

STOCK, OURS = "stock TRL", "trl_ablate"

Result = tuple[str, list[dict[str, Any]], dict[str, Any]]
"""What a mode publishes: a title, the rows of a table, and single facts."""


@dataclass
class Measured:
    """One way, or one trainer, over all rounds: seconds of what is counted, and those of the
    processor in all threads; what a way returned each time; of a trainer what the counted steps
    logged, the gradient norms and positions of all steps, the weights at the end."""

    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    logs: list[dict[str, float]] = field(default_factory=list)
    grad_norms: list[float] = field(default_factory=list)
    weights: list[torch.Tensor] = field(default_factory=list)
    peak: float = 0.0
    positions: Positions = field(default_factory=Positions)
    returned: list[Any] = field(default_factory=list)

    def logged(self, name: str) -> float | None:
        found = [row[name] for row in self.logs if name in row]
        return median(found) if found else None

    def positions_of_step(self, *parts: str) -> int:
        """The mean over all steps."""
        return round(sum(self.positions[part] for part in parts) / max(1, len(self.grad_norms)))

    def limit(self, *parts: str) -> float:
        """The ratio of these positions to the fewest."""
        fewest = [f"fewest, {part}" for part in parts]
        return self.positions_of_step(*parts) / max(1, self.positions_of_step(*fewest))


def alternate(
    ways: Mapping[str, Callable[[int], Any]], rounds: int, warmup: int = 0
) -> dict[str, Measured]:
    """Call each way with the number of the round; the first `warmup` rounds are not timed."""
    found = {name: Measured() for name in ways}
    for number in range(warmup + rounds):
        for name, way in ways.items():
            began, cpu = now(), time.process_time()
            found[name].returned.append(way(number))
            if number >= warmup:
                found[name].seconds.append(now() - began)
                found[name].cpu.append(time.process_time() - cpu)
    return found


def timed(
    what: str, unit: str, seconds: Sequence[float], first: Sequence[float] | None = None
) -> dict[str, Any]:
    """The columns that every table begins with; the spread is the largest minus the smallest."""
    spread = max(seconds) - min(seconds)
    row: dict[str, Any] = {"what": what, unit: median(seconds), "spread": spread}
    return row | ({} if first is None else {"ratio": ratio(first, seconds)})


def now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


class StepTimer(TrainerCallback):
    """Measures the seconds of every optimizer step, on the wall and of the processor."""

    def __init__(self) -> None:
        self.seconds: list[tuple[float, float]] = []

    def on_step_begin(self, args, state, control, **kwargs):
        self._began = now(), time.process_time()

    def on_step_end(self, args, state, control, **kwargs):
        wall, cpu = self._began
        self.seconds.append((now() - wall, time.process_time() - cpu))


def trainer_of(stock: bool, settings: Mapping[str, Any], **parts: Any) -> GRPOTrainer:
    """A trainer that saves and reports nothing, and logs every step. `parts`: its model, data, …"""
    kind: Any
    kind, config = (GRPOTrainer, GRPOConfig) if stock else (AblationTrainer, AblationConfig)
    on_gpu = torch.cuda.is_available()
    only_timed: dict[str, Any] = dict(
        output_dir=tempfile.gettempdir(),  # a trainer makes its folder, even if it saves nothing
        use_cpu=not on_gpu,
        bf16=on_gpu,
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
        lr_scheduler_type="constant",
        **({} if stock else {"log_memory": False}),  # which would reset the peak that is measured
    )
    args = config(**only_timed | dict(settings))
    if args.n_gpu > 1:  # TRL would raise, or split the model over them
        raise ConfigurationError(
            f"a process is measured on one GPU, and {args.n_gpu} are visible; set "
            "CUDA_VISIBLE_DEVICES=0, or start a process for each with torchrun"
        )
    trainer = kind(args=args, **parts)
    trainer.remove_callback(PrinterCallback)
    return trainer


def measure(trainer: GRPOTrainer, into: Measured, warmup: int = 1) -> None:
    """Train; the first `warmup` steps are not counted."""
    timer = StepTimer()
    trainer.add_callback(timer)
    reset_peak_memory(trainer.args.device)
    with into.positions.of_steps(trainer):
        trainer.train()
    logs = [row for row in trainer.state.log_history if GRAD_NORM in row]
    into.seconds += [wall for wall, _ in timer.seconds[warmup:]]
    into.cpu += [cpu for _, cpu in timer.seconds[warmup:]]
    into.logs += logs[warmup:]
    into.grad_norms += [row[GRAD_NORM] for row in logs]
    into.peak = max(into.peak, peak_memory(trainer.args.device))


def compared(what: str, unit: str, one: Measured, first: Measured) -> dict[str, Any]:
    """The columns of a comparison: medians, and ratios to the first."""
    return {
        **timed(what, unit, one.seconds, first.seconds),
        "CPU s": median(one.cpu),
        "CPU ratio": ratio(first.cpu, one.cpu),
    }


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> float:
    """How many times as long the first took: the median over pairs that were measured next to each
    other, so that a load of the machine that comes and goes falls on both."""
    return median([a / b for a, b in zip(theirs, ours, strict=True)])


def machine() -> str:
    """A short description of the machine, for the title of a table."""
    if torch.cuda.is_available():
        return f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}"
    return (
        f"{torch.get_num_threads()} CPU threads ({platform.machine()}), torch {torch.__version__}"
    )


def _table(lines: Sequence[Sequence[str]]) -> Table:
    """A table of these lines; the first one names the columns."""
    table = Table(box=None)
    for place, name in enumerate(lines[0]):
        table.add_column(name, justify="right" if place else "left", overflow="fold")
    for line in lines[1:]:
        table.add_row(*line)
    return table


def publish(
    name: str, rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any], output: Path
) -> None:
    """Print the rows as a table with the machine's name; write them to JSON with versions and
    commit."""
    lines = [[f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()] for row in rows]
    lines.insert(0, list(rows[0]))
    console = SafeConsole()
    console.print(f"{name} — {machine()}")
    console.print(FirstThatFits(_table(lines), _table(list(zip(*lines, strict=True)))))
    for fact, value in facts.items():
        console.print(f"{fact}: {value:.6g}" if isinstance(value, float) else f"{fact}: {value}")
    write_json(
        output,
        {
            "benchmark": name,
            "machine": machine(),
            "rows": list(rows),
            "facts": dict(facts),
            **provenance(),
        },
    )
    console.print(f"written to {output}")
