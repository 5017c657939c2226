"""From the rewards of a rollout batch to its advantages, and to the groups that count in the loss.

TRL generates and scores; this module replaces its advantages, masks the groups that `group_filter`
drops and the rows that `length_norm: nonzero` leaves out, and logs metrics of the groups. Rewards,
advantages and tokens are those of all processes, so that statistics and divisors are global; a
batch is the part of one process.
"""

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trl_ablate.advantages import (
    compute_advantages,
    hard_group_weight,
    has_variance,
    overlong_penalty,
    signed_and_clipped,
    weighted_reward,
)
from trl_ablate.controls import flipped, placebo_reward
from trl_ablate.errors import ConfigurationError
from trl_ablate.estimates import success
from trl_ablate.losses import prompt_weights
from trl_ablate.metrics import ANSWER
from trl_ablate.trainer.batching import BONUS_WEIGHTS, ROW_WEIGHTS, Batch, response_mask
from trl_ablate.trainer.rollouts import Setting, counted, quarters_by_length, without

MEAN_OVER_ROWS = ("grpo", "sapo", "dr_grpo", "luspo")
"""TRL's loss types that divide by the number of rows, and so by the dropped ones, too."""
MEAN_OVER_TOKENS = ("grpo", "sapo")
"""TRL's loss types in which a completion's weight does not grow with its length."""


@dataclass(frozen=True)
class Scored:
    """Completions that TRL has generated and scored in one call or, combined, in several."""

    batch: Batch
    """Of this process."""
    outcome_N: Tensor
    """The reward that baseline, scale and filter look at."""
    shaping_N: Tensor | None
    passed_N: Tensor
    """Whether it is a success, as evaluations count it."""
    penalty_N: Tensor | None
    """Subtracted from the reward, but not looked at by the filter and the gate."""
    lengths: Sequence[int]
    """Tokens of all completions that were generated."""


def told_apart(names: Sequence[str]) -> list[str]:
    """The names of reward functions, with a number where TRL calls two alike, such as lambdas."""
    found: list[str] = []
    for name in names:
        free = (f"{name}_{number}" for number in itertools.count(2))
        taken = {*found, *names}
        found.append(name if name not in found else next(one for one in free if one not in taken))
    return found


def check_outcome_gate(config: Any, names: list[str]) -> None:
    gate = config.outcome_gate
    if gate is not None and gate not in names:
        raise ConfigurationError(
            f"outcome_gate is '{gate}', but the reward functions are {', '.join(names)}; name one "
            "of them, or set outcome_gate to null"
        )


def outcome_and_shaping(
    rewards_NF: Tensor, weights_F: Tensor, gate: int | None
) -> tuple[Tensor, Tensor | None]:
    """The reward that decides, and the sum of the others, which a gate separates from it."""
    if gate is None:
        return weighted_reward(rewards_NF, weights_F), None
    others_F = torch.arange(len(weights_F)) != gate
    outcome_N = weighted_reward(rewards_NF[:, ~others_F], weights_F[~others_F])
    return outcome_N, (rewards_NF[:, others_F] * weights_F[others_F].to(outcome_N)).nansum(1)


def scored(
    setting: Setting,
    batch: Batch,
    rewards_NF: Tensor,
    weights_F: Tensor,
    names: list[str],
    marks: Sequence[float | None],
    lengths: Sequence[int],
    of_kl_N: Tensor | None,
    call: str,
) -> Scored:
    """The result of one call of TRL. In training, the control switches act on the rewards.

    Args:
        marks: `answer_reward` of all completions; none where no reward function logs it.
        lengths: tokens of all completions.
        of_kl_N: penalty of the KL, if it is in the reward.
        call: step and number of the call, from which the draws of the controls follow.
    """
    args: Any = setting.config
    lengths_N = torch.tensor(lengths, device=rewards_NF.device)
    gate = names.index(args.outcome_gate) if args.outcome_gate in names else None  # not of a set's
    outcome_N, shaping_N = outcome_and_shaping(rewards_NF, weights_F, gate)
    passed_N = weighted_reward(rewards_NF, weights_F) > 0
    if len(marks) == len(lengths):
        passed_N = passed_N.new_tensor([bool(success({ANSWER: mark})) for mark in marks])
    if setting.training and (args.reward_noise or args.placebo):
        draw = random.Random(f"{args.seed}-{call}-reward")
        draws_N = [draw.random() for _ in lengths]
        if args.placebo is not None:
            longest = args.max_completion_length
            outcome_N, shaping_N = placebo_reward(args.placebo, draws_N, lengths_N, longest), None
        else:
            noisy_NF = flipped(rewards_NF, draws_N, args.reward_noise)
            outcome_N, _ = outcome_and_shaping(noisy_NF, weights_F, gate)
    penalty_N = of_kl_N
    if setting.training and args.overlong_penalty:
        over_N = overlong_penalty(lengths_N, args.max_completion_length, args.overlong_share)
        of_length_N = args.overlong_penalty * over_N
        setting.metrics["rollouts/overlong_penalty"].append(of_length_N.mean().item())
        penalty_N = of_length_N if of_kl_N is None else of_kl_N + of_length_N
    return Scored(batch, outcome_N, shaping_N, passed_N, penalty_N, lengths)


