"""One call of TRL's loss on a microbatch: what TRL is shown of it, and what is kept of the call.

TRL computes the loss. Its log-probabilities and entropies are kept here; the terms that TRL lacks
(another estimate of the KL, the covariance) and statistics of the ratio are computed from them. In
the reward, the KL of a completion is computed once per rollout batch, under the policy that is
about to be trained.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor
from trl import GRPOTrainer

from trl_ablate import losses
from trl_ablate.config import AblationConfig
from trl_ablate.errors import ConfigurationError
from trl_ablate.trainer.batching import ROW_WEIGHTS, Batch, is_text, response_mask
from trl_ablate.trainer.rollouts import Setting

HELD = ("beta", "importance_sampling_level", "epsilon_low", "epsilon_high")
"""What TRL's loss reads from the trainer, where a callback may change it during the training."""
HIDE_THE_RATIO = ("reinforce", "one_sided")
"""Surrogates for which TRL's ratio is 1, see `LossPass.shown`."""
DIVIDED_BY_ACCUMULATION = ("cispo", "dapo", "vespo")
"""Loss types of which TRL logs `policy_loss` with the divisor of the accumulation."""
DIVISORS = {"grpo": "mean", "sapo": "mean", "dr_grpo": "constant"}
"""Loss type -> the length norm with its divisor; the others are in `LossPass._divisor`."""


