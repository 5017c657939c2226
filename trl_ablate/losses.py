"""The divisor of the policy loss, and statistics of the ratio between current and old policy.

TRL computes the loss itself. These functions give the trainer's changes to it in closed form, and
compute the statistics that the trainer logs with it.
"""

import math

import torch
from torch import Tensor

NO_CLIP = 1e30
"""An epsilon so large that `clip(r, 1 - eps, 1 + eps) = r`, yet finite: TRL's clamp stays exact."""

SAME_WEIGHT = 1e-3
"""Weights this close to 1 count as 1: two forward passes over the same weights differ by rounding,
and the difference is larger for a sum over a thousand tokens than for one token."""


def loss_denominator(mask_NT: Tensor, length_norm: str, *, constant: float | None = None) -> Tensor:
    """The divisor of the summed loss of the response tokens.

    With `loss_NT` the loss of each token, the loss of a microbatch of N sequences is
    `((loss_NT * mask_NT).sum(1) / loss_denominator(mask_NT, ...)).sum()`.

    Args:
        mask_NT: `(N, T)`, 1 at response tokens and 0 at padding.
        length_norm: `mean`: N times the sequence's own length. `constant`: N times `constant`.
            `microbatch`: N times the longest response in these N rows. `token`: the number of
            response tokens.
        constant: the divisor per row for length_norm `constant`.

    Returns:
        `(N,)` for `mean`, a scalar tensor otherwise.

    An empty response counts as length 1, so that its loss is 0 and not NaN.
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
        return mask_NT.sum().clamp(min=1)
    raise ValueError(f"length_norm is '{length_norm}'; allowed: mean, constant, microbatch, token")


def ratio_sums(ratio_NT: Tensor, changed_NT: Tensor, mask_NT: Tensor) -> Tensor:
    """Sum of the ratios, number of changed tokens and number of tokens: `(3,)`, additive over rows.

    Shapes: ratio and changed `(N, T)`, or `(N, 1)` for whole sequences; mask `(N, T)`. Values at
    padding are ignored, NaN included.
    """
    mask_NT = mask_NT.bool()
    ratio_NT = ratio_NT.expand_as(mask_NT).masked_fill(~mask_NT, 0.0)
    return torch.stack([ratio_NT.sum(), (changed_NT & mask_NT).sum(), mask_NT.sum()])


def changed_by_clipping(
    ratio_NT: Tensor,
    advantages_N1: Tensor,
    epsilon_low: float,
    epsilon_high: float,
    delta: float | None = None,
) -> Tensor:
    """True where the gradient of `min(min(r, delta)·A, clip(r)·A)` differs from that of `r·A`.

    This is where the smaller of the two terms is at a bound: r above `1 + epsilon_high` with A > 0,
    r below `1 - epsilon_low` with A < 0, and, usually, r above `delta` with A < 0. A ratio outside
    the range is not changed if its advantage has the opposite sign or is 0.
    """
    capped_NT = ratio_NT if delta is None else ratio_NT.clamp(max=delta)
    clipped_NT = ratio_NT.clamp(1 - epsilon_low, 1 + epsilon_high)
    clipped_is_smaller = clipped_NT * advantages_N1 < capped_NT * advantages_N1
    taken_NT = torch.where(clipped_is_smaller, clipped_NT, capped_NT)
    return (taken_NT != ratio_NT) & (advantages_N1 != 0)


def changed_by_cispo(ratio_NT: Tensor, advantages_N1: Tensor, epsilon_high: float) -> Tensor:
    """True where CISPO's weight `min(r, epsilon_high)` differs from r. Only tokens with A > 0
    count, as in TRL's `cispo_clip_ratio`."""
    return (ratio_NT > epsilon_high) & (advantages_N1 > 0)


def changed_by_weight(weight_NT: Tensor, advantages_N1: Tensor) -> Tensor:
    """True where A is not 0 and `weight` differs from 1 by more than `SAME_WEIGHT`; the token's
    gradient is `weight` times that of `r·A`."""
    return ((weight_NT - 1).abs() > SAME_WEIGHT) & (advantages_N1 != 0)


