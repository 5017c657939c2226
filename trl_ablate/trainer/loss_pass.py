"""One call of TRL's loss on a microbatch, and the statistics that are logged of it.

TRL computes the loss. Its log-probabilities and entropies are kept here, and the statistics are
computed from them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator

from trl_ablate.config import AblationConfig
from trl_ablate.losses import (
    NO_CLIP,
    changed_by_cispo,
    changed_by_clipping,
    changed_by_weight,
    clipped_log_ratio,
    kl_to_reference,
    loss_denominator,
    one_sided_weight,
    probability_moved,
    ratio_means,
    ratio_sums,
    sapo_weight,
    sequence_log_ratio,
    token_ratio,
    within_sampler_gap,
)
from trl_ablate.metrics import ENTROPY
from trl_ablate.trainer.batching import ROW_WEIGHTS, Batch
from trl_ablate.trainer.row_metrics import row_sums

if TYPE_CHECKING:
    from trl_ablate.trainer.ablation import AblationTrainer


@dataclass(frozen=True)
class Objective:
    """The settings that TRL's loss depends on."""

    loss_type: str
    surrogate: str | None
    level: str
    epsilon_low: float
    epsilon_high: float
    delta: float | None
    sapo_temperatures: tuple[float, float]
    """For positive and for negative advantages."""
    vespo_weights: Callable[..., torch.Tensor]
    """TRL's function, with its parameters bound."""
    kl: bool
    kl_estimator: str
    kl_corrected: bool

    @classmethod
    def of(cls, trainer: "AblationTrainer") -> "Objective":
        """The trainer's current settings."""
        args: Any = trainer.args
        return cls(
            loss_type=trainer.loss_type,
            surrogate=args.surrogate,
            level=trainer.importance_sampling_level,
            epsilon_low=trainer.epsilon_low,
            epsilon_high=trainer.epsilon_high,
            delta=args.delta,
            sapo_temperatures=(args.sapo_temperature_pos, args.sapo_temperature_neg),
            vespo_weights=partial(
                trainer.get_gamma_weights,
                k_pos=args.vespo_k_pos,
                lambda_pos=args.vespo_lambda_pos,
                k_neg=args.vespo_k_neg,
                lambda_neg=args.vespo_lambda_neg,
            ),
            kl=args.beta != 0.0 and args.kl_in == "loss",
            kl_estimator=args.kl_estimator,
            kl_corrected=args.use_bias_correction_kl,
        )


