"""From the rewards of a rollout batch to its advantages, and to the groups that count in the loss.

TRL generates and scores; this module replaces its advantages, masks the groups that `group_filter`
drops and the rows that `length_norm: nonzero` leaves out, and logs metrics of the groups. Rewards,
advantages and tokens are those of all processes, so that statistics and divisors are global; a
batch is the part of one process.
"""

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

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
from trl_ablate.losses import prompt_weights
from trl_ablate.trainer.batching import BONUS_WEIGHTS, ROW_WEIGHTS, Batch
from trl_ablate.trainer.group_metrics import (
    pass_counts,
    rollout_counts,
    weight_by_length,
    weight_by_sign,
)
from trl_ablate.trainer.kl import kl_penalty
from trl_ablate.trainer.rollouts import counted, response_mask, without

if TYPE_CHECKING:
    from trl_ablate.trainer.ablation import AblationTrainer

MEAN_OVER_ROWS = ("grpo", "sapo", "dr_grpo", "luspo")
"""TRL's loss types that divide by the number of rows, and so by the dropped ones, too."""
MEAN_OVER_TOKENS = ("grpo", "sapo")
"""TRL's loss types in which a completion's weight does not grow with its length."""
ANSWER = "answer"
"""Reward function whose value above 0 is a pass, where there are several."""


@dataclass(frozen=True)
class Scored:
    """Completions that TRL has generated and scored in one call or, combined, in several."""

    batch: Batch
    """Of this process."""
    outcome_N: torch.Tensor
    """The reward that baseline, scale and filter look at."""
    shaping_N: torch.Tensor | None
    passed_N: torch.Tensor
    penalty_N: torch.Tensor | None
    """Subtracted from the reward, but not looked at by the filter and the gate."""
    generated: int
    generated_tokens: int


def check_outcome_gate(config: Any, names: list[str]) -> None:
    """Refuse the name of a reward function that does not exist."""
    gate = config.outcome_gate
    if gate is not None and gate not in names:
        raise ConfigurationError(
            f"outcome_gate is '{gate}', but the reward functions are {', '.join(names)}; name one "
            "of them, or set outcome_gate to null"
        )


def scored(trainer: "AblationTrainer", batch: Batch, rewards_NF: torch.Tensor, turn: int) -> Scored:
    """The result of TRL's call number `turn` of this rollout batch. In training, the control
    switches act on the rewards."""
    args, names, lengths = trainer.args, trainer.reward_func_names, trainer.described.lengths
    outcome_N, shaping_N = split_rewards(rewards_NF, trainer.reward_weights, names, args)
    passing = args.outcome_gate or (ANSWER if ANSWER in names else None)
    passed_N = (outcome_N if passing is None else rewards_NF[:, names.index(passing)]) > 0
    if trainer.model.training and (args.reward_noise or args.placebo):
        draw = random.Random(f"{args.seed}-{trainer._step}-{turn}-reward")
        draws_N = [draw.random() for _ in range(len(rewards_NF))]
        if args.placebo is not None:
            lengths_N = torch.tensor(lengths, device=rewards_NF.device)
            longest: Any = args.max_completion_length
            outcome_N, shaping_N = placebo_reward(args.placebo, draws_N, lengths_N, longest), None
        else:
            outcome_N, shaping_N = split_rewards(
                noisy(rewards_NF, draws_N, names, args), trainer.reward_weights, names, args
            )
    penalty_N = penalties(trainer, batch, torch.tensor(lengths, device=rewards_NF.device))
    return Scored(batch, outcome_N, shaping_N, passed_N, penalty_N, len(rewards_NF), sum(lengths))


def penalties(
    trainer: "AblationTrainer", batch: Batch, lengths_N: torch.Tensor
) -> torch.Tensor | None:
    """What is subtracted from the reward of each completion; None if nothing is."""
    args, of_kl_N = trainer.args, kl_penalty(trainer, batch)
    if not (args.overlong_penalty and trainer.model.training):
        return of_kl_N
    longest: Any = args.max_completion_length
    of_length_N = args.overlong_penalty * overlong_penalty(lengths_N, longest, args.overlong_share)
    trainer._metrics["train"]["rollouts/overlong_penalty"].append(of_length_N.mean().item())
    return of_length_N if of_kl_N is None else of_kl_N + of_length_N


