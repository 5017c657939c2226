"""Rewards to advantages: what is subtracted, and what the rest is divided by.

    A_i = (r_i - b_i) / (s_i + eps)

Everything here is a pure function of a flat tensor of rewards in which the G completions of one
prompt lie next to each other. Weighting and summing several reward functions is left to the caller.
"""

import torch


def weighted_reward(rewards_NF: torch.Tensor, weights_F: torch.Tensor) -> torch.Tensor:
    """Weighted sum over the reward functions: `(N, F)`, `(F,)` -> `(N,)`.

    A function that left a completion ungraded (NaN) adds nothing; left ungraded by all, it stays
    NaN.
    """
    rewards_N = (rewards_NF * weights_F.to(rewards_NF.device)).nansum(dim=1)
    return rewards_N.masked_fill(torch.isnan(rewards_NF).all(dim=1), torch.nan)


def compute_advantages(
    rewards_N: torch.Tensor,
    num_generations: int,
    *,
    baseline: str = "group_mean",
    scale: str = "group",
    eps: float = 1e-4,
) -> torch.Tensor:
    """Advantage of every completion relative to its group or its batch.

    Args:
        rewards_N: `(N,)` with N = P·G, group after group. NaN marks an ungraded completion.
        num_generations: G, the completions per prompt.
        baseline: what is subtracted. `group_mean`: the mean of the group. `leave_one_out`: the mean
            of the others in the group. `batch_mean`: the mean of the batch. `none`: nothing.
        scale: what the difference is divided by, plus `eps`: the standard deviation of the rewards
            in the `group`, in the `batch`, or nothing (`none`).
        eps: added to the standard deviation, so it has no effect under `none`.

    Returns:
        `(N,)`, in the dtype of `rewards_N`.

    The standard deviation is unbiased (ddof 1), as in TRL and torch: one success in a group of
    eight has an advantage of 0.875 / 0.354 = 2.475 before eps; the population's would make it
    2.646. It is taken in two passes around the mean, never as a difference of squares.

    Degenerate cases:
        an ungraded completion has advantage 0 and takes no part in any mean or deviation;
        equal rewards have a deviation of exactly 0 and leave a difference of exactly 0 from their
        mean, whatever fp32 makes of that mean;
        where all graded rewards are equal, or fewer than two are graded, a scaled advantage is 0:
        such a group says nothing about which completion was better. Rewards so close that their
        deviation underflows are divided by `eps` alone, and if that is 0, too, have advantage 0;
        leave-one-out of a group with a single graded completion is 0, as there are no others.
    """
    if rewards_N.numel() % num_generations:
        raise ValueError(
            f"{rewards_N.numel()} rewards are not whole groups of {num_generations} generations"
        )
    rewards_PG = rewards_N.reshape(-1, num_generations)
    advantages_PG = rewards_PG - _baseline(rewards_PG, baseline)
    if scale != "none":
        dim = _dim(scale)
        low, high = _range(rewards_PG, dim)
        divisor = _std(rewards_PG, dim) + eps
        advantages_PG = torch.where((low < high) & (divisor > 0), advantages_PG / divisor, 0.0)
    return torch.nan_to_num(advantages_PG, nan=0.0).reshape(-1)


def _dim(scope: str) -> tuple[int, ...]:
    """The dimensions of a `(P, G)` tensor that a group or the batch runs over."""
    if scope == "group":
        return (1,)
    if scope == "batch":
        return (0, 1)
    raise ValueError(f"scale is '{scope}'; allowed: group, batch, none")


def _baseline(rewards_PG: torch.Tensor, baseline: str) -> torch.Tensor:
    """What is subtracted from each reward, broadcastable to `(P, G)`."""
    if baseline == "none":
        return torch.zeros_like(rewards_PG)
    if baseline == "group_mean":
        return _mean(rewards_PG, dim=(1,))
    if baseline == "batch_mean":
        return _mean(rewards_PG, dim=(0, 1))
    if baseline == "leave_one_out":
        return _mean_of_others(rewards_PG)
    raise ValueError(
        f"baseline is '{baseline}'; allowed: group_mean, none, leave_one_out, batch_mean"
    )


def _mean(rewards_PG: torch.Tensor, dim: tuple[int, ...]) -> torch.Tensor:
    """Mean over the graded entries; of equal rewards, that reward to the last bit."""
    low, high = _range(rewards_PG, dim)
    return torch.where(low == high, low, torch.nanmean(rewards_PG, dim=dim, keepdim=True))


def _mean_of_others(rewards_PG: torch.Tensor) -> torch.Tensor:
    """Mean over the other graded entries of the group, NaN where there are none.

    Written as r_i + G'/(G'-1) · (mean - r_i), G' of the G being graded, so that equal rewards give
    back that reward exactly.
    """
    graded = (~torch.isnan(rewards_PG)).sum(dim=1, keepdim=True)
    return rewards_PG + (_mean(rewards_PG, dim=(1,)) - rewards_PG) * graded / (graded - 1)


def _std(rewards_PG: torch.Tensor, dim: tuple[int, ...]) -> torch.Tensor:
    """Unbiased standard deviation over the graded entries; NaN where fewer than two are graded.

    The order of operations is TRL's, whose advantages it equals to the last bit.
    """
    variance = torch.nanmean((rewards_PG - _mean(rewards_PG, dim)) ** 2, dim=dim, keepdim=True)
    graded = (~torch.isnan(rewards_PG)).sum(dim=dim, keepdim=True)
    return torch.sqrt(variance * (graded / (graded - 1)))


def _range(rewards_PG: torch.Tensor, dim: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Smallest and largest graded reward; (inf, -inf) where none is graded."""
    ungraded = torch.isnan(rewards_PG)
    return (
        rewards_PG.masked_fill(ungraded, torch.inf).amin(dim=dim, keepdim=True),
        rewards_PG.masked_fill(ungraded, -torch.inf).amax(dim=dim, keepdim=True),
    )