def with_advantages(setting: Setting, found: Scored, *, bonus: bool) -> tuple[Batch, Tensor]:
    """The batch with our advantages, and without the groups and rows that are left out; and the
    advantages of all processes. `bonus`: whether the loss has an entropy bonus."""
    args, group = setting.config, setting.group
    filters = setting.training and args.group_filter != "none"
    kept_P = has_variance(found.outcome_N, group)
    kept_P = kept_P if filters else torch.ones_like(kept_P)
    kept_N = kept_P.repeat_interleave(group)
    tokens_N = setting.gather(response_mask(found.batch).sum(dim=1))
    advantages_N = _advantages(setting, found, tokens_N, kept_N)
    if setting.training and args.length_norm == "nonzero":
        kept_N = kept_N & (advantages_N != 0)
    weights_P = _row_weights(args, tokens_N.view(-1, group), kept_P)
    weights_N = None if weights_P is None else weights_P.repeat_interleave(group)
    if setting.training:
        of_tokens = args.loss_type not in MEAN_OVER_TOKENS
        weighted_N = advantages_N if weights_N is None else advantages_N * weights_N
        for name, value in {
            **rollout_counts(found.lengths, tokens_N, kept_N),
            **pass_counts(found.passed_N.view(-1, group)),
            **weight_by_sign(advantages_N),
            **weight_by_length(weighted_N, tokens_N * kept_N, per_token=of_tokens),
        }.items():
            setting.metrics[name].append(value)
    local = setting.local_rows(len(found.batch["prompt_mask"]))
    batch = {**found.batch, "advantages": advantages_N[local]}
    if not kept_N.all():
        batch = counted(setting, without(batch, kept_N[local].tolist()))
    if weights_N is not None:
        batch[ROW_WEIGHTS] = weights_N[local]
    if bonus and not kept_N.all():
        batch[BONUS_WEIGHTS] = kept_N[local].float()  # `weigh_microbatches` makes factors of them
    return batch, advantages_N


def _row_weights(args: Any, tokens_PG: Tensor, kept_P: Tensor) -> Tensor | None:
    """The factor of the loss of each group's rows, `(P,)`; None if all are 1."""
    if args.length_norm == "prompt":
        return prompt_weights(tokens_PG, kept_P)
    if args.loss_type == "bnpo" and not kept_P.all():
        return kept_P.float()  # `weigh_microbatches` makes factors of them
    if kept_P.all() or args.loss_type not in MEAN_OVER_ROWS:
        return None
    return torch.full(kept_P.shape, len(kept_P) / max(1, int(kept_P.sum()))).to(tokens_PG.device)


def _advantages(setting: Setting, found: Scored, tokens_N: Tensor, kept_N: Tensor) -> Tensor:
    """`(N,)`. A dropped group takes no part in the statistics of the batch."""
    args, group = setting.config, setting.group
    if args.multi_objective_aggregation == "sum_then_normalize":
        advantages_N = compute_advantages(
            found.outcome_N.masked_fill(~kept_N, torch.nan),
            group,
            baseline=args.baseline,
            scale=args.scale_rewards,
            eps=args.advantage_eps,
            tokens_N=tokens_N,
            shaping_N=found.shaping_N,
            penalty_N=found.penalty_N,
            best_of=args.best_of,
        ) * hard_group_weight(found.outcome_N, group, args.hard_group_exponent)
    else:
        advantages_N = setting.gather(found.batch["advantages"])
    return signed_and_clipped(
        advantages_N,
        positive_weight=args.positive_weight,
        negative_weight=args.negative_weight,
        clip=args.advantage_clip,
    )


def pass_counts(passed_PG: Tensor) -> dict[str, float]:
    """`groups/passed/k`: the share of groups of which exactly k completions pass, for k = 0 … G.
    An ungraded completion does not pass."""
    counts_P, group = passed_PG.sum(dim=1), passed_PG.size(1)
    return {f"groups/passed/{k}": (counts_P == k).float().mean().item() for k in range(group + 1)}


def weight_by_sign(advantages_N: Tensor) -> dict[str, float]:
    """`advantages/positive`, `advantages/negative`: the sum of the absolute advantages of this
    sign, divided by N; together, the mean absolute advantage."""
    return {
        "advantages/positive": advantages_N.clamp(min=0).mean().item(),
        "advantages/negative": (-advantages_N).clamp(min=0).mean().item(),
    }


def weight_by_length(
    advantages_N: Tensor, tokens_N: Tensor, *, per_token: bool
) -> dict[str, float]:
    """`advantages/weight/q1` (shortest quarter of the completions) to `q4` (longest): share of the
    weight in the loss; 0 if all weights are.

    The weight of a completion is |A|, with the factor of its row, times its tokens if the loss is a
    sum over tokens (`per_token`) and not a mean over them.
    """
    weights_N = advantages_N.abs().float() * (tokens_N if per_token else 1)
    whole = weights_N[tokens_N > 0].sum()
    return {
        f"advantages/weight/{name}": (quarter.sum() / whole).item() if whole > 0 else 0.0
        for name, quarter in quarters_by_length(weights_N, tokens_N).items()
    }


def rollout_counts(lengths: Sequence[int], tokens_N: Tensor, kept_N: Tensor) -> dict[str, float]:
    """Rollouts and tokens of one GRPO step: generated over all rounds, with these lengths, used in
    the loss (those of the batch that count, and are kept), and dropped (the rest)."""
    used_N = tokens_N * kept_N
    used, used_tokens = int((used_N > 0).sum()), int(used_N.sum())
    return {
        "rollouts/generated": float(len(lengths)),
        "rollouts/used": float(used),
        "rollouts/dropped": float(len(lengths) - used),
        "rollouts/used_tokens": float(used_tokens),
        "rollouts/dropped_tokens": float(sum(lengths) - used_tokens),
    }
