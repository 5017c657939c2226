"""From rewards to advantages: subtract a baseline b, then divide by a scale s.

    A_i = (r_i - b_i) / (s_i + eps)

All functions are pure. Rewards are a flat tensor in which the G completions of one prompt are
adjacent. `compute_advantages` takes one reward per completion: call `weighted_reward` first if
there are several reward functions, and `signed_and_clipped` after it.
"""

from math import comb

import torch
from torch import Tensor


def weighted_reward(rewards_NF: Tensor, weights_F: Tensor) -> Tensor:
    """Weighted sum over the reward functions: `(N, F)`, `(F,)` -> `(N,)`.

    A function that did not grade a completion (NaN) adds nothing to its sum. The sum is NaN if no
    function graded the completion.
    """
    rewards_N = (rewards_NF * weights_F.to(rewards_NF.device)).nansum(dim=1)
    return rewards_N.masked_fill(torch.isnan(rewards_NF).all(dim=1), torch.nan)


def compute_advantages(
    rewards_N: Tensor,
    num_generations: int,
    *,
    baseline: str = "group_mean",
    scale: str = "group",
    eps: float = 1e-4,
    tokens_N: Tensor | None = None,
    shaping_N: Tensor | None = None,
    penalty_N: Tensor | None = None,
    best_of: int | None = None,
) -> Tensor:
    """Advantage of each completion relative to its group or batch.

    Args:
        rewards_N: `(N,)` with N = P·G, group after group. NaN marks an ungraded completion.
        num_generations: G, the completions per prompt.
        baseline: the value to subtract. `group_mean`: the mean of the group. `leave_one_out`: the
            mean of the other completions in the group. `batch_mean`: the mean of the batch.
            `token_mean`: that over the tokens of the batch, Σ tokens · r / Σ tokens.
            `group_then_batch`: the mean of the group, then the mean of these differences over the
            tokens of the batch. `group_token_mean`: the mean of the group over its tokens, that is,
            of rewards weighted by length. `best_of_others`: the smaller of the reward and the best
            of `best_of` - 1 others of the group, averaged over all choices of these; what is left
            is how much the completion raises the best of `best_of`. `half`: 1/2, the middle of the
            rewards 0 and 1. `none`: nothing.
        scale: the divisor, plus `eps`. `group`, `batch`: the standard deviation of the rewards in
            the group or batch. `advantage_std`: that of r - b in the batch. `token_std`: that of
            r - b over the tokens of the batch. `group_mean`: the mean of the group's rewards.
            `none`: no division.
        eps: added to the divisor; without effect if scale is `none`.
        tokens_N: `(N,)`, the tokens of each completion, for `token_mean`, `group_then_batch`,
            `group_token_mean` and `token_std`. Default: one in each.
        shaping_N: `(N,)`, a second reward that moves advantage between completions of a group with
            equal `rewards_N`, but not between others: its mean over them is subtracted from it, the
            rest is added to r - b. It takes no part in baseline and scale. Default: none.
        penalty_N: `(N,)`, subtracted from `rewards_N`. It takes part in baseline and scale, but not
            in which completions are equal for shaping. Default: none.
        best_of: k of `best_of_others`, 2 or more. Default: all of the group.

    Returns:
        `(N,)`, in the dtype of `rewards_N`.

    The standard deviation is unbiased (ddof 1), as in TRL and torch: one success in a group of
    eight has an advantage of 0.875 / 0.354 = 2.475 before eps; the population standard deviation
    would give 2.646. It is computed in two passes around the mean, not as a difference of squares.

    `token_mean` with `token_std` is REINFORCE++ (https://arxiv.org/abs/2501.03262) as its reference
    implementations have it: each token carries the reward of its completion, and all tokens of the
    batch are whitened together. With 27 of 64 completions right and the wrong ones three times as
    long, advantages are 2.03 and -0.49; over completions, 1.16 and -0.85. `group_then_batch` with
    `token_std` is REINFORCE++-baseline. Over completions its second mean is 0, as every group's
    differences sum to 0; over tokens it is not if good and bad completions differ in length.
    `group_token_mean` is OPO (https://arxiv.org/abs/2505.23585): the baseline of least variance if
    the squared norm of a completion's score grows with its length. `best_of_others` is the
    advantage of pass@k (https://arxiv.org/abs/2503.19595): k times its mean over the group, times
    the score function, is an unbiased gradient of the best reward of k. `group_mean` as scale is
    MaxRL (https://arxiv.org/abs/2602.02710), `advantage_std` is ScaleRL
    (https://arxiv.org/abs/2510.13786).

    Degenerate cases:
        An ungraded completion has advantage 0 and is excluded from every mean and deviation.
        Equal rewards have a deviation of exactly 0 and differ from their mean by exactly 0,
        without fp32 rounding errors.
        If all graded rewards are equal, or fewer than two are graded, an advantage divided by
        their deviation is 0: the group does not show which completion was better; this includes
        shaping, which is also left out if they differ by their penalties alone. If the rewards
        differ so little that their deviation underflows to 0, the divisor is `eps`; if `eps` is 0,
        the advantage is 0. The same holds for r - b with `advantage_std`, and with `token_std` for
        the r - b that have tokens.
        With scale `group_mean`, a group whose mean is 0 or negative has advantage 0.
        With `leave_one_out` and `best_of_others`, a completion that is the only graded one of its
        group has advantage 0; if fewer than `best_of` are graded, k is their number.
        Without tokens in the batch, or with `group_token_mean` in the group, what needs their mean
        or deviation is 0.
    """
    if rewards_N.numel() % num_generations:
        raise ValueError(
            f"{rewards_N.numel()} rewards are not whole groups of {num_generations} generations"
        )
    tokens_N = torch.ones_like(rewards_N, dtype=torch.long) if tokens_N is None else tokens_N
    outcomes_PG = rewards_PG = rewards_N.reshape(-1, num_generations)
    if penalty_N is not None:
        rewards_PG = outcomes_PG - penalty_N.reshape_as(outcomes_PG)
    advantages_PG = _centred(rewards_PG, baseline, tokens_N, best_of)
    divisor, defined = _divisor(rewards_PG, advantages_PG, tokens_N, scale, eps)
    if shaping_N is not None:
        of_outcomes_PG = _centred(outcomes_PG, baseline, tokens_N, best_of)
        _, outcomes_differ = _divisor(outcomes_PG, of_outcomes_PG, tokens_N, scale, eps)
        shaping_PG = _within_equals(shaping_N.reshape_as(outcomes_PG), outcomes_PG)
        advantages_PG = advantages_PG + shaping_PG * outcomes_differ
    advantages_PG = torch.where(defined, advantages_PG / divisor, 0.0)
    return torch.nan_to_num(advantages_PG, nan=0.0).reshape(-1)