def split_rewards(
    rewards_NF: torch.Tensor, weights_F: torch.Tensor, names: list[str], args: Any
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The reward that decides, and the shaping reward within it, which only a gate separates."""
    if args.outcome_gate is None:
        return weighted_reward(rewards_NF, weights_F), None
    is_gate_F = torch.tensor([name == args.outcome_gate for name in names])
    outcome_N = weighted_reward(rewards_NF[:, is_gate_F], weights_F[is_gate_F])
    return outcome_N, (rewards_NF[:, ~is_gate_F] * weights_F[~is_gate_F].to(outcome_N)).nansum(1)


def noisy(
    rewards_NF: torch.Tensor, draws_N: list[float], names: list[str], args: Any
) -> torch.Tensor:
    """The rewards with some outcomes flipped; with a gate, only the gate's."""
    everything_NF = flipped(rewards_NF, draws_N, args.reward_noise)
    if args.outcome_gate is None:
        return everything_NF
    is_gate_F = torch.tensor([name == args.outcome_gate for name in names])
    return torch.where(is_gate_F.to(rewards_NF.device), everything_NF, rewards_NF)


def group_size(trainer: "AblationTrainer") -> int:
    size: Any = trainer.num_generations if trainer.model.training else trainer.num_generations_eval
    return size


def with_advantages(trainer: "AblationTrainer", found: Scored) -> Batch:
    """The batch with our advantages, and without the groups and rows that are left out."""
    args, group = trainer.args, group_size(trainer)
    gather: Any = trainer.accelerator.gather
    filters = trainer.model.training and args.group_filter != "none"
    kept_P = has_variance(found.outcome_N, group)
    kept_P = kept_P if filters else torch.ones_like(kept_P)
    kept_N = kept_P.repeat_interleave(group)
    tokens_N = gather(response_mask(found.batch).sum(dim=1))
    advantages_N = _advantages(trainer, found, tokens_N, kept_N)
    if trainer.model.training and args.length_norm == "nonzero":
        kept_N = kept_N & (advantages_N != 0)
    weights_P = _row_weights(trainer, tokens_N.view(-1, group), kept_P)
    weights_N = None if weights_P is None else weights_P.repeat_interleave(group)
    _log(trainer, found, advantages_N, tokens_N, kept_N, weights_N)
    local = local_rows(trainer, len(found.batch["prompt_mask"]))
    batch = {**found.batch, "advantages": advantages_N[local]}
    if not kept_N.all():
        batch = counted(trainer, without(batch, kept_N[local].tolist()))
    if weights_N is not None:
        batch[ROW_WEIGHTS] = weights_N[local]
    if trainer._entropy_bonus_enabled and not kept_N.all():
        batch[BONUS_WEIGHTS] = kept_N[local].float()  # `weigh_microbatches` makes factors of them
    return batch


def _row_weights(
    trainer: "AblationTrainer", tokens_PG: torch.Tensor, kept_P: torch.Tensor
) -> torch.Tensor | None:
    """The factor of the loss of each group's rows, `(P,)`; None if all are 1."""
    if trainer.args.length_norm == "prompt":
        return prompt_weights(tokens_PG, kept_P)
    if trainer.loss_type == "bnpo" and not kept_P.all():
        return kept_P.float()  # `weigh_microbatches` makes factors of them
    if kept_P.all() or trainer.loss_type not in MEAN_OVER_ROWS:
        return None
    return torch.full(kept_P.shape, len(kept_P) / max(1, int(kept_P.sum()))).to(tokens_PG.device)


def local_rows(trainer: "AblationTrainer", rows: int) -> slice:
    """The place of this process's rows, of which each has so many, among those of all."""
    first = trainer.accelerator.process_index * rows
    return slice(first, first + rows)


def _advantages(
    trainer: "AblationTrainer", found: Scored, tokens_N: torch.Tensor, kept_N: torch.Tensor
) -> torch.Tensor:
    """`(N,)`. A dropped group takes no part in the statistics of the batch."""
    args, gather = trainer.args, trainer.accelerator.gather
    advantages_N: Any
    if args.multi_objective_aggregation == "sum_then_normalize":
        advantages_N = compute_advantages(
            found.outcome_N.masked_fill(~kept_N, torch.nan),
            group_size(trainer),
            baseline=args.baseline,
            scale=args.scale_rewards,
            eps=args.advantage_eps,
            tokens_N=tokens_N,
            shaping_N=found.shaping_N,
            penalty_N=found.penalty_N,
            best_of=args.best_of,
        ) * hard_group_weight(found.outcome_N, group_size(trainer), args.hard_group_exponent)
    else:
        advantages_N = gather(found.batch["advantages"])
    return signed_and_clipped(
        advantages_N,
        positive_weight=args.positive_weight,
        negative_weight=args.negative_weight,
        clip=args.advantage_clip,
    )


def _log(
    trainer: "AblationTrainer",
    found: Scored,
    advantages_N: torch.Tensor,
    tokens_N: torch.Tensor,
    kept_N: torch.Tensor,
    weights_N: torch.Tensor | None,
) -> None:
    """Replace TRL's advantages in the log of completions; in training, log the metrics."""
    logged = trainer._logs["advantages"]
    for _ in range(min(len(logged), len(advantages_N))):
        logged.pop()
    logged.extend(advantages_N.tolist())
    if not trainer.model.training:
        return
    metrics = trainer._metrics["train"]
    trainer.generated_tokens += found.generated_tokens
    metrics["rollouts/generated_tokens"] = [float(trainer.generated_tokens)]
    of_tokens = trainer.loss_type not in MEAN_OVER_TOKENS
    weighted_N = advantages_N if weights_N is None else advantages_N * weights_N
    for name, value in {
        **rollout_counts(found.generated, found.generated_tokens, tokens_N, kept_N),
        **pass_counts(found.passed_N.view(-1, group_size(trainer))),
        **weight_by_sign(advantages_N),
        **weight_by_length(weighted_N, tokens_N * kept_N, per_token=of_tokens),
    }.items():
        metrics[name].append(value)
