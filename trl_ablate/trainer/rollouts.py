"""What is known of a rollout batch behind TRL's own columns: rows to keep, and ends to mask."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from trl_ablate.advantages import weighted_reward

REPORTED = ("ground_truth", "format_reward", "answer_reward")
"""Columns that a reward function may report; None where it does not."""


def rollout_rows(
    logs: Mapping[str, Any], reward_names: Sequence[str], weights_F: torch.Tensor
) -> list[dict[str, Any]]:
    """TRL's log of completions as a row per completion: prompt, response, rewards, advantage."""
    rewards_NF = torch.tensor([list(logs["rewards"][name]) for name in reward_names]).T
    if not len(rewards_NF):
        return []
    count = len(rewards_NF)
    reported = {name: list(logs["extra"].get(name, [None] * count)) for name in REPORTED}
    rewards_N = weighted_reward(rewards_NF, weights_F.cpu())
    columns = zip(logs["prompt"], logs["completion"], rewards_N, logs["advantages"], strict=True)
    return [
        {
            "prompt": prompt,
            "response": response,
            "ground_truth": reported["ground_truth"][i],
            "reward": None if torch.isnan(reward) else reward.item(),
            "format_reward": reported["format_reward"][i],
            "answer_reward": reported["answer_reward"][i],
            "advantage": advantage,
        }
        for i, (prompt, response, reward, advantage) in enumerate(columns)
    ]


def response_mask(batch: Mapping[str, Any]) -> torch.Tensor:
    """`(N, T)`: 1 at the tokens the loss counts; a tool's output is not the policy's."""
    mask_NT = batch["completion_mask"]
    return mask_NT * batch["tool_mask"] if "tool_mask" in batch else mask_NT


def without(batch: Mapping[str, Any], kept_N: Sequence[bool]) -> dict[str, Any]:
    """A batch in which the tokens of the rows that are not kept count nowhere."""
    masks = [name for name in ("completion_mask", "tool_mask") if name in batch]
    kept_N1 = torch.tensor(kept_N, device=batch["completion_mask"].device).unsqueeze(1)
    return {**batch, **{name: batch[name] * kept_N1 for name in masks}}