def hard_group_weight(rewards_N: Tensor, num_generations: int, exponent: float) -> Tensor:
    """(1 - p)^exponent of each completion's group, `(N,)`, with p the mean of its graded rewards.

    For rewards of 0 and 1, p is the pass rate, and this is the focal weight of F-GRPO
    (https://arxiv.org/abs/2602.06717): easy groups count less. A mean outside 0 to 1 counts as the
    nearer end; a group without a graded completion has weight 1.
    """
    rates_P1 = _mean(rewards_N.reshape(-1, num_generations), (1,)).nan_to_num(0.0)
    return ((1 - rates_P1.clamp(0, 1)) ** exponent).repeat_interleave(num_generations)


def signed_and_clipped(
    advantages_N: Tensor,
    *,
    positive_weight: float = 1.0,
    negative_weight: float = 1.0,
    clip: float | None = None,
) -> Tensor:
    """Clip advantages to `-clip` … `clip`, then multiply them by the weight of their sign: `(N,)`.

    Weights 1 and no clip leave the bits as they are. An advantage of 0 stays 0.
    """
    if clip is not None:
        advantages_N = advantages_N.clamp(-clip, clip)
    return advantages_N * torch.where(advantages_N > 0, positive_weight, negative_weight)


def overlong_penalty(lengths_N: Tensor, longest: int, share: float) -> Tensor:
    """DAPO's soft overlong punishment with its sign changed, `(N,)`, from 0 to 1.

    With L = `longest` and C = `share` · L: 0 up to L - C tokens, then (|o| - (L - C)) / C, and 1
    from L tokens on (https://arxiv.org/abs/2503.14476, equation 13).
    """
    grows_over = share * longest
    return ((lengths_N - (longest - grows_over)) / grows_over).clamp(0, 1)


