"""Stock `GRPOTrainer` against `AblationTrainer`, with generation and grading: whole GRPO steps, and
evaluations.

The model is that of a world of the miniature, a given one, or a random one of a given shape, which
almost never ends a completion, so that all have the full length: the worst case. On a GPU vLLM
generates in the same process, where it is installed; transformers elsewhere. Both trainers start
from the same weights in every round. With vLLM there is one round, as a process can start an engine
only once for each trainer.
"""

from collections.abc import Callable
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import torch
from trl import GRPOTrainer
from trl.import_utils import is_vllm_available

from trl_ablate import miniature
from trl_ablate.bench import synthetic, timing
from trl_ablate.bench.modes import Evaluation, Step, check_rows
from trl_ablate.bench.timing import (
    LIMIT,
    OURS,
    STOCK,
    Measured,
    Result,
    alternate,
    compared,
    ratio,
    timed,
)
from trl_ablate.data.questions import load_questions, to_prompts
from trl_ablate.metrics import LENGTH
from trl_ablate.miniature.registry import MINIATURE, world_of_model
from trl_ablate.rewards import MathGrader, build_rewards
from trl_ablate.task import TaskArguments

AT_ONCE = 512
"""Prompts that our evaluation generates together on a CPU, as in the miniature's profile."""

Rewards = dict[tuple[str, str], float | None]
"""By prompt and completion."""


def bench(load: Step) -> Result:
    check_rows(load.rows, group=load.group, microbatch=load.microbatch)
    with TemporaryDirectory(prefix="trl_ablate_bench_") as scratch:
        shape, world = load.model_shape, load.world
        found = compare(load.model_name_or_path or model_folder(shape, world, scratch), load)
    title = (
        f"whole steps, {load.rows} rollouts of up to {load.cap} tokens, {load.model}, {load.world}"
    )
    rows = [row_of(name, one, found[STOCK]) for name, one in found.items()]
    facts = {name: rows[1][name] for name in ("ratio", "CPU ratio")}
    return title, rows, facts | {LIMIT: found[STOCK].limit(*parts_computed())}


def has_engine() -> bool:
    return torch.cuda.is_available() and is_vllm_available()


def parts_computed() -> tuple[str, ...]:
    """The parts of a step whose positions are counted: those of vLLM are not."""
    return ("train",) if has_engine() else ("rollout", "train")


def compare(model: str, load: Step) -> dict[str, Measured]:
    with MathGrader(workers=2) as grader:
        rewards: Any = build_rewards("r1_zero", grader=grader)[0]
        if load.idle is not None:
            rewards = partial(synthetic.length_reward, group=load.group, idle=load.idle)
        builds = {name: partial(_build, name, model, rewards, load) for name in (STOCK, OURS)}
        return timing.compare(builds, 1 if has_engine() else load.rounds)


def model_folder(shape: str, world: str, scratch: str) -> str:
    """The folder of the miniature's base model, or `scratch` with a random model of this shape."""
    world_of_model(f"{MINIATURE}/{world}")  # refuses one without a model of its own
    if shape == "miniature":
        return str(miniature.build(world=world))
    tokenizer = miniature.tokenizer(world)
    torch.manual_seed(0)
    synthetic.random_model(shape, tokenizer).save_pretrained(scratch)
    tokenizer.save_pretrained(scratch)
    return scratch


def row_of(name: str, one: Measured, first: Measured) -> dict[str, Any]:
    parts = {part: one.logged(f"time/{part}") for part in ("rollout", "reward", "train")}
    return {
        **compared(name, "s/step", one, first),
        **{f"s {part}": "" if found is None else found for part, found in parts.items()},
        "tokens": one.logged(LENGTH),
        "positions": one.positions_of_step(*parts_computed()),
        "peak GiB": one.peak / 2**30,
    }


def _build(name: str, model: str, rewards: Any, load: Step) -> GRPOTrainer:
    task = TaskArguments(dataset=f"miniature/{load.world}", train_size=2048, prompt_style="short")
    settings = {
        **timing.sizes_of(load, load.cap),
        "loss_type": "grpo",
        "learning_rate": 1e-6,  # so that every step has responses as long as the first
        "use_vllm": has_engine(),
        "vllm_mode": "colocate",
        "vllm_importance_sampling_mode": "token_truncate",
        "vllm_gpu_memory_utilization": 0.3,
    }
    return timing.trainer_of(
        name == STOCK,
        settings,
        model=model,
        reward_funcs=rewards,
        train_dataset=to_prompts(load_questions(task, "train"), task),
        processing_class=synthetic.tokenizer_of(model),
    )


def recording(reward: Callable[..., list[float | None]], seen: Rewards) -> Callable[..., Any]:
    """The reward function, which also notes its rewards."""

    def graded(prompts: list[str], completions: list[str], **given: Any) -> list[float | None]:
        rewards = reward(prompts=prompts, completions=completions, **given)
        seen.update(zip(zip(prompts, completions, strict=True), rewards, strict=True))
        return rewards

    return graded


def bench_evaluation(asked: Evaluation) -> Result:
    """What `trl-ablate bench eval` publishes: stock TRL, batch by batch, and one shot. Times are
    measured at temperature 1. One more round decodes greedily, so that both generate the same
    completions, and compares their rewards."""
    ours = f"{OURS}, one shot"
    sizes = {**{f"{STOCK}, batch of {size}": size for size in asked.batches}, ours: None}
    task = TaskArguments(dataset="miniature/sums", eval_size=asked.prompts, prompt_style="short")
    dataset = to_prompts(load_questions(task, "eval"), task)
    with MathGrader(workers=2) as grader:
        reward = build_rewards("r1_zero", grader=grader)[0][0]
        built = {name: _evaluator(size, reward, dataset) for name, size in sizes.items()}
        ways = {name: lambda _, own=own: own.evaluate() for name, own in built.items()}
        found = alternate(ways, asked.rounds)
        theirs, mine = {}, {}
        for size, seen in ((max(asked.batches), theirs), (None, mine)):
            _evaluator(size, recording(reward, seen), dataset, top_k=1).evaluate()
    rows = [
        {**timed(name, "s", one.seconds), "ratio to ours": ratio(one.seconds, found[ours].seconds)}
        for name, one in found.items()
    ]
    both = theirs.keys() & mine.keys()
    facts = {
        "completions generated by both": len(both),
        "of them with different rewards": sum(theirs[key] != mine[key] for key in both),
    }
    return f"evaluation of {asked.prompts} prompts", rows, facts


def _evaluator(size: int | None, reward: Callable, dataset: Any, *, top_k: int = 0) -> GRPOTrainer:
    """Stock TRL with this batch, or ours."""
    model = str(miniature.build(world="sums"))
    settings = {
        "use_cpu": True,
        "bf16": False,
        "per_device_eval_batch_size": size or AT_ONCE,
        "num_generations_eval": 1,
        "max_completion_length": 48,
        "top_k": top_k,
        **({} if size else {"evaluation": "one_shot"}),
    }
    return timing.trainer_of(
        size is not None,
        settings,
        model=model,
        reward_funcs=reward,
        train_dataset=dataset,
        eval_dataset=dataset,
        processing_class=synthetic.tokenizer_of(model),
    )
