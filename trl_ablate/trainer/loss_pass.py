"""One call of TRL's loss on a microbatch: what TRL is shown of it, and what is kept of the call.

TRL computes the loss. Its log-probabilities and entropies are kept here; the terms that TRL lacks
(another estimate of the KL, the covariance) and the logged statistics (`loss_metrics.py`) are
computed from them. In the reward, the KL of a completion is computed once per rollout batch, under
the policy that is about to be trained.
"""

from collections.abc import Mapping
from contextlib import contextmanager
from typing import Any

import torch

from trl_ablate.config import AblationConfig
from trl_ablate.errors import ConfigurationError
from trl_ablate.losses import (
    NO_CLIP,
    changed_by_weight,
    clipped_log_ratio,
    highest_covariance,
    kl_to_reference,
    loss_denominator,
    one_sided_weight,
    probability_moved,
    sequence_log_ratio,
    token_ratio,
    within_sampler_gap,
)
from trl_ablate.trainer.batching import BONUS_WEIGHTS, ROW_WEIGHTS, Batch, is_text, response_mask
from trl_ablate.trainer.rollouts import Setting
from trl_ablate.trainer.temporary import replaced

HELD = ("beta", "importance_sampling_level", "epsilon_low", "epsilon_high")
"""What TRL's loss reads from the trainer, where a callback may change it during the training."""

HIDE_THE_RATIO = ("reinforce", "one_sided")
"""Surrogates for which TRL's ratio is 1, see `shown_to_trl`."""

DIVISORS = {"grpo": "mean", "sapo": "mean", "dr_grpo": "constant"}
"""Loss type -> the length norm with its divisor; the others are in `_divisor`."""


class LossPass:
    """One call of TRL's loss on a microbatch.

    `shown` is the part of it that TRL gets, to which the importance correction adds; `switched` are
    attributes of TRL's trainer for this call, in place of the `held` ones; `mask_NT` is 1 at the
    tokens that count in the loss.
    """

    def __init__(self, inputs: Batch, config: AblationConfig, held: Mapping[str, Any]):
        self.inputs = inputs
        self.config: Any = config
        self.shown = shown_to_trl(inputs, config)
        self.mask_NT = response_mask(inputs)
        self.held = held
        self.has_own_kl = own_kl(config, inputs, held["beta"])
        self.switched = switched_values(config, inputs, self.mask_NT, held["beta"])
        current = {**held, **self.switched}
        self.beta = current["beta"]
        self.level = current["importance_sampling_level"]
        self.epsilon_low, self.epsilon_high = current["epsilon_low"], current["epsilon_high"]
        advantages = inputs["advantages"]
        self.advantages_N1 = advantages.unsqueeze(1) if advantages.dim() == 1 else advantages
        self.logps_NT = torch.empty(0)
        self.attached_logps_NT = torch.empty(0)
        self.held_NT = torch.empty(0)
        """Where a surrogate that TRL lacks has changed the gradient."""
        self.kept_N1: torch.Tensor | None = None
        self.entropies_NT = torch.empty(0)

    def found(self, logps_NT: Any, entropies_NT: Any) -> None:
        """Keep the result of the loss's forward pass; TRL's loss always asks for entropies."""
        self.attached_logps_NT = logps_NT
        self.logps_NT = logps_NT.detach()
        self.entropies_NT = entropies_NT.detach()
        self._apply_surrogate()

    def idle_rows(self) -> torch.Tensor | None:
        """The rows whose advantage is 0, if no other term of the loss has a gradient."""
        config = self.config
        bonus = config.entropy_coef != 0.0 or config.use_adaptive_entropy
        if self.beta != 0.0 or self.has_own_kl:
            return None
        if config.covariance_kl or bonus:
            return None
        advantages = self.shown["advantages"]
        idle_N = (advantages.reshape(len(advantages), -1) == 0).all(dim=1)
        return idle_N if idle_N.any() else None

    def _apply_surrogate(self) -> None:
        """Change what TRL is shown, for the surrogates that it lacks.

        `geometric`: old log-probabilities whose log ratio is the clipped one. With gradient: the
        current ones cancel, so that a clipped token has none. `probability`: advantages of 0 where
        the token's probability has moved far from the sampler's, or, where that is not known, from
        the old one. `one_sided`: negative advantages times the ratio of their response, at most 1.
        """
        config, old_NT, advantages_N1 = self.config, self.old_logps_NT, self.advantages_N1
        bounds = (self.held["epsilon_low"], self.held["epsilon_high"])
        if config.surrogate == "geometric":
            log_ratio_NT = self.attached_logps_NT - old_NT
            clipped_NT = clipped_log_ratio(log_ratio_NT, advantages_N1, *bounds)
            self.held_NT = (clipped_NT != log_ratio_NT) & (advantages_N1 != 0)
            if "old_per_token_logps" in self.shown:
                self.shown["old_per_token_logps"] = self.attached_logps_NT - clipped_NT
        elif config.surrogate == "probability":
            sampling_NT = self.inputs.get("sampling_per_token_logps", old_NT)
            before_NT = torch.where(sampling_NT.isnan(), old_NT, sampling_NT)
            self.held_NT = probability_moved(self.logps_NT, before_NT, advantages_N1, *bounds)
            self._weigh_shown(~self.held_NT)
        elif config.surrogate == "one_sided":
            weight_N1 = one_sided_weight(self.logps_NT, old_NT, self.mask_NT, advantages_N1)
            self.held_NT = changed_by_weight(weight_N1, advantages_N1)
            self._weigh_shown(weight_N1)

    def reject_far_rows(self, limit: float) -> None:
        """Show TRL advantages of 0 for rows that are further than `limit` from the sampler."""
        sampling_NT = self.inputs["sampling_per_token_logps"]
        self.kept_N1 = within_sampler_gap(self.old_logps_NT, sampling_NT, self.mask_NT, limit)
        self._weigh_shown(self.kept_N1)

    def _weigh_shown(self, weight_NT: torch.Tensor) -> None:
        """Multiply the advantages that TRL is shown; it takes one for each row or token."""
        advantages_N1 = self.shown["advantages"].reshape(len(weight_NT), -1)
        self.shown["advantages"] = advantages_N1 * weight_NT

    def attached_ratio(self) -> torch.Tensor:
        """π/π_old, with gradient: that of TRL's loss, or where it sees none, of the inputs."""
        hidden_NT = self.inputs.get("old_per_token_logps", self.logps_NT)
        old_logps_NT = self.shown.get("old_per_token_logps", hidden_NT)
        return self._ratio(self.attached_logps_NT, old_logps_NT)

    def ratio_to(self, batch: Batch) -> torch.Tensor:
        """π/π_old of each token `(N, T)`, or of each sequence `(N, 1)`."""
        return self._ratio(self.logps_NT, self.old_logps_of(batch))

    def _ratio(self, logps_NT: torch.Tensor, old_logps_NT: torch.Tensor) -> torch.Tensor:
        if self.level == "sequence":
            return torch.exp(sequence_log_ratio(logps_NT, old_logps_NT, self.mask_NT))
        return token_ratio(logps_NT, old_logps_NT, self.mask_NT)

    @property
    def old_logps_NT(self) -> torch.Tensor:
        return self.old_logps_of(self.inputs)

    def old_logps_of(self, batch: Batch) -> torch.Tensor:
        """Log-probabilities of the sampling policy; if there are none, those of the current one."""
        return batch.get("old_per_token_logps", self.logps_NT).detach()