def has_variance(rewards_N: Tensor, num_generations: int) -> Tensor:
    """`(P,)`: whether a group has two graded completions with different rewards."""
    low, high = _range(rewards_N.reshape(-1, num_generations), (1,))
    return (low < high).squeeze(1)


def _divisor(
    rewards_PG: Tensor, centred_PG: Tensor, tokens_N: Tensor, scale: str, eps: float
) -> tuple[Tensor, Tensor]:
    """The divisor of each advantage, and where it is defined; both broadcastable to `(P, G)`."""
    if scale == "none":
        one = rewards_PG.new_ones(())
        return one, one.bool()
    if scale == "group_mean":
        mean_P1 = _mean(rewards_PG, (1,))
        return mean_P1 + eps, mean_P1 > 0
    if scale in ("group", "batch"):
        spread_PG = rewards_PG
    elif scale == "advantage_std":
        spread_PG = centred_PG
    elif scale == "token_std":
        spread_PG = _of_tokens(centred_PG, tokens_N)
    else:
        raise ValueError(
            f"scale is '{scale}'; allowed: group, batch, none, group_mean, advantage_std, token_std"
        )
    dim = (1,) if scale == "group" else (0, 1)
    low, high = _range(spread_PG, dim)
    divisor = _std(spread_PG, dim) + eps
    return divisor, (low < high) & (divisor > 0)


def _baseline(rewards_PG: Tensor, baseline: str, tokens_N: Tensor) -> Tensor:
    """The value to subtract from each reward, broadcastable to `(P, G)`."""
    if baseline == "none":
        return torch.zeros_like(rewards_PG)
    if baseline == "group_mean":
        return _mean(rewards_PG, dim=(1,))
    if baseline == "batch_mean":
        return _mean(rewards_PG, dim=(0, 1))
    if baseline == "token_mean":
        return _mean(_of_tokens(rewards_PG, tokens_N), dim=(0, 1))
    if baseline == "group_token_mean":
        return _token_mean(rewards_PG, tokens_N.reshape(rewards_PG.shape))
    if baseline == "leave_one_out":
        return _mean_of_others(rewards_PG)
    if baseline == "half":
        return torch.full_like(rewards_PG, 0.5)
    raise ValueError(
        f"baseline is '{baseline}'; allowed: group_mean, none, leave_one_out, batch_mean, "
        "token_mean, group_then_batch, group_token_mean, best_of_others, half"
    )


def _centred(
    rewards_PG: Tensor, baseline: str, tokens_N: Tensor, best_of: int | None = None
) -> Tensor:
    """r - b: `(P, G)`."""
    if baseline == "best_of_others":
        return _lead_over_others(rewards_PG, best_of)
    if baseline == "group_then_batch":
        return _centred(_centred(rewards_PG, "group_mean", tokens_N), "token_mean", tokens_N)
    return rewards_PG - _baseline(rewards_PG, baseline, tokens_N)