class LossPass:
    """One call of TRL's loss.

    Args:
        inputs: the microbatch.
        shown: the part of it that TRL gets; the importance correction adds to it.
        mask_NT: 1 at the tokens that count in the loss.
    """

    def __init__(self, inputs: Batch, shown: Batch, mask_NT: torch.Tensor):
        self.inputs = inputs
        self.shown = shown
        self.mask_NT = mask_NT
        advantages = inputs["advantages"]
        self.advantages_N1 = advantages.unsqueeze(1) if advantages.dim() == 1 else advantages
        self.logps_NT = torch.empty(0)
        self.attached_logps_NT = torch.empty(0)
        self._held_NT = torch.empty(0)
        self.kept_N1: torch.Tensor | None = None
        self.entropies_NT = torch.empty(0)

    def found(self, logps_NT: Any, entropies_NT: Any) -> None:
        """Keep the result of the loss's forward pass; TRL's loss always asks for entropies."""
        self.attached_logps_NT = logps_NT
        self.logps_NT = logps_NT.detach()
        self.entropies_NT = entropies_NT.detach()

    def idle_rows(self, config: AblationConfig, beta: float) -> torch.Tensor | None:
        """The rows whose advantage is 0, if no other term of the loss has a gradient."""
        bonus = config.entropy_coef != 0.0 or config.use_adaptive_entropy
        if beta != 0.0 or own_kl(config, self.inputs) or config.covariance_kl or bonus:
            return None
        advantages = self.shown["advantages"]
        idle_N = (advantages.reshape(len(advantages), -1) == 0).all(dim=1)
        return idle_N if idle_N.any() else None

    def apply_surrogate(self, config: AblationConfig) -> None:
        """Change what TRL is shown, for the surrogates that it lacks."""
        low, high = config.epsilon, config.epsilon_high
        bounds = (low, low if high is None else high)
        if config.surrogate == "geometric":
            self.clip_each_token(*bounds)
        elif config.surrogate == "probability":
            self.mask_moved_tokens(*bounds)
        elif config.surrogate == "one_sided":
            self.weigh_negatives()

    def clip_each_token(self, epsilon_low: float, epsilon_high: float) -> None:
        """Show TRL old log-probabilities whose log ratio is the clipped one. With gradient: the
        current ones cancel, so that a clipped token has none."""
        log_ratio_NT = self.attached_logps_NT - self.old_logps_NT
        clipped_NT = clipped_log_ratio(log_ratio_NT, self.advantages_N1, epsilon_low, epsilon_high)
        self._held_NT = (clipped_NT != log_ratio_NT) & (self.advantages_N1 != 0)
        if "old_per_token_logps" in self.shown:
            self.shown["old_per_token_logps"] = self.attached_logps_NT - clipped_NT

    def mask_moved_tokens(self, epsilon_low: float, epsilon_high: float) -> None:
        """Show TRL advantages of 0 where the token's probability has moved far from the sampler's,
        or, where that is not known, from the old one."""
        old_NT = self.old_logps_NT
        sampling_NT = self.inputs.get("sampling_per_token_logps", old_NT)
        before_NT = torch.where(sampling_NT.isnan(), old_NT, sampling_NT)
        self._held_NT = probability_moved(
            self.logps_NT, before_NT, self.advantages_N1, epsilon_low, epsilon_high
        )
        self._weigh_shown(~self._held_NT)

    def weigh_negatives(self) -> None:
        """Show TRL negative advantages times the ratio of their response, at most 1."""
        old_NT = self.old_logps_NT
        weight_N1 = one_sided_weight(self.logps_NT, old_NT, self.mask_NT, self.advantages_N1)
        self._held_NT = changed_by_weight(weight_N1, self.advantages_N1)
        self._weigh_shown(weight_N1)

    def reject_far_rows(self, limit: float) -> None:
        """Show TRL advantages of 0 for rows that are further than `limit` from the sampler."""
        sampling_NT = self.inputs["sampling_per_token_logps"]
        old_NT = self.old_logps_NT
        self.kept_N1 = within_sampler_gap(old_NT, sampling_NT, self.mask_NT, limit)
        self._weigh_shown(self.kept_N1)

    def _weigh_shown(self, weight_NT: torch.Tensor) -> None:
        """Multiply the advantages that TRL is shown; it takes one for each row or token."""
        advantages_N1 = self.shown["advantages"].reshape(len(weight_NT), -1)
        self.shown["advantages"] = advantages_N1 * weight_NT

    def attached_ratio(self, level: str) -> torch.Tensor:
        """π/π_old, with gradient: that of TRL's loss, or where it sees none, of the inputs."""
        hidden_NT = self.inputs.get("old_per_token_logps", self.logps_NT)
        old_logps_NT = self.shown.get("old_per_token_logps", hidden_NT)
        if level == "sequence":
            return torch.exp(sequence_log_ratio(self.attached_logps_NT, old_logps_NT, self.mask_NT))
        return token_ratio(self.attached_logps_NT, old_logps_NT, self.mask_NT)

    def ratio_sums(self, objective: Objective) -> torch.Tensor:
        """`(3,)`, see `losses.ratio_sums`; the ratio is that to the sampling policy."""
        ratio_NT = self._ratio(self.inputs, objective.level)
        return ratio_sums(ratio_NT, self._changed(ratio_NT, objective), self.mask_NT)

    def metric_sums(self, objective: Objective) -> dict[str, torch.Tensor]:
        """The terms of TRL's loss metrics, by TRL's names: sum and count of each row."""
        ratio_NT = self._ratio(self.shown, objective.level)
        values = {ENTROPY: self.entropies_NT}
        if objective.kl:
            reference_NT = self.inputs["ref_per_token_logps"]
            kl_NT = kl_to_reference(self.logps_NT, reference_NT, objective.kl_estimator)
            of_kl_NT = self.attached_ratio(objective.level).detach()
            values["kl"] = kl_NT * of_kl_NT if objective.kl_corrected else kl_NT
        if objective.loss_type == "cispo":
            values["cispo_clip_ratio"] = self._changed(ratio_NT, objective)
        elif objective.loss_type == "vespo":
            values["vespo/phi_seq_mean"] = self._vespo_weights(objective)
        elif objective.loss_type != "sapo":
            values |= self._clip_ratios(ratio_NT, objective)
        return {name: row_sums(one.float(), self.mask_NT) for name, one in values.items()}

    def _clip_ratios(self, ratio_NT: torch.Tensor, objective: Objective) -> dict[str, torch.Tensor]:
        if objective.delta is not None:
            ratio_NT = ratio_NT.clamp(max=objective.delta)
        low_NT = (ratio_NT < 1 - objective.epsilon_low) & (self.advantages_N1 < 0)
        high_NT = (ratio_NT > 1 + objective.epsilon_high) & (self.advantages_N1 > 0)
        return {
            "clip_ratio/low_mean": low_NT,
            "clip_ratio/low_min": low_NT,
            "clip_ratio/high_mean": high_NT,
            "clip_ratio/high_max": high_NT,
            "clip_ratio/region_mean": low_NT | high_NT,
        }

    def _changed(self, ratio_NT: torch.Tensor, objective: Objective) -> torch.Tensor:
        """Where the gradient of the loss differs from that of `r·A`; nowhere with `reinforce`."""
        if objective.surrogate == "reinforce":
            return torch.zeros_like(ratio_NT, dtype=torch.bool)
        if objective.surrogate in ("geometric", "probability", "one_sided"):
            return self._held_NT
        if objective.loss_type == "cispo":
            return changed_by_cispo(ratio_NT, self.advantages_N1, objective.epsilon_high)
        if objective.loss_type == "sapo":
            weight_NT = sapo_weight(ratio_NT, self.advantages_N1, *objective.sapo_temperatures)
            return changed_by_weight(weight_NT, self.advantages_N1)
        if objective.loss_type == "vespo":
            weight_NT = self._vespo_weights(objective) / ratio_NT
            return changed_by_weight(weight_NT, self.advantages_N1)
        return changed_by_clipping(
            ratio_NT,
            self.advantages_N1,
            objective.epsilon_low,
            objective.epsilon_high,
            objective.delta,
        )

    def _vespo_weights(self, objective: Objective) -> torch.Tensor:
        old_logps_NT = self._old_logps(self.shown)
        return objective.vespo_weights(
            advantages=self.advantages_N1,
            log_ratio_per_token=self.logps_NT - old_logps_NT,
            mask=self.mask_NT,
            importance_sampling_ratio=self.shown.get("importance_sampling_ratio"),
        )

    def _ratio(self, batch: Batch, level: str) -> torch.Tensor:
        """π/π_old of each token `(N, T)`, or of each sequence `(N, 1)`."""
        old_logps_NT = self._old_logps(batch)
        if level == "sequence":
            return torch.exp(sequence_log_ratio(self.logps_NT, old_logps_NT, self.mask_NT))
        return token_ratio(self.logps_NT, old_logps_NT, self.mask_NT)

    @property
    def old_logps_NT(self) -> torch.Tensor:
        return self._old_logps(self.inputs)

    def _old_logps(self, batch: Batch) -> torch.Tensor:
        """Log-probabilities of the sampling policy; if there are none, those of the current one."""
        return batch.get("old_per_token_logps", self.logps_NT).detach()


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


