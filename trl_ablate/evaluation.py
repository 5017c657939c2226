"""One-shot evaluation: every prompt generated in as few calls as the backend takes, then graded.

TRL evaluates in small batches, generates for each apart, and runs the model forward for a loss
that says nothing about the task. Here there is no loss: the prompts are sharded over the
processes, given to the live engine at once (to transformers in batches of
`per_device_eval_batch_size`), and graded by the reward functions of the training.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate.utils import gather_object
from datasets import Dataset

from trl_ablate.estimates import GRADED, MAIN, Row, metric_name, summary
from trl_ablate.generation import evaluation_generation_kwargs, sampling_by

if TYPE_CHECKING:
    from trl_ablate.trainer import AblationTrainer


@dataclass(frozen=True)
class Evaluation:
    """What one dataset came to."""

    rows: list[Row]
    """One per completion, in the dataset's order."""
    metrics: dict[str, float]
    """What `estimates.summary` finds."""


def evaluate_one_shot(
    trainer: "AblationTrainer", dataset: Dataset | dict[str, Dataset], prefix: str = "eval"
) -> dict[str, float]:
    """Evaluate, then log one row and tell the callbacks once, however many datasets there are.

    Metrics are `{prefix}_...`. Of a dict, the dataset at `MAIN` has these names, and every other
    has `{prefix}_{key}_...`. `time/eval` is the seconds of all of them.
    """
    started = time.perf_counter()
    with _eval_mode(trainer.model):
        metrics = {
            metric_name(name, key, prefix): value
            for key, found in evaluations(trainer, dataset).items()
            for name, value in found.metrics.items()
        }
        metrics["time/eval"] = time.perf_counter() - started
        trainer._metrics["eval"].clear()
        trainer.log(dict(metrics))
        trainer.control = trainer.callback_handler.on_evaluate(
            trainer.args, trainer.state, trainer.control, metrics
        )
    return metrics


def evaluations(
    trainer: "AblationTrainer", dataset: Dataset | dict[str, Dataset]
) -> dict[str, Evaluation]:
    """Every dataset evaluated by itself, so that none depends on which others there are."""
    datasets = dataset if isinstance(dataset, dict) else {MAIN: dataset}
    with _eval_mode(trainer.model):
        return {key: _evaluate_one(trainer, one) for key, one in datasets.items()}


def _evaluate_one(trainer: "AblationTrainer", dataset: Dataset) -> Evaluation:
    own_sampling = sampling_by(trainer, evaluation_generation_kwargs(trainer.args))
    with own_sampling, _own_randomness(trainer):
        rows = graded_completions(trainer, dataset)
    return Evaluation(rows, summary(rows, trainer.num_generations_eval or 1))


@contextmanager
def _eval_mode(model: Any):
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def graded_completions(trainer: "AblationTrainer", dataset: Dataset) -> list[Row]:
    """One row a completion, in the dataset's order, the same list on every process."""
    accelerator = trainer.accelerator
    samples = trainer.num_generations_eval or 1
    shard = -(-len(dataset) // accelerator.num_processes)
    first = accelerator.process_index * shard
    mine = [min(i, len(dataset) - 1) for i in range(first, first + shard)]
    rows: list[Row] = []
    for batch in _batches(mine, trainer):
        rows += _generate_and_grade(trainer, [dataset[i] for i in batch for _ in range(samples)])
    return gather_object(rows)[: len(dataset) * samples]


@contextmanager
def _own_randomness(trainer: "AblationTrainer"):
    """Sampling that depends on the seed and the process only, and leaves the training's as it was.

    torch's generators, and NumPy's, which newer engines on a GPU draw the seed of a request from.
    """
    devices = [trainer.accelerator.device] if trainer.accelerator.device.type == "cuda" else []
    seed = trainer.args.seed + 1_000_003 * (1 + trainer.accelerator.process_index)
    training = np.random.get_state()
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            np.random.set_state(training)


def _batches(indices: list[int], trainer: "AblationTrainer") -> Iterator[list[int]]:
    at_once = trainer.args.per_device_eval_batch_size // (trainer.num_generations_eval or 1)
    size = len(indices) if trainer.use_vllm else max(1, at_once)
    for start in range(0, len(indices), size):
        yield indices[start : start + size]


def _generate_and_grade(trainer: "AblationTrainer", inputs: list[Row]) -> list[Row]:
    prompts = [row["prompt"] for row in inputs]
    generated = trainer._generate(prompts)
    completion_ids, completions = generated[1], generated[3]
    rewards_NF = trainer._calculate_rewards(inputs, prompts, completions, completion_ids)
    weights = trainer.reward_weights.to(rewards_NF.device)
    first = trainer.accelerator.process_index * len(inputs)
    mine_NF = rewards_NF[first : first + len(inputs)]
    parts = {name: list(trainer._pending_extra_logs.get(name, [])) for name in GRADED[1:]}
    trainer._pending_extra_logs.clear()
    trainer._pending_metrics.clear()
    rows = []
    for i, ids in enumerate(completion_ids):
        ungraded = bool(torch.isnan(mine_NF[i]).all())
        row = {
            "prompt": prompts[i],
            "response": completions[i],
            "ground_truth": inputs[i].get("answer"),
            "reward": None if ungraded else (mine_NF[i] * weights).nansum().item(),
            "length": len(ids),
            "truncated": not trainer.stop.ended(ids),
        }
        row |= {name: values[i] for name, values in parts.items() if values}
        rows.append(row)
    return rows