class LossPass:
    """One call of TRL's loss on a microbatch; `held` are the trainer's values of `HELD`."""

    def __init__(self, inputs: Batch, config: AblationConfig, held: Mapping[str, Any]):
        self.inputs, self.held = inputs, held
        self.config: Any = config
        self.mask_NT = response_mask(inputs)
        """1 at the tokens that count in the loss."""
        self.shown = self._shown()
        """The part of the inputs that TRL gets, to which the importance correction adds."""
        self.has_own_kl = self._has_own_kl()
        self.switched = self._switched()
        """Attributes of TRL's trainer for this call, in place of the `held` ones."""
        current = {**held, **self.switched}
        self.beta = current["beta"]
        hidden = config.surrogate in HIDE_THE_RATIO
        self.level = (held if hidden else current)["importance_sampling_level"]
        self.epsilon_low, self.epsilon_high = current["epsilon_low"], current["epsilon_high"]
        advantages = inputs["advantages"]
        self.advantages_N1 = advantages.unsqueeze(1) if advantages.dim() == 1 else advantages
        self.attached_logps_NT = self.logps_NT = self.entropies_NT = torch.empty(0)
        self.held_NT = torch.empty(0)
        """Where a surrogate that TRL lacks has changed the gradient."""
        self.kept_N1: Tensor | None = None

    def _shown(self) -> Batch:
        """With `reinforce` and `one_sided`, TRL lacks the old log-probabilities and takes the
        current ones: their ratio is 1, with gradient ∇log π. Its off-policy mask reads them as the
        sampler's, whatever a surrogate does to them. TRL's policy loss is proportional to the
        advantages, so they take the factor of each row."""
        shown = dict(self.inputs)
        if "old_per_token_logps" in shown:
            shown.setdefault("sampling_per_token_logps", shown["old_per_token_logps"])
        if self.config.surrogate in HIDE_THE_RATIO:
            shown.pop("old_per_token_logps", None)
        if ROW_WEIGHTS in shown:
            shown["advantages"] = shown["advantages"] * shown[ROW_WEIGHTS]
        return shown

    def _has_own_kl(self) -> bool:
        """Whether the loss's KL term is ours: TRL has k3 only, with one weight for all rows, and
        the policy loss's ratio, which some surrogates hide."""
        config = self.config
        weighted = ROW_WEIGHTS in self.inputs and config.length_norm == "prompt"
        in_loss = self.held["beta"] != 0.0 and config.kl_in == "loss"
        hidden = config.surrogate in HIDE_THE_RATIO and config.use_bias_correction_kl
        return in_loss and (config.kl_estimator != "k3" or weighted or hidden)

    def _switched(self) -> dict[str, Any]:
        """Divisor, clip range and weight of the KL term, as the switches set them."""
        config, beta = self.config, self.held["beta"]
        values: dict[str, Any] = {}
        if beta and (config.kl_in == "reward" or self.has_own_kl):
            values["beta"] = 0.0
        elif beta and ROW_WEIGHTS in self.inputs:
            values["beta"] = beta * self.inputs[ROW_WEIGHTS][0].item()  # the same in all rows
        if config.length_norm in ("constant", "microbatch"):
            constant = config.length_norm_constant or config.max_completion_length
            divisor = losses.loss_denominator(self.mask_NT, config.length_norm, constant=constant)
            values["max_completion_length"] = divisor.item() / len(self.mask_NT)
        if config.corrects_without_engine and "sampling_per_token_logps" in self.inputs:
            values["use_vllm"] = True  # TRL's loss then multiplies by the importance ratio
        if config.surrogate == "geometric":
            values["importance_sampling_level"] = "sequence"
        if config.surrogate in HIDE_THE_RATIO:  # so that each token has ∇log π of its own
            values["importance_sampling_level"] = "token"
        if config.surrogate in ("no_clip", "geometric", "probability"):
            values |= {"epsilon_low": losses.NO_CLIP, "epsilon_high": losses.NO_CLIP}
        return values

    def idle_rows(self) -> Tensor | None:
        """The rows whose advantage is 0, if no other term of the loss has a gradient."""
        bonus = self.config.entropy_coef != 0.0 or self.config.use_adaptive_entropy
        if self.beta != 0.0 or self.has_own_kl or self.config.covariance_kl or bonus:
            return None
        advantages = self.shown["advantages"]
        idle_N = (advantages.reshape(len(advantages), -1) == 0).all(dim=1)
        return idle_N if idle_N.any() else None

    def found(self, logps_NT: Any, entropies_NT: Any) -> None:
        """Keep the result of the loss's forward pass, and change what TRL is shown, for the
        surrogates that it lacks.

        `geometric`: old log-probabilities whose log ratio is the clipped one. With gradient: the
        current ones cancel, so that a clipped token has none. `probability`: advantages of 0 where
        the token's probability has moved far from the sampler's, or, where that is not known, from
        the old one. `one_sided`: negative advantages times the ratio of their response, at most 1.
        """
        self.attached_logps_NT = logps_NT
        self.logps_NT, self.entropies_NT = logps_NT.detach(), entropies_NT.detach()
        old_NT, advantages_N1 = self.old_logps_NT, self.advantages_N1
        bounds = (self.held["epsilon_low"], self.held["epsilon_high"])
        if self.config.surrogate == "geometric":
            log_ratio_NT = self.attached_logps_NT - old_NT
            clipped_NT = losses.clipped_log_ratio(log_ratio_NT, advantages_N1, *bounds)
            self.held_NT = (clipped_NT != log_ratio_NT) & (advantages_N1 != 0)
            if "old_per_token_logps" in self.shown:
                self.shown["old_per_token_logps"] = self.attached_logps_NT - clipped_NT
        elif self.config.surrogate == "probability":
            sampling_NT = self.inputs.get("sampling_per_token_logps", old_NT)
            before_NT = torch.where(sampling_NT.isnan(), old_NT, sampling_NT)
            moved_NT = losses.probability_moved(self.logps_NT, before_NT, advantages_N1, *bounds)
            self.held_NT = moved_NT
            self._weigh_shown(~moved_NT)
        elif self.config.surrogate == "one_sided":
            weight_N1 = losses.one_sided_weight(self.logps_NT, old_NT, self.mask_NT, advantages_N1)
            self.held_NT = losses.changed_by_weight(weight_N1, advantages_N1)
            self._weigh_shown(weight_N1)

    def reject_far_rows(self, limit: float) -> None:
        """Show TRL advantages of 0 for rows that are further than `limit` from the sampler."""
        far = (self.old_logps_NT, self.inputs["sampling_per_token_logps"], self.mask_NT, limit)
        self.kept_N1 = losses.within_sampler_gap(*far)
        self._weigh_shown(self.kept_N1)

    def _weigh_shown(self, weight_NT: Tensor) -> None:
        """Multiply the advantages that TRL is shown; it takes one for each row or token."""
        advantages_N1 = self.shown["advantages"].reshape(len(weight_NT), -1)
        self.shown["advantages"] = advantages_N1 * weight_NT

    @property
    def old_logps_NT(self) -> Tensor:
        """Log-probabilities of the sampling policy; if there are none, those of the current one."""
        return self.inputs.get("old_per_token_logps", self.logps_NT).detach()

    def _ratio(self, logps_NT: Tensor, old_logps_NT: Tensor) -> Tensor:
        """π/π_old of each token `(N, T)`, or of each sequence `(N, 1)`."""
        if self.level == "sequence":
            log_ratio_N1 = losses.sequence_log_ratio(logps_NT, old_logps_NT, self.mask_NT)
            return torch.exp(log_ratio_N1)
        return losses.token_ratio(logps_NT, old_logps_NT, self.mask_NT)

    def added_terms(self, setting: Setting, accumulated: float) -> Iterator[Tensor]:
        """What is added to TRL's loss: our KL, unless it is TRL's or in the reward, and the
        distance to the old policy at the tokens of highest covariance.

        `accumulated`: microbatches over which TRL divides the loss; 1 in an evaluation.
        """
        args, logps_NT = self.config, self.attached_logps_NT
        if self.has_own_kl:
            reference_NT = self.shown["ref_per_token_logps"]
            kl_NT = losses.kl_to_reference(logps_NT, reference_NT, args.kl_estimator)
            if args.use_bias_correction_kl:  # with the ratio of TRL's loss, unless it sees none
                hidden_NT = self.inputs.get("old_per_token_logps", self.logps_NT)
                old_NT = self.shown.get("old_per_token_logps", hidden_NT)
                kl_NT = kl_NT * self._ratio(logps_NT, old_NT)
            _log_kl(setting, kl_NT.detach(), self.mask_NT)
            yield self.held["beta"] * self._mean(setting, kl_NT, accumulated)
        if args.covariance_kl:
            rows = (self.logps_NT, self.advantages_N1, self.mask_NT)
            chosen_NT = losses.highest_covariance(*rows, args.covariance_share)
            distance_NT = (logps_NT - self.old_logps_NT).abs() * chosen_NT
            yield args.covariance_kl * self._mean(setting, distance_NT, accumulated)

    def log_added(self, setting: Setting, term: Tensor, accumulated: float) -> None:
        """Add a term to TRL's `policy_loss`, which is all of the loss but the entropy bonus."""
        divided = self.config.loss_type in DIVIDED_BY_ACCUMULATION
        value = setting.gather(term if divided else term * accumulated).nanmean().item()
        setting.metrics["policy_loss"][-1] += value

    def _mean(self, setting: Setting, terms_NT: Tensor, accumulated: float) -> Tensor:
        """Terms of tokens as TRL's loss adds them up, with the weights of the rows."""
        if ROW_WEIGHTS in self.inputs:
            terms_NT = terms_NT * self.inputs[ROW_WEIGHTS].unsqueeze(1)
        summed_N = terms_NT.masked_fill(self.mask_NT == 0, 0.0).sum(dim=1)
        return (summed_N / self._divisor(setting, accumulated)).sum()

    def _divisor(self, setting: Setting, accumulated: float) -> Tensor:
        """TRL's divisor of the summed loss of the rows, with accumulation: `(N,)` or a scalar."""
        config, mask_NT = self.config, self.mask_NT
        if config.loss_type in DIVISORS:
            norm = DIVISORS[config.loss_type]
            longest = self.switched.get("max_completion_length", config.max_completion_length)
            return losses.loss_denominator(mask_NT, norm, constant=longest) * accumulated
        if config.loss_type == "bnpo":
            return losses.loss_denominator(mask_NT, "token") * accumulated
        if config.loss_type == "luspo":
            return torch.as_tensor(len(mask_NT) * accumulated)
        share = accumulated / config.steps_per_generation if setting.training else 1.0
        items = self.shown["num_items_in_batch"].clamp(min=1.0)
        return items / setting.accelerator.num_processes * share

    def ratio_sums(self) -> Tensor:
        """`(3,)`, see `losses.ratio_sums`; the ratio is that to the sampling policy."""
        ratio_NT = self._ratio(self.logps_NT, self.old_logps_NT)
        return losses.ratio_sums(ratio_NT, self._changed(ratio_NT), self.mask_NT)

    def _changed(self, ratio_NT: Tensor) -> Tensor:
        """Where the gradient of the loss differs from that of `r·A`; nowhere with `reinforce`."""
        config, advantages_N1 = self.config, self.advantages_N1
        if config.surrogate == "reinforce":
            return torch.zeros_like(ratio_NT, dtype=torch.bool)
        if config.surrogate in ("geometric", "probability", "one_sided"):
            return self.held_NT
        if config.loss_type == "cispo":
            return losses.changed_by_cispo(ratio_NT, advantages_N1, self.epsilon_high)
        if config.loss_type == "sapo":
            temperatures = (config.sapo_temperature_pos, config.sapo_temperature_neg)
            weight_NT = losses.sapo_weight(ratio_NT, advantages_N1, *temperatures)
            return losses.changed_by_weight(weight_NT, advantages_N1)
        if config.loss_type == "vespo":
            return losses.changed_by_weight(self.vespo_weight() / ratio_NT, advantages_N1)
        bounds = (self.epsilon_low, self.epsilon_high, config.delta)
        return losses.changed_by_clipping(ratio_NT, advantages_N1, *bounds)

    def vespo_weight(self) -> Tensor:
        """VESPO's φ of each row, `(N, 1)`, as TRL's loss has it."""
        before_NT = self.shown.get("old_per_token_logps", self.logps_NT)
        return GRPOTrainer.get_gamma_weights(
            advantages=self.advantages_N1,
            log_ratio_per_token=self.logps_NT - before_NT,
            mask=self.mask_NT,
            importance_sampling_ratio=self.shown.get("importance_sampling_ratio"),
            k_pos=self.config.vespo_k_pos,
            lambda_pos=self.config.vespo_lambda_pos,
            k_neg=self.config.vespo_k_neg,
            lambda_neg=self.config.vespo_lambda_neg,
        )