def shown_to_trl(inputs: Batch, config: AblationConfig) -> Batch:
    """A copy of the inputs for one loss. With `reinforce` and `one_sided`, it lacks the old
    log-probabilities, so TRL takes the current ones: their ratio is 1, with gradient ∇log π. Its
    off-policy mask reads them as the sampler's, whatever a surrogate does to them. TRL's policy
    loss is proportional to the advantages, so they take the factor of each row."""
    shown = dict(inputs)
    if "old_per_token_logps" in inputs:
        shown.setdefault("sampling_per_token_logps", inputs["old_per_token_logps"])
    if config.surrogate in ("reinforce", "one_sided"):
        shown.pop("old_per_token_logps", None)
    if ROW_WEIGHTS in inputs:
        shown["advantages"] = inputs["advantages"] * inputs[ROW_WEIGHTS]
    return shown


def own_kl(config: AblationConfig, inputs: Batch) -> bool:
    """Whether the loss's KL term is ours: TRL has k3 only, with one weight for all rows, and the
    policy loss's ratio, which `reinforce` hides."""
    weighted = ROW_WEIGHTS in inputs and config.length_norm == "prompt"
    in_loss = config.beta != 0.0 and config.kl_in == "loss"
    hidden = config.surrogate == "reinforce" and config.use_bias_correction_kl
    return in_loss and (config.kl_estimator != "k3" or weighted or hidden)


def switched_values(config: AblationConfig, inputs: Batch, mask_NT: torch.Tensor) -> dict[str, Any]:
    """The attributes of TRL's trainer (divisor, clip range, weight of the KL term) that the
    switches set for one loss."""
    values: dict[str, Any] = {}
    if config.beta and (config.kl_in == "reward" or own_kl(config, inputs)):
        values["beta"] = 0.0
    elif config.beta and ROW_WEIGHTS in inputs:
        values["beta"] = config.beta * inputs[ROW_WEIGHTS][0].item()  # the same in all rows
    if config.length_norm in ("constant", "microbatch"):
        divisor = loss_denominator(
            mask_NT,
            config.length_norm,
            constant=config.length_norm_constant or config.max_completion_length,
        )
        values["max_completion_length"] = divisor.item() / len(mask_NT)
    if config.corrects_without_engine and "sampling_per_token_logps" in inputs:
        values["use_vllm"] = True  # TRL's loss then multiplies by the importance ratio
    if config.surrogate == "geometric":
        values["importance_sampling_level"] = "sequence"
    if config.surrogate in ("no_clip", "geometric", "probability"):
        values |= {"epsilon_low": NO_CLIP, "epsilon_high": NO_CLIP}
    return values
