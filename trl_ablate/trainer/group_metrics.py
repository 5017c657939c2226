"""Metrics of the groups of a rollout batch: which of them teach, and what gets their weight. Pure.

All tensors are those of all processes.
"""

import torch


def pass_counts(passed_PG: torch.Tensor) -> dict[str, float]:
    """`groups/passed/k`: the share of groups of which exactly k completions pass, for k = 0 … G.

    An ungraded completion does not pass.
    """
    counts_P = passed_PG.sum(dim=1)
    return {
        f"groups/passed/{k}": (counts_P == k).float().mean().item()
        for k in range(passed_PG.size(1) + 1)
    }


def weight_by_sign(advantages_N: torch.Tensor) -> dict[str, float]:
    """`advantages/positive` and `advantages/negative`: the sum of the advantages of this sign, as
    an absolute value, divided by N. Their sum is the mean absolute advantage."""
    return {
        "advantages/positive": advantages_N.clamp(min=0).mean().item(),
        "advantages/negative": (-advantages_N).clamp(min=0).mean().item(),
    }


def weight_by_length(
    advantages_N: torch.Tensor, tokens_N: torch.Tensor, *, per_token: bool
) -> dict[str, float]:
    """`advantages/weight/q1` (shortest quarter of the completions) to `q4` (longest): share of the
    weight in the loss.

    The advantages take the factor of their row in the loss, if it has one (`length_norm` 'prompt').
    The weight of a completion is |A|, times its tokens if the loss is a sum over tokens
    (`per_token`) and not a mean over them. Completions without tokens are left out; an empty
    quarter is not logged. If all weights are 0, so are the shares.
    """
    has_tokens_N = tokens_N > 0
    weights_N, tokens_N = advantages_N[has_tokens_N].abs().float(), tokens_N[has_tokens_N]
    if per_token:
        weights_N = weights_N * tokens_N
    quarters = torch.tensor_split(weights_N[torch.argsort(tokens_N, stable=True)], 4)
    whole = weights_N.sum()
    return {
        f"advantages/weight/q{place}": (quarter.sum() / whole).item() if whole > 0 else 0.0
        for place, quarter in enumerate(quarters, start=1)
        if len(quarter)
    }


def rollout_counts(
    generated: int, generated_tokens: int, tokens_N: torch.Tensor, kept_N: torch.Tensor
) -> dict[str, float]:
    """Rollouts and tokens of one GRPO step: generated, used in the loss, and dropped (the rest).

    Args:
        generated: completions generated, over all rounds.
        generated_tokens: their tokens.
        tokens_N: the tokens of the batch's completions that may count in the loss.
        kept_N: whether they count.
    """
    used_N = tokens_N * kept_N
    used, used_tokens = int((used_N > 0).sum()), int(used_N.sum())
    return {
        "rollouts/generated": float(generated),
        "rollouts/used": float(used),
        "rollouts/dropped": float(generated - used),
        "rollouts/used_tokens": float(used_tokens),
        "rollouts/dropped_tokens": float(generated_tokens - used_tokens),
    }
