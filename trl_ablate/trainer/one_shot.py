"""One-shot evaluation: generates all completions in as few calls as possible, then grades them.

TRL evaluates in small batches, generates for each batch separately, and runs a forward pass for a
loss that does not measure the task. This module calls TRL's own generation and scoring with large
batches, so that environments, tools, images and rollout functions work as in training, and without
the forward pass. Metrics are computed over the whole set: none is a mean over batches of different
sizes, and no question counts twice, but for what reward functions, tools and graders log
themselves: with several processes, TRL's mean of these counts a repeated question twice.

`evaluation: trl` is TRL's evaluation in full; see `AblationTrainer.evaluate`.
"""

import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sized
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from datasets import Dataset
from transformers.trainer_utils import speed_metrics
from trl.trainer.utils import get_callable_name, is_async_callable, strip_images_from_messages

from trl_ablate import estimates
from trl_ablate.checks import check_best_metric
from trl_ablate.errors import ConfigurationError
from trl_ablate.estimates import GRADED, GROUP, MAIN, Row
from trl_ablate.metrics import NO_VARIANCE
from trl_ablate.named_code import waited_for
from trl_ablate.rewards.own.chosen import Rewards
from trl_ablate.run.untrusted import on_one_line
from trl_ablate.trainer.generation import evaluation_sampling
from trl_ablate.trainer.groups import told_apart
from trl_ablate.trainer.heap import return_freed_memory
from trl_ablate.trainer.rollouts import completion_metrics, graded
from trl_ablate.trainer.seeding import own_randomness
from trl_ablate.trainer.temporary import replaced

READ_AT_ONCE = 64
Metrics = dict[str, Any]
"""Metric values by name; None if no completion has the metric."""


@dataclass(frozen=True)
class Evaluation:
    rows: list[Row]
    """One per completion, in the set's order."""
    metrics: Metrics
    """The result of `estimates.summary`."""
    trl_metrics: Metrics
    """TRL's own, by TRL's names."""


def evaluate_one_shot(trainer: Any, given: Any, prefix: str) -> Metrics:
    """Evaluate all sets, then log one row and call the callbacks once.

    The metrics of a single set, and of the set at key `MAIN`, are named `{prefix}_...`; those of
    another set `{prefix}_{key}_...`. `time/eval` is the seconds for all sets.
    """
    started = time.perf_counter()
    with apart_from_training(trainer):
        metrics: Metrics = {
            estimates.metric_name(name, key, prefix): value
            for key, found in _each_set(trainer, given).items()
            for name, value in {**found.trl_metrics, **found.metrics}.items()
        }
        metrics["time/eval"] = time.perf_counter() - started
        trainer.log(metrics)
        trainer.control = trainer.callback_handler.on_evaluate(
            trainer.args, trainer.state, trainer.control, metrics
        )
    return metrics


def evaluations(trainer: Any, given: Any) -> dict[str, Evaluation]:
    """Rows and metrics of every set; nothing is logged."""
    with apart_from_training(trainer):
        return _each_set(trainer, given)


def sets(trainer: Any, given: Any = None) -> dict[str, Any]:
    """The sets to evaluate, by key. `given` is a set, a dict of sets, or the name of one of the
    trainer's sets; None is all of the trainer's sets.
    """
    own = trainer.eval_dataset
    if isinstance(given, str):
        if not isinstance(own, Mapping) or given not in own:
            names = ", ".join(map(str, own)) if isinstance(own, Mapping) else "none has a name"
            raise ConfigurationError(
                f"there is no evaluation set '{given}'; the trainer's eval_dataset has: {names}"
            )
        return {MAIN: own[given]}
    found = own if given is None else given
    if found is None:
        raise ConfigurationError(
            "there is no evaluation set; pass an eval_dataset to the trainer or to evaluate()"
        )
    by_key = dict(found) if isinstance(found, Mapping) else {MAIN: found}
    for key, one in by_key.items():
        if isinstance(one, Sized) and not len(one):
            raise _empty(key)
    if not by_key:
        raise _empty(MAIN)
    return by_key