def shown_to_trl(inputs: Batch, config: AblationConfig) -> Batch:
    """A copy of the inputs for one loss. With `reinforce` and `one_sided`, it lacks the old
    log-probabilities, so TRL takes the current ones: their ratio is 1, with gradient ∇log π. Its
    off-policy mask reads them as the sampler's, whatever a surrogate does to them. TRL's policy
    loss is proportional to the advantages, so they take the factor of each row."""
    shown = dict(inputs)
    if "old_per_token_logps" in inputs:
        shown.setdefault("sampling_per_token_logps", inputs["old_per_token_logps"])
    if config.surrogate in HIDE_THE_RATIO:
        shown.pop("old_per_token_logps", None)
    if ROW_WEIGHTS in inputs:
        shown["advantages"] = inputs["advantages"] * inputs[ROW_WEIGHTS]
    return shown


def own_kl(config: AblationConfig, inputs: Batch, beta: float) -> bool:
    """Whether the loss's KL term is ours: TRL has k3 only, with one weight for all rows, and the
    policy loss's ratio, which `reinforce` and `one_sided` hide."""
    weighted = ROW_WEIGHTS in inputs and config.length_norm == "prompt"
    in_loss = beta != 0.0 and config.kl_in == "loss"
    hidden = config.surrogate in HIDE_THE_RATIO and config.use_bias_correction_kl
    return in_loss and (config.kl_estimator != "k3" or weighted or hidden)


def switched_values(
    config: AblationConfig, inputs: Batch, mask_NT: torch.Tensor, beta: float
) -> dict[str, Any]:
    """The attributes of TRL's trainer (divisor, clip range, weight of the KL term) that the
    switches set for one loss; `beta` is the trainer's own."""
    values: dict[str, Any] = {}
    if beta and (config.kl_in == "reward" or own_kl(config, inputs, beta)):
        values["beta"] = 0.0
    elif beta and ROW_WEIGHTS in inputs:
        values["beta"] = beta * inputs[ROW_WEIGHTS][0].item()  # the same in all rows
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


