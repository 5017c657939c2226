"""Dynamic sampling: groups without reward variance are replaced by groups of fresh prompts.

Each round generates as many groups as are missing, rounded up to what the processes can share
evenly. Rounds end when the batch is full, or after `max_resample_rounds`; groups that are still
missing keep the place of a group without variance, which `group_filter` then drops.

Fresh prompts are drawn at random from the training set, as a function of the run's seed, the step
and the round. So no cursor has to be saved to resume. TRL's metrics of rollouts and rewards are
those of the first round, whose prompts do not depend on this switch.
"""

import logging
import math
import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from datasets import IterableDataset
from torch.nn.functional import pad

from trl_ablate.advantages import has_variance
from trl_ablate.errors import ConfigurationError
from trl_ablate.trainer.batching import PROMPT_KEYS, SCALAR_KEYS, is_text
from trl_ablate.trainer.groups import Scored, local_rows
from trl_ablate.trainer.rollouts import counted

if TYPE_CHECKING:
    from trl_ablate.trainer.ablation import AblationTrainer

logger = logging.getLogger(__name__)

Place = tuple[int, int]
"""A round, and a group in it."""


def check_dataset(trainer: "AblationTrainer") -> None:
    """Refuse a stream: fresh prompts are drawn at random places of the training set."""
    if isinstance(trainer.train_dataset, IterableDataset):
        raise ConfigurationError(
            "group_filter 'resample' draws fresh prompts at random places of the training set, "
            "but this one is a stream; load it as a whole, or use group_filter 'drop'"
        )


def fill(kept: Sequence[Sequence[bool]]) -> list[Place]:
    """The group in each place of the batch, from which groups of each round have variance.

    Groups of the first round with variance keep their places; the other places take the groups with
    variance of later rounds, in order. If they do not suffice, the last of these places keep their
    group without variance.
    """
    fresh = deque(
        (turn, place)
        for turn, kept_P in enumerate(kept[1:], start=1)
        for place, one in enumerate(kept_P)
        if one
    )
    return [
        (0, place) if one or not fresh else fresh.popleft() for place, one in enumerate(kept[0])
    ]


def resampled(trainer: "AblationTrainer", first: Scored) -> Scored:
    """The first round's groups with variance, and those of further rounds in place of the others.

    Every process calls this; batches are composed of the groups of all processes.
    """
    group: Any = trainer.num_generations
    rounds, kept = [_gathered(trainer, first)], [has_variance(first.outcome_N, group).tolist()]
    logs, metrics = [_columns(trainer, len(first.outcome_N))], _lengths(trainer)
    while (missing := kept[0].count(False) - sum(map(sum, kept[1:]))) > 0:
        if len(rounds) > trainer.args.max_resample_rounds:
            logger.warning(
                "%d of %d groups have no reward variance after %d rounds of resampling; they are "
                "left out of this step",
                *(missing, len(kept[0]), trainer.args.max_resample_rounds),
            )
            break
        found = trainer.scored(_fresh_rows(trainer, missing, len(rounds)), len(rounds))
        rounds.append(_gathered(trainer, found))
        kept.append(has_variance(found.outcome_N, group).tolist())
        logs.append(_columns(trainer, len(found.outcome_N)))
    if len(rounds) == 1:
        return first
    _forget_later(trainer, metrics)
    rows = [(turn, group * place + row) for turn, place in fill(kept) for row in range(group)]
    _log_columns(trainer, logs, rows)
    return _composed(trainer, rounds, rows)