def sapo_weight(
    ratio_NT: Tensor, advantages_N1: Tensor, temperature_pos: float, temperature_neg: float
) -> Tensor:
    """Derivative of SAPO's `4/τ · sigmoid(τ(r - 1))` by r: `4·s·(1 - s)`. It is 1 at r = 1."""
    temperature_N1 = torch.where(advantages_N1 > 0, temperature_pos, temperature_neg)
    gate_NT = torch.sigmoid(temperature_N1 * (ratio_NT - 1))
    return 4 * gate_NT * (1 - gate_NT)


def kl_to_reference(logps_NT: Tensor, ref_logps_NT: Tensor, estimator: str) -> Tensor:
    """Estimate of KL(π, π_ref) at each token, `(N, T)`, with d = log π_ref - log π.

    `k1`: -d. `k2`: d²/2. `k3`: e^d - d - 1, as in TRL. Over tokens drawn from π, k1 and k3 have the
    KL as their mean, k2 nearly so. Their gradients have other means (Tang & Munos,
    https://arxiv.org/abs/2506.09477): in the loss, that of k1 has mean 0, that of k2 the gradient
    of KL(π, π_ref), and that of k3 the gradient of the other direction, KL(π_ref, π). Multiplied by
    the ratio π/π_old, k1 and k3 have the gradient of KL(π, π_ref), and so has k1 in the reward.
    """
    difference_NT = ref_logps_NT - logps_NT
    if estimator == "k1":
        return -difference_NT
    if estimator == "k2":
        return difference_NT**2 / 2
    if estimator == "k3":
        return torch.exp(difference_NT) - difference_NT - 1
    raise ValueError(f"kl_estimator is '{estimator}'; allowed: k1, k2, k3")


def highest_covariance(
    logps_NT: Tensor, advantages_N1: Tensor, mask_NT: Tensor, share: float
) -> Tensor:
    """True at the `share` of the response tokens, rounded down but at least one, with the largest
    (A - mean A)(log π - mean log π): `(N, T)`.

    The means are over all response tokens. Their mean product is the covariance that drives the
    policy's entropy down (https://arxiv.org/abs/2505.22617, KL-Cov). Without tokens: none.
    """
    mask_NT = mask_NT.bool()
    tokens = int(mask_NT.sum())
    parts = [part.expand_as(mask_NT) for part in (advantages_N1, logps_NT)]
    one, other = (part - part[mask_NT].mean() for part in parts)
    products = (one * other).masked_fill(~mask_NT, -torch.inf).flatten()
    chosen = torch.zeros_like(products, dtype=torch.bool)
    chosen[products.topk(min(tokens, max(1, int(share * tokens)))).indices] = True
    return chosen.view_as(mask_NT)


def prompt_weights(tokens_PG: Tensor, kept_P: Tensor) -> Tensor:
    """Factor of the loss of each group's rows, `(P,)`, that turns the mean over the batch's tokens
    into a mean over groups of the mean over a group's tokens.

    w_g = (Σ tokens / P') / tokens of g, over the P' groups that are kept; Σ w_g L_g / Σ tokens is
    then Σ L_g / (P' · tokens of g). A group that is not kept or has no tokens adds nothing.
    """
    tokens_P = tokens_PG.sum(dim=1) * kept_P
    mean = tokens_P.sum() / kept_P.sum().clamp(min=1)
    return torch.where(tokens_P > 0, mean / tokens_P.clamp(min=1), 0.0)


def clipped_log_ratio(
    log_ratio_NT: Tensor, advantages_N1: Tensor, epsilon_low: float, epsilon_high: float
) -> Tensor:
    """The log ratio of each token, held at log(1 + ε') where A > 0 and at log(1 - ε) where A ≤ 0.

    This is the pessimistic clip of `min(rA, clip(r)A)` on each token: where A > 0 only large ratios
    are held, where A ≤ 0 only small ones. GMPO's ratio is the exponential of its mean over the
    tokens (https://arxiv.org/abs/2507.20673). A held token has gradient 0. With ε of 1 or more,
    nothing is held below.
    """
    low = math.log(1 - epsilon_low) if epsilon_low < 1 else -math.inf
    high = math.log1p(epsilon_high)
    return torch.where(advantages_N1 > 0, log_ratio_NT.clamp(max=high), log_ratio_NT.clamp(min=low))