def _lead_over_others(rewards_PG: Tensor, best_of: int | None) -> Tensor:
    """Mean of max(0, r - best of k - 1 others) over all choices of the others: `(P, G)`.

    Let s_1 … s_n be the sorted graded rewards of the group. The best of the others is s_j, with r
    above it, in C(j-1, k-2) of the C(n-1, k-1) choices.
    """
    size = rewards_PG.size(1)
    shares_PG = torch.zeros_like(rewards_PG)
    for group, graded in enumerate((~torch.isnan(rewards_PG)).sum(dim=1).tolist()):
        others = min(best_of or size, graded) - 1
        if others > 0:
            all_choices = comb(graded - 1, others)
            shares = [comb(place, others - 1) / all_choices for place in range(size)]
            shares_PG[group] = shares_PG.new_tensor(shares)
    sorted_P1G = rewards_PG.sort(dim=1).values.unsqueeze(1)  # NaN last
    leads_PGG = (rewards_PG.unsqueeze(2) - sorted_P1G).clamp(min=0)
    leads_PG = (leads_PGG * shares_PG.unsqueeze(1)).nansum(dim=2)
    return leads_PG.masked_fill(torch.isnan(rewards_PG), torch.nan)


def _token_mean(rewards_PG: Tensor, tokens_PG: Tensor) -> Tensor:
    """Σ(tokens · r) / Σ tokens of each group, `(P, 1)`. The mean of equal rewards is exactly that
    reward; without tokens, there is none (NaN)."""
    low, high = _range(rewards_PG, (1,))
    tokens_PG = tokens_PG.to(rewards_PG).masked_fill(torch.isnan(rewards_PG), 0.0)
    weighted_P1 = (rewards_PG * tokens_PG).nansum(dim=1, keepdim=True)
    return torch.where(low == high, low, weighted_P1 / tokens_PG.sum(dim=1, keepdim=True))


def _within_equals(shaping_PG: Tensor, rewards_PG: Tensor) -> Tensor:
    """The second reward minus its mean over the group's completions with the same first reward."""
    equal_PGG = (rewards_PG.unsqueeze(2) == rewards_PG.unsqueeze(1)).to(shaping_PG)
    sums_PG = (equal_PGG * shaping_PG.unsqueeze(1)).sum(dim=2)
    return shaping_PG - sums_PG / equal_PGG.sum(dim=2)


def _mean(rewards_PG: Tensor, dim: tuple[int, ...]) -> Tensor:
    """Mean over the graded entries. The mean of equal rewards is exactly that reward."""
    low, high = _range(rewards_PG, dim)
    return torch.where(low == high, low, torch.nanmean(rewards_PG, dim=dim, keepdim=True))


def _of_tokens(values_PG: Tensor, tokens_N: Tensor) -> Tensor:
    """`(1, T + 1)`: the value of each token of the batch, and a NaN, so that T may be 0."""
    values_T = values_PG.flatten().repeat_interleave(tokens_N)
    return torch.nn.functional.pad(values_T, (0, 1), value=torch.nan).unsqueeze(0)


def _mean_of_others(rewards_PG: Tensor) -> Tensor:
    """Mean over the other graded entries of the group; NaN if there are none.

    The formula is r_i + G'/(G'-1) · (mean - r_i), where G' of the G entries are graded. It gives
    exactly r_i if all rewards of the group are equal.
    """
    graded = (~torch.isnan(rewards_PG)).sum(dim=1, keepdim=True)
    return rewards_PG + (_mean(rewards_PG, dim=(1,)) - rewards_PG) * graded / (graded - 1)


def _std(rewards_PG: Tensor, dim: tuple[int, ...]) -> Tensor:
    """Unbiased standard deviation over the graded entries; NaN if fewer than two are graded.

    The order of operations is the same as in TRL, so the advantages are bit-equal to TRL's.
    """
    variance = torch.nanmean((rewards_PG - _mean(rewards_PG, dim)) ** 2, dim=dim, keepdim=True)
    graded = (~torch.isnan(rewards_PG)).sum(dim=dim, keepdim=True)
    return torch.sqrt(variance * (graded / (graded - 1)))


def _range(rewards_PG: Tensor, dim: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Smallest and largest graded reward; (inf, -inf) if none is graded."""
    ungraded = torch.isnan(rewards_PG)
    return (
        rewards_PG.masked_fill(ungraded, torch.inf).amin(dim=dim, keepdim=True),
        rewards_PG.masked_fill(ungraded, -torch.inf).amax(dim=dim, keepdim=True),
    )