def added_terms(setting: Setting, loss_pass: LossPass, accumulated: float) -> list[torch.Tensor]:
    """What is added to TRL's loss: our KL, unless it is TRL's or in the reward, and the distance
    to the old policy at the tokens of highest covariance.

    `accumulated`: microbatches over which TRL divides the loss; 1 in an evaluation.
    """
    args, terms = loss_pass.config, []
    if loss_pass.has_own_kl:
        reference_NT = loss_pass.shown["ref_per_token_logps"]
        kl_NT = kl_to_reference(loss_pass.attached_logps_NT, reference_NT, args.kl_estimator)
        if args.use_bias_correction_kl:
            kl_NT = kl_NT * loss_pass.attached_ratio()
        _log_kl(setting, kl_NT.detach(), loss_pass.mask_NT)
        terms.append(loss_pass.held["beta"] * _mean(setting, loss_pass, kl_NT, accumulated))
    if args.covariance_kl:
        chosen_NT = highest_covariance(
            loss_pass.logps_NT, loss_pass.advantages_N1, loss_pass.mask_NT, args.covariance_share
        )
        distance_NT = (loss_pass.attached_logps_NT - loss_pass.old_logps_NT).abs() * chosen_NT
        terms.append(args.covariance_kl * _mean(setting, loss_pass, distance_NT, accumulated))
    return terms


def kl_in_reward(config: AblationConfig, batch: Batch) -> bool:
    """Whether the KL is in the reward and there is a reference: one-shot evaluation has none."""
    if config.kl_in != "reward" or "ref_per_token_logps" not in batch:
        return False
    if not is_text(batch):
        raise ConfigurationError(
            "kl_in 'reward' is for text only, but a batch has "
            f"{', '.join(sorted(batch))}; use kl_in 'loss'"
        )
    return True


def kl_penalty(setting: Setting, batch: Batch, logps_NT: torch.Tensor, beta: float) -> torch.Tensor:
    """beta times the summed KL of each completion, of all processes, `(N,)`."""
    estimator, mask_NT = setting.config.kl_estimator, response_mask(batch)
    kl_NT = kl_to_reference(logps_NT, batch["ref_per_token_logps"], estimator)
    _log_kl(setting, kl_NT, mask_NT)
    return beta * setting.gather(kl_NT.masked_fill(mask_NT == 0, 0.0).sum(dim=1))


def _log_kl(setting: Setting, kl_NT: torch.Tensor, mask_NT: torch.Tensor) -> None:
    """Log the mean over the tokens of all processes, as TRL does, by its name."""
    total = setting.total(
        torch.stack([kl_NT.masked_fill(mask_NT == 0, 0.0).sum(), mask_NT.sum().float()])
    )
    setting.metrics["kl"].append((total[0] / total[1].clamp(min=1)).item())


def _mean(
    setting: Setting, loss_pass: LossPass, terms_NT: torch.Tensor, accumulated: float
) -> torch.Tensor:
    """Terms of tokens as TRL's loss adds them up, with the weights of the rows."""
    if ROW_WEIGHTS in loss_pass.inputs:
        terms_NT = terms_NT * loss_pass.inputs[ROW_WEIGHTS].unsqueeze(1)
    summed_N = terms_NT.masked_fill(loss_pass.mask_NT == 0, 0.0).sum(dim=1)
    return (summed_N / _divisor(setting, loss_pass, accumulated)).sum()


def _divisor(setting: Setting, loss_pass: LossPass, accumulated: float) -> torch.Tensor:
    """TRL's divisor of the summed loss of the rows, with accumulation: `(N,)` or a scalar."""
    config, mask_NT = loss_pass.config, loss_pass.mask_NT
    if config.loss_type in DIVISORS:
        longest = loss_pass.switched.get("max_completion_length", config.max_completion_length)
        return loss_denominator(mask_NT, DIVISORS[config.loss_type], constant=longest) * accumulated
    if config.loss_type == "bnpo":
        return loss_denominator(mask_NT, "token") * accumulated
    if config.loss_type == "luspo":
        return torch.as_tensor(len(mask_NT) * accumulated)
    share = accumulated / config.steps_per_generation if setting.training else 1.0
    items = loss_pass.shown["num_items_in_batch"].clamp(min=1.0)
    return items / setting.accelerator.num_processes * share


@contextmanager
def bonus_of_kept_groups(trainer: Any, inputs: Batch):
    """Within the block, TRL's mean of the entropy bonus over all microbatches is one over those
    that have a kept group.

    This takes a factor for the coefficient. So that TRL's control of an adaptive coefficient goes
    on, its step and its bounds are in the same unit.
    """
    if not (trainer.model.training and BONUS_WEIGHTS in inputs):
        yield
        return
    args, own = trainer.args, trainer.entropy_coef
    factor = inputs[BONUS_WEIGHTS][0].item()  # the same in all rows
    scaled = ("entropy_coef_delta", "entropy_coef_min", "entropy_coef_max")
    with replaced(args, **{name: getattr(args, name) * factor for name in scaled}):
        trainer.entropy_coef = raised = own * factor
        try:
            yield
        finally:
            now = trainer.entropy_coef
            trainer.entropy_coef = own if now == raised else now / factor
    if trainer.accelerator.sync_gradients:
        trainer._metrics["train"]["entropy_coef"][-1] = trainer.entropy_coef