class RatioSums:
    """Sums of ratios (`losses.ratio_sums`) since the last logged row, in training and evaluation.
    They are float64, and kept on the CPU, because not every device has float64."""

    def __init__(self) -> None:
        self.by_mode: dict[str, Tensor] = {}

    def add(self, mode: str, sums_3: Tensor) -> None:
        sums_3 = sums_3.cpu().double()
        self.by_mode[mode] = self.by_mode.get(mode, torch.zeros_like(sums_3)) + sums_3

    def metrics(self, mode: str, accelerator: Accelerator) -> dict[str, float]:
        """The metrics of all processes since the last call; empty if there was no loss."""
        sums: Any = self.by_mode.pop(mode, None)
        if sums is None:
            return {}
        if accelerator.num_processes > 1:  # a single process needs no copy to the device
            sums = accelerator.reduce(sums.to(accelerator.device), reduction="sum")
        prefix = "" if mode == "train" else "eval_"
        return {f"{prefix}{name}": value for name, value in losses.ratio_means(sums).items()}


def kl_penalty(
    setting: Setting, batch: Batch, logps_before: Callable[[Batch], Tensor], beta: float
) -> Tensor | None:
    """beta times the summed KL of each completion, also of one that will be left out, of all
    processes, `(N,)`; None if it is not in the reward, or there is no reference, as in one-shot
    evaluation."""
    if setting.config.kl_in != "reward" or "ref_per_token_logps" not in batch:
        return None
    if not is_text(batch):
        raise ConfigurationError(
            "kl_in 'reward' is for text only, but a batch has "
            f"{', '.join(sorted(batch))}; use kl_in 'loss'"
        )
    logps_NT, mask_NT = logps_before(batch), response_mask(batch)
    reference_NT, estimator = batch["ref_per_token_logps"], setting.config.kl_estimator
    kl_NT = losses.kl_to_reference(logps_NT, reference_NT, estimator)
    _log_kl(setting, kl_NT, mask_NT)
    return beta * setting.gather(kl_NT.masked_fill(mask_NT == 0, 0.0).sum(dim=1))


def _log_kl(setting: Setting, kl_NT: Tensor, mask_NT: Tensor) -> None:
    """Log the mean over the tokens of all processes, as TRL does, by its name; NaN, which its mean
    leaves out, without tokens."""
    summed = kl_NT.masked_fill(mask_NT == 0, 0.0).sum()
    total = setting.total(torch.stack([summed, mask_NT.sum().float()]))
    setting.metrics["kl"].append((total[0] / total[1]).item())
