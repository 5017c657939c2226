"""Whole GRPO steps, with generation and grading: stock `GRPOTrainer` against `AblationTrainer`.

On a CPU the model is a world of the miniature, and transformers generates. On a GPU the model has
the given shape and random weights, and vLLM generates in the same process. A random model almost
never ends a completion, so all completions have the full length: this is the worst case. Both
trainers start from the same weights in every round. With vLLM there is one round, as a process can
start an engine only once for each trainer.
"""

from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from transformers import AutoTokenizer
from trl import GRPOTrainer

from trl_ablate import miniature
from trl_ablate.bench import synthetic
from trl_ablate.bench.tables import median, ratio
from trl_ablate.bench.timing import OURS, STOCK, Measured, Result, measure, timed, trainer_of
from trl_ablate.data.choice import Selection, Source
from trl_ablate.data.questions import load_questions, to_prompts
from trl_ablate.metrics import LENGTH
from trl_ablate.rewards import MathGrader, build_rewards


@dataclass
class Load:
    """The size of a step. In each round both trainers take one more, which is not counted."""

    rows: int = 128
    microbatch: int = 64
    max_completion_length: int = 60
    world: str = "chains"
    steps: int = 5
    rounds: int = 3


def bench(*, model_shape: str, **sizes: Any) -> Result:
    """What `trl-ablate bench step` publishes."""
    load = Load(**sizes)
    rows = compare(model_shape, load)
    title = (
        f"whole steps, {load.rows} rollouts of up to {load.max_completion_length} tokens, "
        f"{model_shape}, {load.world}"
    )
    return title, rows, {name: rows[1][name] for name in ("ratio", "CPU ratio")}


def compare(shape: str, load: Load) -> list[dict[str, Any]]:
    """The table: the trainers alternate for `load.rounds` rounds."""
    model = model_folder(shape, load.world)
    found = {STOCK: Measured(), OURS: Measured()}
    with MathGrader(workers=2) as grader:
        rewards, _ = build_rewards("r1_zero", grader=grader)
        for _ in range(1 if torch.cuda.is_available() else load.rounds):
            for name, into in found.items():
                measure(_build(name == STOCK, model, rewards, load), into)
    return [_row(name, one, found[STOCK]) for name, one in found.items()]


def model_folder(shape: str, world: str) -> str:
    """The folder of the miniature's base model, or of a random model of this shape."""
    if shape == "miniature":
        return str(miniature.build(world=world))
    folder = Path(mkdtemp(prefix="trl_ablate_bench_"))
    torch.manual_seed(0)
    tokenizer = miniature.tokenizer(world)
    synthetic.random_model(shape, tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def _row(name: str, one: Measured, first: Measured) -> dict[str, Any]:
    parts = {part: one.logged(f"time/{part}") for part in ("rollout", "reward", "train")}
    return {
        **timed(name, "s/step", one.seconds, first.seconds),
        "CPU s/step": median(one.cpu),
        "CPU ratio": ratio(first.cpu, one.cpu),
        **{f"s {part}": "" if found is None else found for part, found in parts.items()},
        "tokens": one.logged(LENGTH),
        "peak GiB": one.peak / 2**30,
    }


def _build(stock: bool, model: str, rewards: Any, load: Load) -> GRPOTrainer:
    settings = dict(
        loss_type="grpo",
        per_device_train_batch_size=load.microbatch,
        gradient_accumulation_steps=load.rows // load.microbatch,
        num_generations=8,
        max_completion_length=load.max_completion_length,
        max_steps=load.steps + 1,
        learning_rate=1e-6,  # so that every step has responses as long as the first
        use_vllm=torch.cuda.is_available(),
        vllm_mode="colocate",
        vllm_importance_sampling_mode="token_truncate",
        vllm_gpu_memory_utilization=0.3,
    )
    questions = load_questions(Source(f"miniature/{load.world}", "train"), Selection(2048))
    parts = dict(
        model=model,
        reward_funcs=rewards,
        train_dataset=to_prompts(questions, "r1_zero", style="short"),
        processing_class=AutoTokenizer.from_pretrained(model, padding_side="left"),
    )
    return trainer_of(stock, settings, parts)