def probability_moved(
    logps_NT: Tensor,
    before_NT: Tensor,
    advantages_N1: Tensor,
    epsilon_low: float,
    epsilon_high: float,
) -> Tensor:
    """True where a token's probability has already moved far in the direction of A: `(N, T)`.

    With Δ the probability now minus the one before: Δ > ε' where A > 0, Δ < -ε where A < 0. Such
    tokens leave the loss: DPPO with its binary total variation (https://arxiv.org/abs/2602.04879).
    A clip of the ratio stops rare tokens after a much smaller Δ than common ones.
    """
    moved_NT = torch.exp(logps_NT) - torch.exp(before_NT)
    towards_NT = torch.where(advantages_N1 > 0, moved_NT > epsilon_high, moved_NT < -epsilon_low)
    return towards_NT & (advantages_N1 != 0)


def one_sided_weight(
    logps_NT: Tensor, old_logps_NT: Tensor, mask_NT: Tensor, advantages_N1: Tensor
) -> Tensor:
    """min(π/π_old of the whole response, 1) where A < 0, and 1 elsewhere: `(N, 1)`.

    With it, the objective A log π is TOPR's (https://arxiv.org/abs/2503.14286): a wrong response
    that has become unlikely is not pushed down further. An empty response has weight 1.
    """
    log_ratio_NT = (logps_NT - old_logps_NT).masked_fill(mask_NT == 0, 0.0)
    weight_N1 = log_ratio_NT.sum(dim=1, keepdim=True).clamp(max=0).exp()
    return torch.where(advantages_N1 < 0, weight_N1, 1.0)


def token_ratio(logps_NT: Tensor, old_logps_NT: Tensor, mask_NT: Tensor) -> Tensor:
    """π/π_old of each response token, `(N, T)`; always 1 at padding."""
    return torch.exp((logps_NT - old_logps_NT).masked_fill(mask_NT == 0, 0.0))


def sequence_log_ratio(logps_NT: Tensor, old_logps_NT: Tensor, mask_NT: Tensor) -> Tensor:
    """Mean log ratio over the tokens of each response, `(N, 1)`; 0 for an empty response.

    Values at padding are ignored, NaN included.
    """
    log_ratio_NT = (logps_NT - old_logps_NT).masked_fill(mask_NT == 0, 0.0)
    return log_ratio_NT.sum(1, keepdim=True) / mask_NT.sum(1, keepdim=True).clamp(min=1)


def within_sampler_gap(
    logps_NT: Tensor, sampling_logps_NT: Tensor, mask_NT: Tensor, limit: float
) -> Tensor:
    """True where |mean over the response of log π - log μ| is at most `limit`: `(N, 1)`.

    The mean is the log of the geometric mean of the ratios: unlike their product, it does not grow
    with the length. A token for which the sampler gave no log-probability (NaN) counts as 0; an
    empty response is within any limit.
    """
    known_NT = torch.where(sampling_logps_NT.isnan(), logps_NT, sampling_logps_NT)
    return sequence_log_ratio(logps_NT, known_NT, mask_NT).abs() <= limit


def importance_ratio(
    logps_NT: Tensor,
    sampling_logps_NT: Tensor,
    mask_NT: Tensor,
    mode: str,
    low: float | None = None,
    high: float | None = None,
) -> Tensor:
    """Probability of a token or completion under the trainer, divided by that under the engine.

    Let d = log π (trainer) - log μ (engine) at the response tokens. `token_*`: r = exp(d) of each
    token, `(N, T)`. `sequence_*`: r = exp(Σd) of each completion, `(N, 1)`. `*_truncate` clamps r
    to `low` … `high`; `*_mask` sets an r outside this range to 0, so that the token or completion
    has no gradient. None means no bound. d is 0 at padding and where the engine returned no
    log-probability (NaN). TRL uses the same formula on an extra forward pass.
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


def ratio_means(sums_3: Tensor) -> dict[str, float]:
    """Mean ratio and clipped share from `ratio_sums`; without tokens, ratio 1 and share 0."""
    ratios, clipped, tokens = sums_3.tolist()
    if tokens == 0:
        return {"mean_ratio": 1.0, "clip_fraction": 0.0}
    return {"mean_ratio": ratios / tokens, "clip_fraction": clipped / tokens}
