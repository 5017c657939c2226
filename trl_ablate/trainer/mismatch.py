"""The gap between the engine's and the trainer's log-probabilities, and its correction.

Every microbatch adds one row of facts per completion. The metrics are computed from all rows at
once, as quartiles and maxima cannot be combined from parts.
"""

import statistics
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from trl_ablate.config import AblationConfig
from trl_ablate.losses import importance_ratio
from trl_ablate.metrics import SAMPLING_GAP
from trl_ablate.trainer.batching import Batch
from trl_ablate.trainer.loss_pass import LossPass
from trl_ablate.trainer.rollouts import quarters_by_length

SAMPLING_LOGPS = "sampling_per_token_logps"
NO_BOUNDS: dict[str, Any] = {"mode": "token_truncate", "low": None, "high": None}
"""Of a microbatch that is not corrected: all its ratios are 1."""


class Fact(IntEnum):
    LENGTH = 0
    HELD = 1
    GAP_SUM = 2
    GAP_COUNT = 3
    GAP_MAX = 4
    RATIO_SUM = 5
    RATIO_COUNT = 6
    RATIO_MIN = 7
    RATIO_MAX = 8
    RATIO_SQUARES = 9


class MismatchCorrection:
    """The importance correction of one trainer, and its statistics since the last logged row."""

    def __init__(self, config: AblationConfig):
        self.saves_a_forward = config.saves_a_forward
        self._limit = config.sampler_gap_limit if config.knows_sampler else None
        self._watched = config.sampler_differs or self._limit is not None
        self._without_engine = config.sampler_differs and not config.use_vllm
        self._bounds = {
            "mode": config.vllm_importance_sampling_mode,
            "low": config.vllm_importance_sampling_clip_min,
            "high": config.vllm_importance_sampling_clip_max,
        }
        self._microbatches = config.steps_per_generation
        self._leaves_rows_out = config.leaves_rows_out
        self._rows: list[Tensor] = []
        """One tensor per microbatch since the last logged row."""
        self._gaps: list[Tensor] = []
        """One result of `local_gap` per rollout batch since the last logged row."""
        self._of_this_rollout: list[Tensor] = []

    def carried(self) -> dict[str, list[Tensor]]:
        """The state to save in a checkpoint between two optimizer steps."""
        return {"rows": self._rows, "gaps": self._gaps, "of_this_rollout": self._of_this_rollout}

    def restore(self, carried: dict[str, list[Tensor]]) -> None:
        self._rows, self._gaps = carried["rows"], carried["gaps"]
        self._of_this_rollout = carried.get("of_this_rollout", [])  # older checkpoints have none

    def correct(self, loss_pass: LossPass) -> None:
        """Reject what is too far from the sampler, and, with one optimizer step per rollout batch,
        add the importance ratio from the training's own forward pass, if TRL has not."""
        shown = loss_pass.shown
        if self._limit is not None and SAMPLING_LOGPS in loss_pass.inputs:
            loss_pass.reject_far_rows(self._limit)
        if self.saves_a_forward and "importance_sampling_ratio" not in shown:
            ratio = self.ratio(loss_pass.logps_NT, shown, loss_pass.mask_NT)
            shown["importance_sampling_ratio"] = ratio

    def ratio(self, logps_NT: Tensor, batch: Batch, mask_NT: Tensor) -> Tensor:
        return importance_ratio(logps_NT, batch[SAMPLING_LOGPS], mask_NT, **self._bounds)

    def record(self, loss_pass: LossPass) -> None:
        """Record one microbatch, if it was corrected or its sampler differs on purpose."""
        inputs, bounds = loss_pass.inputs, self._bounds
        ratio = loss_pass.shown.get("importance_sampling_ratio")
        uncorrected = ratio is None and self._watched and SAMPLING_LOGPS in inputs
        if uncorrected:
            ratio, bounds = torch.ones_like(loss_pass.logps_NT), NO_BOUNDS
        if ratio is None:
            return
        if loss_pass.kept_N1 is not None:
            ratio = ratio * loss_pass.kept_N1
        before_NT = inputs.get("old_per_token_logps")
        rows_NF = mismatch_rows(
            loss_pass.logps_NT if before_NT is None else before_NT,
            inputs[SAMPLING_LOGPS],
            ratio,
            loss_pass.mask_NT,
            **bounds,
            with_empty=not self._leaves_rows_out,
        )
        self._rows.append(rows_NF)
        if self.saves_a_forward or self._without_engine or uncorrected:
            self._of_this_rollout.append(rows_NF)
        if len(self._of_this_rollout) == self._microbatches:
            self._gaps.append(local_gap(torch.cat(self._of_this_rollout)))
            self._of_this_rollout = []

    def metrics(self, gather: Callable[[Tensor], Any]) -> dict[str, float]:
        """Metrics over all processes since the last call; the gap only if TRL does not log it."""
        if not self._rows:
            return {}
        rows_NF = gather(torch.cat(self._rows)).cpu()
        gaps = gather(torch.stack(self._gaps)).cpu() if self._gaps else None
        of_gap = {} if gaps is None else gap_metrics(gaps.view(-1, len(self._gaps), len(GAPS)))
        self._rows, self._gaps = [], []
        return {**of_gap, **held_by_length(rows_NF), **effective_sample_size(rows_NF)}


