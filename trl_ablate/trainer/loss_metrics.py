"""Statistics of TRL's loss that are logged: of the ratio, and TRL's own, computed from rows.

TRL logs `kl`, `entropy` and the clip ratios as means over tokens, then over microbatches. So the
weight of a token depends on the other rows in its microbatch. Here each row keeps its sum, its
number of tokens and the microbatch that TRL put it into. Once all rows of the regrouped
microbatches are known, the metrics are computed for TRL's original microbatches.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from accelerate import Accelerator
from trl import GRPOTrainer

from trl_ablate.losses import (
    changed_by_cispo,
    changed_by_clipping,
    changed_by_weight,
    kl_to_reference,
    ratio_means,
    ratio_sums,
    sapo_weight,
)
from trl_ablate.metrics import ENTROPY
from trl_ablate.trainer.loss_pass import LossPass

SMALLEST, LARGEST = ("clip_ratio/low_min",), ("clip_ratio/high_max",)
"""Metrics that are the minimum, or the maximum, of the row means in a microbatch."""


def sums_of_ratio(loss_pass: LossPass) -> torch.Tensor:
    """`(3,)`, see `losses.ratio_sums`; the ratio is that to the sampling policy."""
    ratio_NT = loss_pass.ratio_to(loss_pass.inputs)
    return ratio_sums(ratio_NT, _changed(loss_pass, ratio_NT), loss_pass.mask_NT)


def metric_sums(loss_pass: LossPass) -> dict[str, torch.Tensor]:
    """The terms of TRL's loss metrics, by TRL's names, of what TRL is shown: sum and count of each
    row."""
    config, ratio_NT = loss_pass.config, loss_pass.ratio_to(loss_pass.shown)
    advantages_N1 = loss_pass.shown["advantages"].reshape(len(loss_pass.mask_NT), -1)
    values = {ENTROPY: loss_pass.entropies_NT}
    if loss_pass.held["beta"] != 0.0 and config.kl_in == "loss":
        reference_NT = loss_pass.inputs["ref_per_token_logps"]
        kl_NT = kl_to_reference(loss_pass.logps_NT, reference_NT, config.kl_estimator)
        if config.use_bias_correction_kl:
            kl_NT = kl_NT * loss_pass.attached_ratio().detach()
        values["kl"] = kl_NT
    if config.loss_type == "cispo":
        clipped_NT = changed_by_cispo(ratio_NT, advantages_N1, loss_pass.epsilon_high)
        values["cispo_clip_ratio"] = clipped_NT
    elif config.loss_type == "vespo":
        values["vespo/phi_seq_mean"] = _vespo_weights(loss_pass, advantages_N1)
    elif config.loss_type != "sapo":
        values |= _clip_ratios(loss_pass, ratio_NT, advantages_N1)
    return {name: row_sums(one.float(), loss_pass.mask_NT) for name, one in values.items()}


def _clip_ratios(
    loss_pass: LossPass, ratio_NT: torch.Tensor, advantages_N1: torch.Tensor
) -> dict[str, torch.Tensor]:
    if loss_pass.config.delta is not None:
        ratio_NT = ratio_NT.clamp(max=loss_pass.config.delta)
    low_NT = (ratio_NT < 1 - loss_pass.epsilon_low) & (advantages_N1 < 0)
    high_NT = (ratio_NT > 1 + loss_pass.epsilon_high) & (advantages_N1 > 0)
    return {
        "clip_ratio/low_mean": low_NT,
        "clip_ratio/low_min": low_NT,
        "clip_ratio/high_mean": high_NT,
        "clip_ratio/high_max": high_NT,
        "clip_ratio/region_mean": low_NT | high_NT,
    }


def _changed(loss_pass: LossPass, ratio_NT: torch.Tensor) -> torch.Tensor:
    """Where the gradient of the loss differs from that of `r·A`; nowhere with `reinforce`."""
    config, advantages_N1 = loss_pass.config, loss_pass.advantages_N1
    if config.surrogate == "reinforce":
        return torch.zeros_like(ratio_NT, dtype=torch.bool)
    if config.surrogate in ("geometric", "probability", "one_sided"):
        return loss_pass.held_NT
    if config.loss_type == "cispo":
        return changed_by_cispo(ratio_NT, advantages_N1, loss_pass.epsilon_high)
    if config.loss_type == "sapo":
        temperatures = (config.sapo_temperature_pos, config.sapo_temperature_neg)
        return changed_by_weight(sapo_weight(ratio_NT, advantages_N1, *temperatures), advantages_N1)
    if config.loss_type == "vespo":
        weights_N1 = _vespo_weights(loss_pass, advantages_N1)
        return changed_by_weight(weights_N1 / ratio_NT, advantages_N1)
    bounds = (loss_pass.epsilon_low, loss_pass.epsilon_high, config.delta)
    return changed_by_clipping(ratio_NT, advantages_N1, *bounds)


def _vespo_weights(loss_pass: LossPass, advantages_N1: torch.Tensor) -> torch.Tensor:
    config = loss_pass.config
    return GRPOTrainer.get_gamma_weights(
        advantages=advantages_N1,
        log_ratio_per_token=loss_pass.logps_NT - loss_pass.old_logps_of(loss_pass.shown),
        mask=loss_pass.mask_NT,
        importance_sampling_ratio=loss_pass.shown.get("importance_sampling_ratio"),
        k_pos=config.vespo_k_pos,
        lambda_pos=config.vespo_lambda_pos,
        k_neg=config.vespo_k_neg,
        lambda_neg=config.vespo_lambda_neg,
    )


class RatioSums:
    """Sums of ratios (`losses.ratio_sums`) since the last logged row, in training and evaluation.

    They are float64, and kept on the CPU, because not every device has float64.
    """

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor] = {}

    def add(self, mode: str, sums_3: torch.Tensor) -> None:
        sums_3 = sums_3.cpu().double()
        self._sums[mode] = self._sums.get(mode, torch.zeros_like(sums_3)) + sums_3

    def metrics(self, mode: str, accelerator: Accelerator) -> dict[str, float]:
        """The metrics of all processes since the last call; empty if there was no loss."""
        sums: Any = self._sums.pop(mode, None)
        if sums is None:
            return {}
        if accelerator.num_processes > 1:  # a single process needs no copy to the device
            sums = accelerator.reduce(sums.to(accelerator.device), reduction="sum")
        prefix = "" if mode == "train" else "eval_"
        return {f"{prefix}{name}": value for name, value in ratio_means(sums).items()}

    def carried(self) -> dict[str, torch.Tensor]:
        """The state to save in a checkpoint."""
        return dict(self._sums)

    def restore(self, carried: dict[str, torch.Tensor]) -> None:
        self._sums = dict(carried)


def row_sums(values_NT: torch.Tensor, mask_NT: torch.Tensor) -> torch.Tensor:
    """Sum and count of each row, `(N, 2)`, over its response tokens, or of its single value.

    Shapes: values `(N, T)`, or `(N, 1)` if a row has one value; mask `(N, T)`. Values at padding
    are ignored.
    """
    if values_NT.size(1) == 1:
        return torch.cat([values_NT, torch.ones_like(values_NT)], dim=1)
    values_NT = values_NT.masked_fill(mask_NT == 0, 0.0)
    return torch.stack([values_NT.sum(dim=1), mask_NT.sum(dim=1)], dim=1)


def metric_of_microbatches(name: str, sums_N2: torch.Tensor, drawn_N: torch.Tensor) -> list[float]:
    """The value of a metric in each of TRL's original microbatches, in order.

    It is the mean over all tokens of the microbatch (0 without tokens). For `SMALLEST` and
    `LARGEST` it is the extreme of the row means; rows without tokens are left out (NaN if there
    are no others).
    """
    parts = [sums_N2[drawn_N == place] for place in range(int(drawn_N.max()) + 1)]
    if name in SMALLEST + LARGEST:
        means = [part[part[:, 1] > 0, 0] / part[part[:, 1] > 0, 1] for part in parts]
        extreme = torch.min if name in SMALLEST else torch.max
        return [extreme(mean).item() if len(mean) else float("nan") for mean in means]
    return [(part[:, 0].sum() / part[:, 1].sum().clamp(min=1)).item() for part in parts]


class RowMetrics:
    """Collects the rows of regrouped microbatches; corrects TRL's metrics when it has all of them.

    Args:
        metrics: lists of values by name, to which TRL has added one value per microbatch.
        gather: concatenates a tensor over the processes.
    """

    def __init__(
        self,
        metrics: Mapping[str, list[float]],
        gather: Callable[[torch.Tensor], torch.Tensor],
    ):
        self._metrics = metrics
        self._gather = gather
        self._drawn: list[torch.Tensor] = []
        self._sums: list[dict[str, torch.Tensor]] = []

    def add(self, drawn_N: torch.Tensor, sums: dict[str, torch.Tensor], microbatches: int) -> None:
        """Add a microbatch; after the last one of those regrouped together, replace their
        metrics."""
        self._drawn.append(drawn_N)
        self._sums.append(sums)
        if len(self._drawn) < microbatches:
            return
        drawn_N = self._gather(torch.cat(self._drawn))
        for name in sums:
            sums_N2 = self._gather(torch.cat([one[name] for one in self._sums]))
            self._metrics[name][-microbatches:] = metric_of_microbatches(name, sums_N2, drawn_N)
        self._drawn, self._sums = [], []