def _fresh_rows(trainer: "AblationTrainer", missing: int, turn: int) -> list[dict[str, Any]]:
    """The rows of this process, of at least `missing` groups."""
    group: Any = trainer.num_generations
    processes = trainer.accelerator.num_processes
    together = processes // math.gcd(processes, group)
    groups = -(-missing // together) * together
    dataset: Any = trainer.train_dataset
    draw = random.Random(f"{trainer.args.seed}-{trainer._step}-{turn}-prompts")
    chosen = (
        draw.sample(range(len(dataset)), groups)
        if groups <= len(dataset)
        else draw.choices(range(len(dataset)), k=groups)
    )
    local = local_rows(trainer, groups * group // processes)
    return [dict(dataset[chosen[row // group]]) for row in range(local.start, local.stop)]


def _gathered(trainer: "AblationTrainer", found: Scored) -> Scored:
    """The rows of all processes."""
    if not is_text(found.batch):
        raise ConfigurationError(
            "group_filter 'resample' composes batches of text only, but this one has "
            f"{', '.join(sorted(found.batch))}; use group_filter 'drop'"
        )
    accelerator: Any = trainer.accelerator
    batch = {}
    for key, value in found.batch.items():
        if key not in SCALAR_KEYS:
            if value.dim() > 1:
                value = accelerator.pad_across_processes(
                    value,
                    dim=1,
                    pad_index=_padding(trainer, key),
                    pad_first=key in PROMPT_KEYS,
                )
            value = accelerator.gather(value)
        batch[key] = value
    return replace(found, batch=batch)


def _padding(trainer: "AblationTrainer", key: str) -> int:
    return {
        "prompt_ids": trainer._tokenizer.pad_token_id,
        "completion_ids": trainer._tokenizer.pad_token_id,
        "tool_mask": 1,
        "importance_sampling_ratio": 1,  # VESPO takes its log
    }.get(key, 0)


def _composed(
    trainer: "AblationTrainer", rounds: Sequence[Scored], rows: Sequence[Place]
) -> Scored:
    """One batch of these rows of these rounds; this process keeps its part of it."""
    first = rounds[0]
    whole = {
        key: value
        if key in SCALAR_KEYS
        else _taken([each.batch[key] for each in rounds], rows, key, _padding(trainer, key))
        for key, value in first.batch.items()
    }
    local = local_rows(trainer, len(rows) // trainer.accelerator.num_processes)
    batch = {key: value if key in SCALAR_KEYS else value[local] for key, value in whole.items()}
    penalties = [each.penalty_N for each in rounds if each.penalty_N is not None]
    shaping = [each.shaping_N for each in rounds if each.shaping_N is not None]
    return Scored(
        batch=counted(trainer, batch),
        outcome_N=_taken([each.outcome_N for each in rounds], rows),
        shaping_N=_taken(shaping, rows) if shaping else None,
        passed_N=first.passed_N,
        penalty_N=_taken(penalties, rows) if penalties else None,
        generated=sum(each.generated for each in rounds),
        generated_tokens=sum(each.generated_tokens for each in rounds),
    )


def _taken(
    tensors: Sequence[torch.Tensor], rows: Sequence[Place], key: str = "", padding: int = 0
) -> torch.Tensor:
    """The rows of one tensor per round, padded to the same width: prompts left, others right."""
    if tensors[0].dim() > 1:
        width = max(tensor.size(1) for tensor in tensors)
        sides = [
            (width - tensor.size(1), 0) if key in PROMPT_KEYS else (0, width - tensor.size(1))
            for tensor in tensors
        ]
        tensors = [
            pad(tensor, side, value=padding) for tensor, side in zip(tensors, sides, strict=True)
        ]
    return torch.stack([tensors[turn][row] for turn, row in rows])


def _columns(trainer: "AblationTrainer", count: int) -> dict[tuple[str, ...], list[Any]]:
    """TRL's log of its last call, `count` rows, by column, without columns that lack rows."""
    columns: dict[tuple[str, ...], Any] = {}
    for name, column in trainer._logs.items():
        if isinstance(column, Mapping):
            columns |= {(name, part): values for part, values in column.items()}
        else:
            columns[(name,)] = column
    return {name: list(values)[-count:] for name, values in columns.items() if len(values) >= count}


def _log_columns(
    trainer: "AblationTrainer",
    logs: Sequence[Mapping[tuple[str, ...], list[Any]]],
    rows: Sequence[Place],
) -> None:
    """Replace TRL's log of completions by these rows; None where a round did not log a column."""
    for name in logs[0]:
        column: Any = trainer._logs
        for part in name:
            column = column[part]
        column.clear()
        column.extend(logs[turn][name][row] if name in logs[turn] else None for turn, row in rows)


def _lengths(trainer: "AblationTrainer") -> dict[str, int]:
    return {name: len(values) for name, values in trainer._metrics["train"].items()}


def _forget_later(trainer: "AblationTrainer", lengths: Mapping[str, int]) -> None:
    """Remove the values that later rounds have added to the metrics."""
    metrics = trainer._metrics["train"]
    for name in list(metrics):
        del metrics[name][lengths.get(name, 0) :]
        if not metrics[name]:
            del metrics[name]