def mismatch_rows(
    logps_NT: Tensor,
    sampling_logps_NT: Tensor,
    ratio_NT: Tensor,
    mask_NT: Tensor,
    mode: str,
    low: float | None,
    high: float | None,
    *,
    with_empty: bool = True,
) -> Tensor:
    """One row of `Fact`s per completion: `(N, 10)`.

    `ratio_NT`, the correction's factor of the loss, is `(N, T)`, or `(N, 1)` for whole sequences.
    HELD is the share of the completion's tokens that the correction removes (`*_mask`, and rejected
    completions) or holds at a bound (`*_truncate`); for whole sequences it is 0 or 1. A token for
    which the engine gave no log-probability (NaN) has no gap. `with_empty`: of whole sequences,
    those without tokens count, as in TRL, unless they are rows that were left out on purpose.
    """
    mask_NT = mask_NT.bool()
    known_NT = mask_NT & ~sampling_logps_NT.isnan()
    gap_NT = (logps_NT - sampling_logps_NT).abs().masked_fill(~known_NT, 0.0)
    of_tokens = ratio_NT.size(1) == mask_NT.size(1)
    counted = mask_NT if of_tokens else mask_NT.any(dim=1, keepdim=True) | with_empty
    held_NT = ratio_NT == 0  # masked, or its completion is rejected
    if mode.endswith("truncate"):
        held_NT |= ratio_NT <= (-torch.inf if low is None else low)
        held_NT |= ratio_NT >= (torch.inf if high is None else high)
    held_NT = held_NT & mask_NT
    facts = {
        Fact.LENGTH: mask_NT.sum(dim=1),
        Fact.HELD: held_NT.sum(dim=1) / mask_NT.sum(dim=1).clamp(min=1),
        Fact.GAP_SUM: gap_NT.sum(dim=1),
        Fact.GAP_COUNT: known_NT.sum(dim=1),
        Fact.GAP_MAX: gap_NT.amax(dim=1),
        Fact.RATIO_SUM: ratio_NT.masked_fill(~counted, 0.0).sum(dim=1),
        Fact.RATIO_SQUARES: (ratio_NT**2).masked_fill(~counted, 0.0).sum(dim=1),
        Fact.RATIO_COUNT: counted.sum(dim=1),
        Fact.RATIO_MIN: ratio_NT.masked_fill(~counted, torch.inf).amin(dim=1),
        Fact.RATIO_MAX: ratio_NT.masked_fill(~counted, -torch.inf).amax(dim=1),
    }
    return torch.stack([facts[fact].float() for fact in Fact], dim=1)


GAPS: dict[str, Callable[[Tensor], Tensor]] = {
    SAMPLING_GAP: torch.mean,
    "sampling/sampling_logp_difference/max": torch.max,
    "sampling/importance_sampling_ratio/min": torch.min,
    "sampling/importance_sampling_ratio/mean": torch.mean,
    "sampling/importance_sampling_ratio/max": torch.max,
}
"""TRL's metrics of the mismatch, by TRL's names, and what makes one number of all processes'."""


def local_gap(rows_NF: Tensor) -> Tensor:
    """The metrics of `GAPS`, in that order, over one process's part of a rollout batch; NaN without
    tokens."""
    total = rows_NF.sum(dim=0)
    if total[Fact.RATIO_COUNT] == 0:
        return torch.full((len(GAPS),), torch.nan, device=rows_NF.device)
    return torch.stack(
        [
            total[Fact.GAP_SUM] / total[Fact.GAP_COUNT].clamp(min=1),
            rows_NF[:, Fact.GAP_MAX].max(),
            rows_NF[:, Fact.RATIO_MIN].min(),
            total[Fact.RATIO_SUM] / total[Fact.RATIO_COUNT],
            rows_NF[:, Fact.RATIO_MAX].max(),
        ]
    )


def gap_metrics(gaps_PB5: Tensor) -> dict[str, float]:
    """Metrics over P processes and B rollout batches, as in TRL: first the mean or extreme over
    the processes with tokens, then the mean over the batches with some; nothing without any."""
    found: dict[str, float] = {}
    for (name, over), gaps_PB in zip(GAPS.items(), gaps_PB5.unbind(dim=2), strict=True):
        known = (gaps_P[~gaps_P.isnan()] for gaps_P in gaps_PB.unbind(dim=1))
        if batches := [over(gaps_P).item() for gaps_P in known if len(gaps_P)]:
            found[name] = statistics.fmean(batches)
    return found


def held_by_length(rows_NF: Tensor) -> dict[str, float]:
    """`sampling/dropped/q1` (shortest quarter of the completions) to `q4` (longest): mean HELD."""
    quarters = quarters_by_length(rows_NF[:, Fact.HELD], rows_NF[:, Fact.LENGTH])
    return {f"sampling/dropped/{name}": held.mean().item() for name, held in quarters.items()}


def effective_sample_size(rows_NF: Tensor) -> dict[str, float]:
    """`sampling/effective_sample_size`: (Σ r)² / (n Σ r²) over the ratios of tokens or sequences,
    the share of independent samples that as many weighted ones are worth. 1 if all are equal; not
    logged if all are 0."""
    total = rows_NF.sum(dim=0)
    squares = total[Fact.RATIO_COUNT] * total[Fact.RATIO_SQUARES]
    if squares == 0:
        return {}
    return {"sampling/effective_sample_size": (total[Fact.RATIO_SUM] ** 2 / squares).item()}
