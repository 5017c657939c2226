"""What the policy loss divides by, and how far the policy has moved from the one that sampled.

The loss itself is TRL's. These functions say in closed form what the trainer makes of it, and
compute the two statistics that are logged beside it.
"""

import torch

NO_CLIP = 1e30
"""An epsilon so large that `clip(r, 1 - eps, 1 + eps) = r`, yet finite: TRL's clamp stays exact."""


def loss_denominator(
    mask_NT: torch.Tensor,
    length_norm: str,
    *,
    constant: float | None = None,
    num_items: float | None = None,
) -> torch.Tensor:
    """What the summed loss of the response tokens is divided by.

    With `loss_NT` the loss of each token, the loss of a microbatch of N sequences is
    `((loss_NT * mask_NT).sum(1) / loss_denominator(mask_NT, ...)).sum()`.

    Args:
        mask_NT: `(N, T)`, 1 at response tokens and 0 at padding.
        length_norm: `mean`: N times the sequence's own length. `constant`: N times `constant`.
            `microbatch`: N times the longest response in these N rows. `token`: `num_items`, all
            response tokens of the optimizer step (those in `mask_NT`, if not given).
        constant: the divisor of `constant`.
        num_items: the number of response tokens of `token`.

    Returns:
        `(N,)` for `mean`, a scalar tensor otherwise.

    An empty response has length 1 here: its loss is 0 and stays 0.
    """
    rows = mask_NT.size(0)
    lengths_N = mask_NT.sum(dim=1).clamp(min=1)
    if length_norm == "mean":
        return rows * lengths_N
    if length_norm == "microbatch":
        return rows * lengths_N.max()
    if length_norm == "constant":
        if constant is None:
            raise ValueError("length_norm 'constant' needs the constant to divide by")
        return torch.as_tensor(rows * constant)
    if length_norm == "token":
        return torch.as_tensor(mask_NT.sum() if num_items is None else num_items).clamp(min=1)
    raise ValueError(f"length_norm is '{length_norm}'; allowed: mean, constant, microbatch, token")


def ratio_sums(
    logps_NT: torch.Tensor,
    old_logps_NT: torch.Tensor,
    advantages_N: torch.Tensor,
    mask_NT: torch.Tensor,
    epsilon_low: float,
    epsilon_high: float,
) -> torch.Tensor:
    """Sum of the ratios, number of clipped tokens and number of tokens: `(3,)`, additive over rows.

    With r = π/π_old per token, a token is clipped where `clip(r)·A < r·A`, that is, where clipping
    changed the objective `min(r·A, clip(r)·A)`: above `1 + epsilon_high` with A > 0, below `1 -
    epsilon_low` with A < 0. A ratio outside the range whose advantage has the other sign, or is 0,
    is not clipped. Whatever stands in the padding, NaN included, takes no part.
    """
    mask_NT = mask_NT.bool()
    ratio_NT = torch.exp((logps_NT - old_logps_NT).masked_fill(~mask_NT, 0.0))
    advantages_N1 = advantages_N.unsqueeze(1)
    clipped_NT = ((ratio_NT > 1 + epsilon_high) & (advantages_N1 > 0)) | (
        (ratio_NT < 1 - epsilon_low) & (advantages_N1 < 0)
    )
    return torch.stack(
        [(ratio_NT * mask_NT).sum(), (clipped_NT & mask_NT).sum(), mask_NT.sum()]
    ).to(torch.float64)


def sequence_log_ratio(
    logps_NT: torch.Tensor, old_logps_NT: torch.Tensor, mask_NT: torch.Tensor
) -> torch.Tensor:
    """Mean log ratio over the tokens of each response, `(N, 1)`; of no tokens 0.

    Whatever stands in the padding, NaN included, takes no part.
    """
    log_ratio_NT = (logps_NT - old_logps_NT).masked_fill(mask_NT == 0, 0.0)
    return log_ratio_NT.sum(1, keepdim=True) / mask_NT.sum(1, keepdim=True).clamp(min=1)


def importance_ratio(
    logps_NT: torch.Tensor,
    sampling_logps_NT: torch.Tensor,
    mask_NT: torch.Tensor,
    mode: str,
    low: float | None = None,
    high: float | None = None,
) -> torch.Tensor:
    """How much likelier the trainer finds a token, or completion, than the engine that sampled it.

    With d = log π - log μ of the response tokens: `token_*` takes r = exp(d) of each token, `(N,
    T)`; `sequence_*` takes r = exp(Σd) of each completion, `(N, 1)`. `*_truncate` holds r between
    `low` and `high`; `*_mask` makes an r outside of them 0, so that its token or completion has no
    gradient. A bound of None does not bind. Where the engine gave no log-probability (NaN) d is 0;
    so is it in the padding. The formula is TRL's, which applies it to a forward pass of its own.
    """
    difference_NT = torch.nan_to_num((logps_NT - sampling_logps_NT) * mask_NT, nan=0.0)
    level, _, treatment = mode.partition("_")
    if level == "sequence":
        difference_NT = difference_NT.sum(dim=-1, keepdim=True)
    ratio = torch.exp(difference_NT)
    low = -torch.inf if low is None else low
    high = torch.inf if high is None else high
    if treatment == "truncate":
        return ratio.clamp(min=low, max=high)
    return ratio.masked_fill((ratio < low) | (ratio > high), 0.0)


def ratio_means(sums_3: torch.Tensor) -> dict[str, float]:
    """The statistics of `ratio_sums`; of no tokens at all, a ratio of 1 and nothing clipped."""
    ratios, clipped, tokens = sums_3.tolist()
    if tokens == 0:
        return {"mean_ratio": 1.0, "clip_fraction": 0.0}
    return {"mean_ratio": ratios / tokens, "clip_fraction": clipped / tokens}


def ratio_stats(
    logps_NT: torch.Tensor,
    old_logps_NT: torch.Tensor,
    advantages_N: torch.Tensor,
    mask_NT: torch.Tensor,
    epsilon_low: float,
    epsilon_high: float,
) -> dict[str, float]:
    """`mean_ratio` and `clip_fraction` over the response tokens; see `ratio_sums`.

    Shapes: logps, old logps and mask `(N, T)`, advantages `(N,)`.
    """
    return ratio_means(
        ratio_sums(logps_NT, old_logps_NT, advantages_N, mask_NT, epsilon_low, epsilon_high)
    )
