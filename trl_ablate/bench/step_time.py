"""Whole GRPO steps, with generation and grading: stock `GRPOTrainer` against `AblationTrainer`.

The model is that of a world of the miniature, a given one, or a random one of a given shape, which
almost never ends a completion, so that all have the full length: the worst case. On a GPU vLLM
generates in the same process, where it is installed; transformers elsewhere. Both trainers start
from the same weights in every round. With vLLM there is one round, as a process can start an engine
only once for each trainer.
"""

from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from transformers import AutoTokenizer
from trl import GRPOTrainer
from trl.import_utils import is_vllm_available

from trl_ablate import miniature
from trl_ablate.bench import synthetic
from trl_ablate.bench.modes import Step, check_rows
from trl_ablate.bench.positions import LIMIT
from trl_ablate.bench.timing import (
    OURS,
    STOCK,
    Measured,
    Result,
    compared,
    measure,
    trainer_of,
)
from trl_ablate.data.questions import load_questions, to_prompts
from trl_ablate.metrics import LENGTH
from trl_ablate.rewards import MathGrader, build_rewards
from trl_ablate.task import TaskArguments


def bench(load: Step) -> Result:
    """What `trl-ablate bench step` publishes."""
    check_rows(load.rows, group=load.group, microbatch=load.microbatch)
    found = compare(load.model_name_or_path or model_folder(load.model_shape, load.world), load)
    title = (
        f"whole steps, {load.rows} rollouts of up to {load.cap} tokens, {load.model}, {load.world}"
    )
    rows = [_row(name, one, found[STOCK]) for name, one in found.items()]
    facts = {name: rows[1][name] for name in ("ratio", "CPU ratio")}
    return title, rows, facts | {LIMIT: found[STOCK].limit(*parts_computed())}


def has_engine() -> bool:
    return torch.cuda.is_available() and is_vllm_available()


def parts_computed() -> tuple[str, ...]:
    """The parts of a step whose positions are counted: those of vLLM are not."""
    return ("train",) if has_engine() else ("rollout", "train")


def compare(model: str, load: Step) -> dict[str, Measured]:
    """The trainers alternate for `load.rounds` rounds."""
    found = {STOCK: Measured(), OURS: Measured()}
    with MathGrader(workers=2) as grader:
        rewards: Any = build_rewards("r1_zero", grader=grader)[0]
        if load.idle is not None:
            rewards = partial(synthetic.length_reward, group=load.group, idle=load.idle)
        for _ in range(1 if has_engine() else load.rounds):
            for name, into in found.items():
                measure(_build(name == STOCK, model, rewards, load), into)
    return found


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
        **compared(name, "s/step", one, first),
        **{f"s {part}": "" if found is None else found for part, found in parts.items()},
        "tokens": one.logged(LENGTH),
        "positions": one.positions_of_step(*parts_computed()),
        "peak GiB": one.peak / 2**30,
    }


def _build(stock: bool, model: str, rewards: Any, load: Step) -> GRPOTrainer:
    settings = dict(
        loss_type="grpo",
        per_device_train_batch_size=load.microbatch,
        gradient_accumulation_steps=load.rows // load.microbatch,
        num_generations=load.group,
        max_completion_length=load.cap,
        max_steps=load.steps + 1,
        learning_rate=1e-6,  # so that every step has responses as long as the first
        use_vllm=has_engine(),
        vllm_mode="colocate",
        vllm_importance_sampling_mode="token_truncate",
        vllm_gpu_memory_utilization=0.3,
    )
    dataset = f"miniature/{load.world}"
    task = TaskArguments(dataset=dataset, train_size=2048, prompt_style="short")
    return trainer_of(
        stock,
        settings,
        model=model,
        reward_funcs=rewards,
        train_dataset=to_prompts(load_questions(task, "train"), task),
        processing_class=AutoTokenizer.from_pretrained(model, padding_side="left"),
    )