def check_sets(trainer: Any) -> None:
    """Refuse, before training, sets that cannot be evaluated as configured."""
    by_key = sets(trainer)
    check_best_metric(trainer.args, by_key)
    if trainer.args.evaluation == "trl" and MAIN in by_key and len(by_key) > 1:
        raise ConfigurationError(
            "evaluation 'trl' logs several sets under the same names; use evaluation 'one_shot', "
            f"or remove eval_sets ({', '.join(key for key in by_key if key)})"
        )


def _empty(key: str) -> ConfigurationError:
    name = f"evaluation set '{key}'" if key else "evaluation set"
    return ConfigurationError(
        f"the {name} is empty; give one with questions, or set eval_strategy to 'no'"
    )


def own_rewards(trainer: Any, key: str) -> AbstractContextManager[None]:
    """Until the end of the block, the trainer grades with the rewards of the set, if it has any."""
    own: Rewards | None = trainer.rewards_of_sets.get(key)
    if own is None:
        return nullcontext()
    return replaced(
        trainer,
        reward_funcs=[_plain(one) for one in own.functions],
        reward_func_names=told_apart([get_callable_name(one) for one in own.functions]),
        reward_weights=torch.tensor(own.weights).to(trainer.reward_weights),
        reward_processing_classes=[None] * len(own.functions),
    )


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """An async function as a plain one: TRL has an event loop only if the trainer's rewards need
    it."""
    if not is_async_callable(function):
        return function
    return lambda **given: waited_for(function(**given))


@contextmanager
def apart_from_training(trainer: Any):
    """Until the end of the block, the model is in evaluation mode and samples as configured for
    it, and training's completion log and environments are protected."""
    values: dict[str, Any] = {"_logs": _emptied(trainer._logs)}
    if trainer.environment_factories is not None:
        values["environments"] = trainer.environments
        values["_environment_pool"] = trainer.evaluation_environments
    was_training = trainer.model.training
    trainer.model.eval()
    try:
        with replaced(trainer, **values), evaluation_sampling(trainer):
            yield
    finally:
        trainer.model.train(was_training)


def _each_set(trainer: Any, given: Any) -> dict[str, Evaluation]:
    """Evaluate every set separately, so that its result does not depend on the other sets."""
    found = {}
    for key, one in sets(trainer, given).items():
        with own_rewards(trainer, key):
            found[key] = _evaluate_one(trainer, one)
    return found


def _evaluate_one(trainer: Any, dataset: Any) -> Evaluation:
    started, samples = time.time(), trainer.num_generations_eval
    rows: list[Row] = []
    rewards: dict[str, list[float | None]] = {name: [] for name in trainer.reward_func_names}
    called: list[dict[str, float]] = []
    counts: list[int] = []
    with (
        own_randomness(trainer),
        # Only a loss needs log-probabilities: of the reference model, for vLLM's correction, and
        # of rollouts that are trained on several times
        replaced(trainer, beta=0.0, vllm_importance_sampling_correction=False, num_iterations=1),
        replaced(trainer.args, steps_per_generation=1),
    ):
        for questions in _batches(trainer, dataset):
            called.append(_call(trainer, questions))
            found = _rows(trainer, questions)
            counts.append(len(found))
            rows += found
            for name, values in rewards.items():
                logged = trainer._logs["rewards"][name]
                values += [None if math.isnan(reward) else reward for reward in logged]
    if not called:
        raise _empty(MAIN)
    of_rewards = estimates.reward_metrics(rewards, [row["reward"] for row in rows], samples)
    grouped = trainer.scale_rewards != "batch"
    if not grouped or trainer.multi_objective_aggregation != "sum_then_normalize":
        del of_rewards[NO_VARIANCE]  # TRL's value is not about groups there
    lengths_N = torch.tensor([row["length"] for row in rows])
    truncated_N = torch.tensor([row["truncated"] for row in rows])
    speed = speed_metrics(MAIN, started, num_samples=len(rows), num_steps=len(called))
    return Evaluation(
        rows=rows,
        metrics={
            **estimates.summary(rows, samples),
            **estimates.by_group(rows, samples, trainer.args.eval_by),
        },
        trl_metrics={
            **estimates.merged(called, counts),
            **of_rewards,
            **completion_metrics(lengths_N, truncated_N),
            **{name.removeprefix("_"): value for name, value in speed.items()},
        },
    )


