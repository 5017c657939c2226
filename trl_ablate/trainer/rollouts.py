"""Rows, lengths and ends of the completions of a rollout batch, and their metrics."""

import math
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from trl_ablate.advantages import weighted_reward
from trl_ablate.config import AblationConfig
from trl_ablate.estimates import GRADED
from trl_ablate.metrics import LENGTH_SPREAD, ONLY_SPECIAL, TURNS
from trl_ablate.trainer.batching import of_two_columns, response_mask
from trl_ablate.trainer.generation import StopStrings


@dataclass(frozen=True)
class Setting:
    """What the parts of a step read of the trainer, in training or in an evaluation."""

    config: AblationConfig
    accelerator: Accelerator
    metrics: MutableMapping[str, list[float]]
    """Of this mode: lists of values by name, whose mean TRL logs."""
    training: bool
    group: int
    """Completions per prompt."""

    def gather(self, local: Tensor) -> Any:
        return self.accelerator.gather(local)

    def total(self, local: Tensor) -> Any:
        return self.accelerator.reduce(local, reduction="sum")

    def local_rows(self, rows: int) -> slice:
        """The place of this process's rows, of which each has so many, among those of all."""
        first = self.accelerator.process_index * rows
        return slice(first, first + rows)


@dataclass(frozen=True)
class Described:
    """The completions generated last, over all processes."""

    lengths: list[int]
    """Tokens that the policy has generated."""
    truncated: list[bool]
    """Whether it reached the length limit."""


def describe(
    setting: Setting,
    stop: StopStrings,
    tokenizer: PreTrainedTokenizerBase,
    completion_ids: list[list[int]],
    tool_mask: list[list[int]] | None,
) -> Described:
    """Lengths, without the text of tools (0 in `tool_mask`), and ends of all completions.

    TRL counts only EOS as an end: where there are stop strings, its metrics are corrected. In
    training, and with tools or an environment, those that it lacks are logged.
    """
    special = set(tokenizer.all_special_ids)
    own = [[1] * len(ids) for ids in completion_ids] if tool_mask is None else tool_mask
    facts = [
        (sum(mask), not stop.ended(ids, last_turn(ids, mask)), special.issuperset(ids), turns(mask))
        for ids, mask in zip(completion_ids, own, strict=True)
    ]
    facts_N4 = setting.gather(torch.tensor(facts, device=setting.accelerator.device))
    lengths_N, truncated_N, only_special_N, turns_N = facts_N4.T
    metrics = setting.metrics
    if tool_mask is not None:
        metrics[TURNS].append(turns_N.float().mean().item())
    if setting.training:
        metrics[ONLY_SPECIAL].append(only_special_N.float().mean().item())
        metrics[LENGTH_SPREAD].append(length_spread(lengths_N, setting.group))
    if stop.strings:
        for name, value in truncation_metrics(lengths_N, truncated_N.bool()).items():
            metrics[name][-1] = value
    return Described(lengths_N.tolist(), truncated_N.bool().tolist())


def turns(mask: Sequence[int]) -> int:
    """How often the policy wrote: the parts of a completion between those that tools wrote."""
    return sum(own for own, _ in groupby(mask))


def last_turn(ids: list[int], mask: Sequence[int]) -> list[int]:
    """What the policy wrote after the last token of a tool."""
    first = len(mask)
    while first and mask[first - 1]:
        first -= 1
    return ids[first:]


def graded(
    logs: Mapping[str, Any], reward_names: Sequence[str], weights_F: Tensor
) -> dict[str, Sequence[Any]]:
    """Columns of TRL's completion log: what was reported of every completion, and its `reward`, the
    weighted sum, which is None if no function graded it."""
    rewards_NF = torch.tensor([list(logs["rewards"][name]) for name in reward_names]).T
    rewards = weighted_reward(rewards_NF, weights_F.cpu()).tolist()
    extra = {name: one for name, one in logs["extra"].items() if len(one) == len(rewards)}
    return {**extra, "reward": [None if math.isnan(reward) else reward for reward in rewards]}


def rollout_rows(
    logs: Mapping[str, Any], reward_names: Sequence[str], weights_F: Tensor
) -> list[dict[str, Any]]:
    """TRL's completion log as one row per completion: prompt, response, rewards, advantage."""
    found = graded(logs, reward_names, weights_F)
    unknown = [None] * len(found["reward"])
    columns = {
        "prompt": logs["prompt"],
        "response": logs["completion"],
        **{name: found.get(name, unknown) for name in ("ground_truth", *GRADED)},
        "advantage": logs["advantages"],
    }
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def counted(setting: Setting, batch: Mapping[str, Any]) -> dict[str, Any]:
    """The batch with the number of tokens in the loss over all processes, by TRL's name for it."""
    return {**batch, "num_items_in_batch": setting.gather(response_mask(batch).sum()).sum()}


def without(batch: Mapping[str, Any], kept_N: Sequence[bool]) -> dict[str, Any]:
    """A batch in which the tokens of the rows that are not kept are masked."""
    masks = [name for name in ("completion_mask", "tool_mask") if name in batch]
    kept_N1 = torch.tensor(kept_N, device=batch["completion_mask"].device).unsqueeze(1)
    return of_two_columns({**batch, **{name: batch[name] * kept_N1 for name in masks}})


def truncation_metrics(lengths_N: Tensor, truncated_N: Tensor) -> dict[str, float]:
    """TRL's metrics of how completions ended, by TRL's names; lengths are 0 if none terminated."""
    terminated = torch.zeros(1) if truncated_N.all() else lengths_N[~truncated_N].float()
    return {
        "completions/clipped_ratio": truncated_N.float().mean().item(),
        "completions/mean_terminated_length": terminated.mean().item(),
        "completions/min_terminated_length": terminated.min().item(),
        "completions/max_terminated_length": terminated.max().item(),
    }


def completion_metrics(lengths_N: Tensor, truncated_N: Tensor) -> dict[str, float]:
    """All of TRL's metrics of the lengths and ends of completions, by TRL's names."""
    return {
        "completions/mean_length": float(lengths_N.float().mean()),
        "completions/min_length": float(lengths_N.min()),
        "completions/max_length": float(lengths_N.max()),
        **truncation_metrics(lengths_N, truncated_N),
    }


def quarters_by_length(values_N: Tensor, tokens_N: Tensor) -> dict[str, Tensor]:
    """Values of the completions, in quarters from the shortest (`q1`) to the longest (`q4`).

    Completions without tokens are left out, and so is a quarter without completions.
    """
    has_tokens_N = tokens_N > 0
    order = torch.argsort(tokens_N[has_tokens_N], stable=True)
    quarters = torch.tensor_split(values_N[has_tokens_N][order], 4)
    return {f"q{place}": each for place, each in enumerate(quarters, start=1) if len(each)}


def length_spread(lengths_N: Tensor, num_generations: int) -> float:
    """The standard deviation (ddof 1) of the lengths of a group, consecutive rows, averaged over
    the groups, as a share of the mean length; 0 if all are empty. Unlike the mean length, it does
    not depend on which questions are asked."""
    lengths_N = lengths_N.float()
    deviations_G = lengths_N.view(-1, num_generations).std(dim=1)
    return (deviations_G.mean() / lengths_N.mean().clamp(min=1)).item()
