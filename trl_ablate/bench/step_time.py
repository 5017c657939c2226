"""Whole GRPO steps, with generation and grading: stock `GRPOTrainer` against `AblationTrainer`.

On a CPU the model is a world of the miniature, and transformers generates. On a GPU the model has
the given shape and random weights, and vLLM generates in the same process. A random model almost
never ends a completion, so all completions have the full length: this is the worst case. Both
trainers start from the same weights in every round. With vLLM there is one round, as a process can
start an engine only once for each trainer.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from transformers import AutoTokenizer, PrinterCallback
from trl import GRPOConfig, GRPOTrainer

from trl_ablate import miniature
from trl_ablate.bench import synthetic
from trl_ablate.bench.tables import median, ratio, spread
from trl_ablate.bench.train_time import StepTimer, only_timed
from trl_ablate.config import AblationConfig
from trl_ablate.data.choice import Selection, Source
from trl_ablate.data.questions import load_questions, to_prompts
from trl_ablate.metrics import GRAD_NORM, LENGTH
from trl_ablate.rewards import MathGrader, build_rewards
from trl_ablate.trainer.ablation import AblationTrainer
from trl_ablate.trainer.phases import peak_memory, reset_peak_memory

PARTS = ("rollout", "reward", "train")


@dataclass
class Load:
    """The size of a step. In each round, both trainers take `warmup` extra steps, which are not
    counted."""

    rows: int = 128
    microbatch: int = 64
    num_generations: int = 8
    max_completion_length: int = 60
    world: str = "chains"
    steps: int = 5
    rounds: int = 3
    warmup: int = 1
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass
class Measured:
    """The counted steps of one trainer, over all rounds: their seconds, those of the processor in
    all threads, and what they logged."""

    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    logs: list[dict[str, float]] = field(default_factory=list)
    peak: float = 0.0


class ProcessorTimer(StepTimer):
    """A class of its own: transformers warns of two callbacks of one class."""

    def __init__(self) -> None:
        super().__init__(time.process_time)


TRAINERS: dict[str, tuple[type[GRPOTrainer], type[GRPOConfig]]] = {
    "stock TRL": (GRPOTrainer, GRPOConfig),
    "trl_ablate": (AblationTrainer, AblationConfig),
}


def compare(shape: str, load: Load) -> list[dict[str, Any]]:
    """The table: the trainers alternate for `load.rounds` rounds."""
    model = model_folder(shape, load.world)
    found = {name: Measured() for name in TRAINERS}
    with MathGrader(workers=2) as grader:
        rewards, _ = build_rewards("r1_zero", grader=grader)
        for _ in range(1 if torch.cuda.is_available() else load.rounds):
            for name, classes in TRAINERS.items():
                _measure(_build(*classes, model, rewards, load), load, found[name])
    first = next(iter(found.values()))
    return [_row(name, one, first) for name, one in found.items()]


def model_folder(shape: str, world: str) -> str:
    """The folder of the miniature's base model, or of a random model of this shape."""
    if shape == "miniature":
        return str(miniature.build(world=world))
    folder = Path(mkdtemp(prefix="trl_ablate_bench_"))
    tokenizer = miniature.tokenizer(world)
    torch.manual_seed(0)
    synthetic.random_model(shape, tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def _measure(trainer: GRPOTrainer, load: Load, into: Measured) -> None:
    timer, cpu = StepTimer(), ProcessorTimer()
    trainer.add_callback(timer)
    trainer.add_callback(cpu)
    trainer.remove_callback(PrinterCallback)
    reset_peak_memory(trainer.args.device)
    trainer.train()
    log = [row for row in trainer.state.log_history if GRAD_NORM in row]
    into.logs += log[load.warmup :]
    into.seconds += timer.seconds[load.warmup :]
    into.cpu += cpu.seconds[load.warmup :]
    into.peak = max(into.peak, peak_memory(trainer.args.device))


def _row(name: str, one: Measured, first: Measured) -> dict[str, Any]:
    parts = {
        f"s {part}": median([row[f"time/{part}"] for row in one.logs])
        if f"time/{part}" in one.logs[0]
        else ""
        for part in PARTS
    }
    return {
        "what": name,
        "s/step": median(one.seconds),
        "spread": spread(one.seconds),
        "ratio": ratio(first.seconds, one.seconds),
        "CPU s/step": median(one.cpu),
        "CPU ratio": ratio(first.cpu, one.cpu),
        **parts,
        "tokens": median([row[LENGTH] for row in one.logs]),
        "peak GiB": one.peak / 2**30,
    }


def _build(cls, config_class, model: str, rewards, load: Load) -> GRPOTrainer:
    on_gpu = torch.cuda.is_available()
    extra = {"log_memory": False} if cls is AblationTrainer else {}
    return cls(
        model=model,
        reward_funcs=rewards,
        args=config_class(
            **only_timed(on_gpu=on_gpu),
            loss_type="grpo",
            per_device_train_batch_size=load.microbatch,
            gradient_accumulation_steps=load.rows // load.microbatch,
            num_generations=load.num_generations,
            max_completion_length=load.max_completion_length,
            max_steps=load.steps + load.warmup,
            learning_rate=1e-6,  # so that every step has responses as long as the first
            lr_scheduler_type="constant",
            use_vllm=on_gpu,
            vllm_mode="colocate",
            vllm_importance_sampling_mode="token_truncate",
            vllm_gpu_memory_utilization=0.3,
            **extra,
            **load.settings,
        ),
        train_dataset=to_prompts(
            load_questions(Source(f"miniature/{load.world}", "train"), Selection(2048)),
            "r1_zero",
            style="short",
        ),
        processing_class=AutoTokenizer.from_pretrained(model, padding_side="left"),
    )