def _batches(trainer: Any, dataset: Any) -> Iterator[list[Row]]:
    """The questions of each call, for all processes, in the set's order. A set may be a stream.
    On a CPU, what training or the last call has freed is returned first, and at the end."""
    questions = _each(dataset)
    at_once = max(1, trainer.args.per_device_eval_batch_size // trainer.num_generations_eval)
    size = None if _takes_all(trainer) else at_once * trainer.accelerator.num_processes
    while True:
        if trainer.args.use_cpu:
            return_freed_memory()
        if not (batch := list(islice(questions, size))):
            return
        yield batch


def _each(dataset: Any) -> Iterator[Row]:
    """The questions of a set. A `datasets.Dataset` takes long to give one row at a time."""
    if not isinstance(dataset, Dataset):
        yield from dataset
        return
    for columns in dataset.iter(READ_AT_ONCE):
        batch: Any = columns
        for row in zip(*batch.values(), strict=True):
            yield dict(zip(batch, row, strict=True))


def _takes_all(trainer: Any) -> bool:
    """Whether a whole set fits into one call: vLLM queues prompts. It does not fit if there are
    environments, images or a reward model: all of their data would be in memory at once."""
    queued = trainer.use_vllm and trainer.environment_factories is None and not trainer._is_vlm
    return queued and not any(isinstance(f, torch.nn.Module) for f in trainer.reward_funcs)


def _call(trainer: Any, questions: list[Row]) -> dict[str, float]:
    """Generate and grade `questions`, the same on every process, in one call; TRL's metrics of it.

    Every process takes the same number of questions. If they cannot be divided, the last question
    is repeated, and the log is cut to the results of the questions.
    """
    samples = trainer.num_generations_eval
    size = -(-len(questions) // trainer.accelerator.num_processes)
    first = trainer.accelerator.process_index * size
    own = [questions[min(i, len(questions) - 1)] for i in range(first, first + size)]
    trainer._logs = _emptied(trainer._logs)
    metrics = trainer._metrics["eval"]
    metrics.clear()
    trainer._generate_and_score_completions(
        [_columns(trainer, question) for question in own for _ in range(samples)]
    )
    found = {name: values[-1] for name, values in metrics.items()}
    metrics.clear()
    for column in trainer._logs.values():
        for values in column.values() if isinstance(column, dict) else (column,):
            while len(values) > len(questions) * samples:
                values.pop()
    return found


def _columns(trainer: Any, question: Row) -> Row:
    """A copy, because TRL changes it, with the columns that TRL's data loader would keep."""
    if not trainer.args.remove_unused_columns:
        return dict(question)
    trainer._set_signature_columns_if_needed()
    return {name: question[name] for name in trainer._signature_columns or () if name in question}


def _rows(trainer: Any, questions: list[Row]) -> list[Row]:
    logs, samples = trainer._logs, trainer.num_generations_eval
    found = graded(logs, trainer.reward_func_names, trainer.reward_weights)
    return [
        {
            "prompt": strip_images_from_messages(prompt),
            "response": strip_images_from_messages(logs["completion"][i]),
            "ground_truth": questions[i // samples].get("answer"),
            "reward": found["reward"][i],
            "length": trainer.described.lengths[i],
            "truncated": trainer.described.truncated[i],
            **of_question(questions[i // samples], trainer.args.eval_by),
            **{name: found[name][i] for name in GRADED[1:] if name in found},
        }
        for i, prompt in enumerate(logs["prompt"])
    ]


def of_question(question: Mapping[str, Any], column: str | None) -> dict[str, Any]:
    """The entries of a row that name its question and its group, as far as its set has them."""
    found = {"question": question["question"]} if "question" in question else {}
    if column is not None and column in question:
        value = question[column]
        found[GROUP] = "none" if value is None else on_one_line(str(value))
    return found


def _emptied(logs: dict[str, Any]) -> dict[str, Any]:
    """TRL's completion log without its rows, and without its limit of one rollout batch."""
    return {
        name: defaultdict(deque) if isinstance(column, dict) else deque()
        for name, column in logs.items()
    }
