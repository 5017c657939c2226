"""From rewards to advantages: subtract a baseline b, then divide by a scale s.

    A_i = (r_i - b_i) / (s_i + eps)

All functions are pure. Rewards are a flat tensor in which the G completions of one prompt are
adjacent. `compute_advantages` takes one reward per completion: call `weighted_reward` first if
there are several reward functions.
"""

import torch


def weighted_reward(rewards_NF: torch.Tensor, weights_F: torch.Tensor) -> torch.Tensor:
    """Weighted sum over the reward functions: `(N, F)`, `(F,)` -> `(N,)`.

    A function that did not grade a completion (NaN) adds nothing to its sum. The sum is NaN if no
    function graded the completion.
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
    """Advantage of each completion relative to its group or batch.

    Args:
        rewards_N: `(N,)` with N = P·G, group after group. NaN marks an ungraded completion.
        num_generations: G, the completions per prompt.
        baseline: the value to subtract. `group_mean`: the mean of the group. `leave_one_out`: the
            mean of the other completions in the group. `batch_mean`: the mean of the batch.
            `none`: nothing.
        scale: the divisor. `group`, `batch`: the standard deviation of the rewards in the group or
            batch, plus `eps`. `none`: no division.
        eps: added to the standard deviation; without effect if scale is `none`.

    Returns:
        `(N,)`, in the dtype of `rewards_N`.

    The standard deviation is unbiased (ddof 1), as in TRL and torch: one success in a group of
    eight has an advantage of 0.875 / 0.354 = 2.475 before eps; the population standard deviation
    would give 2.646. It is computed in two passes around the mean, not as a difference of squares.

    Degenerate cases:
        An ungraded completion has advantage 0 and is excluded from every mean and deviation.
        Equal rewards have a deviation of exactly 0 and differ from their mean by exactly 0,
        without fp32 rounding errors.
        If all graded rewards are equal, or fewer than two are graded, a scaled advantage is 0:
        the group does not show which completion was better. If the rewards differ so little that
        their deviation underflows to 0, the divisor is `eps`; if `eps` is 0, the advantage is 0.
        With `leave_one_out`, a completion that is the only graded one of its group has advantage 0.
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
    """The dimensions of a `(P, G)` tensor to reduce for a group or for the batch."""
    if scope == "group":
        return (1,)
    if scope == "batch":
        return (0, 1)
    raise ValueError(f"scale is '{scope}'; allowed: group, batch, none")


def _baseline(rewards_PG: torch.Tensor, baseline: str) -> torch.Tensor:
    """The value to subtract from each reward, broadcastable to `(P, G)`."""
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
    """Mean over the graded entries. The mean of equal rewards is exactly that reward."""
    low, high = _range(rewards_PG, dim)
    return torch.where(low == high, low, torch.nanmean(rewards_PG, dim=dim, keepdim=True))


def _mean_of_others(rewards_PG: torch.Tensor) -> torch.Tensor:
    """Mean over the other graded entries of the group; NaN if there are none.

    The formula is r_i + G'/(G'-1) · (mean - r_i), where G' of the G entries are graded. It gives
    exactly r_i if all rewards of the group are equal.
    """
    graded = (~torch.isnan(rewards_PG)).sum(dim=1, keepdim=True)
    return rewards_PG + (_mean(rewards_PG, dim=(1,)) - rewards_PG) * graded / (graded - 1)


def _std(rewards_PG: torch.Tensor, dim: tuple[int, ...]) -> torch.Tensor:
    """Unbiased standard deviation over the graded entries; NaN if fewer than two are graded.

    The order of operations is the same as in TRL, so the advantages are bit-equal to TRL's.
    """
    variance = torch.nanmean((rewards_PG - _mean(rewards_PG, dim)) ** 2, dim=dim, keepdim=True)
    graded = (~torch.isnan(rewards_PG)).sum(dim=dim, keepdim=True)
    return torch.sqrt(variance * (graded / (graded - 1)))


def _range(rewards_PG: torch.Tensor, dim: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Smallest and largest graded reward; (inf, -inf) if none is graded."""
    ungraded = torch.isnan(rewards_PG)
    return (
        rewards_PG.masked_fill(ungraded, torch.inf).amin(dim=dim, keepdim=True),
        rewards_PG.masked_fill(ungraded, -torch.inf).amax(dim=dim, keepdim=True),
    )
