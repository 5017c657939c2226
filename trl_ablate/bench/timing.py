"""How the modes measure: ways and trainers that alternate, the positions that a model computes, and
the table of medians and spreads that is printed and written as JSON.

A position is one token of one row in one forward pass. With a backward pass, which takes twice the
arithmetic, it counts as 3. Attention over long rows, the LM head and the optimizer are not in it,
so that a time can be saved in another proportion. On a GPU, tokens that a recorded CUDA graph
decodes are not counted.
"""

import platform
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.table import Table
from torch.nn import functional
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from trl_ablate.config import AblationConfig
from trl_ablate.errors import ConfigurationError
from trl_ablate.metrics import GRAD_NORM
from trl_ablate.run.identity import provenance
from trl_ablate.run.json_files import write_json
from trl_ablate.run.untrusted import FirstThatFits, SafeConsole
from trl_ablate.trainer.ablation import AblationTrainer
from trl_ablate.trainer.temporary import replaced
from trl_ablate.trainer.update import peak_memory, reset_peak_memory

STOCK, OURS = "stock TRL", "trl_ablate"
WITH_BACKWARD = 3
LIMIT = "positions of stock TRL, in multiples of the fewest"

Result = tuple[str, list[dict[str, Any]], dict[str, Any]]
"""What a mode publishes: a title, the rows of a table, and single facts."""


class Positions(Counter):
    """Positions by part of the work: those computed, and the fewest that could have been."""

    part = "train"

    @contextmanager
    def of(self, model: Any):
        """Count what the model embeds within the block, whoever calls it."""
        embed, table = functional.embedding, model.get_input_embeddings().weight.shape

        def embedding(ids: torch.Tensor, weight: torch.Tensor, *rest: Any, **named: Any) -> Any:
            if weight.shape == table:
                self[self.part] += ids.numel() * (WITH_BACKWARD if torch.is_grad_enabled() else 1)
            return embed(ids, weight, *rest, **named)

        with replaced(functional, embedding=embedding):
            yield

    @contextmanager
    def of_steps(self, trainer: Any):
        generate = trainer._generate_and_score_completions

        def counted(inputs: Any) -> Any:
            self.part = "rollout"
            batch = generate(inputs)
            self.part = "train"
            self.update(fewest_of(batch, trainer.num_generations))
            return batch

        with self.of(trainer.model), replaced(trainer, _generate_and_score_completions=counted):
            yield


def fewest_of(batch: dict[str, torch.Tensor], group: int) -> dict[str, int]:
    """The fewest positions of a rollout batch, whose groups stand one after another."""
    rows = len(batch["completion_mask"])
    learns_N = batch["advantages"].reshape(rows, -1).ne(0).any(dim=1).tolist()
    prompts_G = batch["prompt_mask"].sum(dim=1)[::group].tolist()
    responses_N = batch["completion_mask"].sum(dim=1).tolist()
    return {
        "fewest, rollout": fewest(prompts_G, responses_N, [False] * rows),
        "fewest, train": fewest(prompts_G, responses_N, learns_N),
    }


def fewest(prompts_G: Sequence[int], responses_N: Sequence[int], learns_N: Sequence[bool]) -> int:
    """Each prompt once for its group, each response without its last token, and a backward pass
    only for rows that learn and their prompts."""
    group = len(responses_N) // len(prompts_G)
    costs_N = [WITH_BACKWARD if learns else 1 for learns in learns_N]
    costs_G = [max(costs_N[first : first + group]) for first in range(0, len(costs_N), group)]
    of_prompts = sum(cost * length for cost, length in zip(costs_G, prompts_G, strict=True))
    own = zip(costs_N, responses_N, strict=True)
    return of_prompts + sum(cost * max(0, length - 1) for cost, length in own)


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

    def begin(self) -> None:
        self._began = now(), time.process_time()

    def end(self) -> None:
        """Count the time since the beginning."""
        wall, cpu = self._began
        self.seconds.append(now() - wall)
        self.cpu.append(time.process_time() - cpu)

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


def now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def alternate(
    ways: Mapping[str, Callable[[int], Any]], rounds: int, warmup: int = 0
) -> dict[str, Measured]:
    """Call each way with the number of the round; the first `warmup` rounds are not timed."""
    found = {name: Measured() for name in ways}
    for number in range(warmup + rounds):
        for name, way in ways.items():
            found[name].begin()
            found[name].returned.append(way(number))
            if number >= warmup:
                found[name].end()
    return found


class StepTimer(TrainerCallback):
    """Counts the time of every optimizer step but the first, which is warm-up."""

    def __init__(self, into: Measured) -> None:
        self._into = into

    def on_step_begin(self, args, state, control, **kwargs):
        self._into.begin()

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step > 1:
            self._into.end()


def compare(
    builds: Mapping[str, Callable[[], GRPOTrainer]], rounds: int, *, keep_weights: bool = False
) -> dict[str, Measured]:
    """Train in each way alternately; a build gives a trainer that has not begun."""
    found = {name: Measured() for name in builds}
    for _ in range(rounds):
        for name, build in builds.items():
            trainer = build()
            measure(trainer, found[name])
            if keep_weights:
                weights = trainer.model.parameters()
                found[name].weights = [each.detach().cpu().clone() for each in weights]
    return found


def measure(trainer: GRPOTrainer, into: Measured) -> None:
    """Train; the first step is not counted."""
    trainer.add_callback(StepTimer(into))
    reset_peak_memory(trainer.args.device)
    with into.positions.of_steps(trainer):
        trainer.train()
    logs = [row for row in trainer.state.log_history if GRAD_NORM in row]
    into.logs += logs[1:]
    into.grad_norms += [row[GRAD_NORM] for row in logs]
    into.peak = max(into.peak, peak_memory(trainer.args.device))


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


def sizes_of(load: Any, longest: int, processes: int = 1) -> dict[str, Any]:
    """The settings of a trainer of the steps of a load, and of one more for warm-up."""
    return {
        "per_device_train_batch_size": load.microbatch,
        "gradient_accumulation_steps": load.rows // (load.microbatch * processes),
        "num_generations": load.group,
        "max_completion_length": longest,
        "max_steps": load.steps + 1,
    }


def timed(
    what: str, unit: str, seconds: Sequence[float], first: Sequence[float] | None = None
) -> dict[str, Any]:
    """The columns that every table begins with; the spread is the largest minus the smallest."""
    spread = max(seconds) - min(seconds)
    row: dict[str, Any] = {"what": what, unit: median(seconds), "spread": spread}
    return row | ({} if first is None else {"ratio": ratio(first, seconds)})


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
    cpu = f"{torch.get_num_threads()} CPU threads ({platform.machine()})"
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else cpu
    return f"{device}, torch {torch.__version__}"


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
    written = {"benchmark": name, "machine": machine(), "rows": list(rows), "facts": dict(facts)}
    write_json(output, written | provenance())
    console.print(f"written to {output}")


def _table(lines: Sequence[Sequence[str]]) -> Table:
    """A table of these lines; the first one names the columns."""
    table = Table(box=None)
    for place, name in enumerate(lines[0]):
        table.add_column(name, justify="right" if place else "left", overflow="fold")
    for line in lines[1:]:
        table.add_row(*line)
    return table
