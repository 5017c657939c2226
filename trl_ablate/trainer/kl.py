"""The KL to the reference where TRL's own term does not do: other estimates, other places.

TRL adds the k3 estimate to the loss of each token. Another estimate, or a weight for each row, is
added here to TRL's loss with the same divisor. In the reward, the KL of a completion is computed
once per rollout batch, under the policy that is about to be trained.
"""

from typing import TYPE_CHECKING, Any

import torch

from trl_ablate.errors import ConfigurationError
from trl_ablate.losses import highest_covariance, kl_to_reference, loss_denominator
from trl_ablate.trainer.batching import ROW_WEIGHTS, Batch, is_text
from trl_ablate.trainer.loss_pass import LossPass, own_kl
from trl_ablate.trainer.rollouts import response_mask

if TYPE_CHECKING:
    from trl_ablate.trainer.ablation import AblationTrainer

DIVISORS = {"grpo": "mean", "sapo": "mean", "dr_grpo": "constant"}
"""Loss type -> the length norm with its divisor; the others are in `_divisor`."""


def kl_loss(trainer: "AblationTrainer", loss_pass: LossPass) -> torch.Tensor | None:
    """Our KL term of one loss, to add to TRL's; None if the term is TRL's or in the reward."""
    args = trainer.args
    if not own_kl(args, loss_pass.inputs):
        return None
    shown, mask_NT = loss_pass.shown, loss_pass.mask_NT
    kl_NT = kl_to_reference(
        loss_pass.attached_logps_NT, shown["ref_per_token_logps"], args.kl_estimator
    )
    if args.use_bias_correction_kl:
        kl_NT = kl_NT * loss_pass.attached_ratio(trainer.importance_sampling_level)
    _log(trainer, kl_NT.detach(), mask_NT)
    return args.beta * _mean(trainer, loss_pass, kl_NT)


def covariance_loss(trainer: "AblationTrainer", loss_pass: LossPass) -> torch.Tensor | None:
    """The distance to the old policy at the tokens of highest covariance; None if it is off."""
    args, mask_NT = trainer.args, loss_pass.mask_NT
    if not args.covariance_kl:
        return None
    chosen_NT = highest_covariance(
        loss_pass.logps_NT, loss_pass.advantages_N1, mask_NT, args.covariance_share
    )
    distance_NT = (loss_pass.attached_logps_NT - loss_pass.old_logps_NT).abs() * chosen_NT
    return args.covariance_kl * _mean(trainer, loss_pass, distance_NT)


def _mean(trainer: "AblationTrainer", loss_pass: LossPass, terms_NT: torch.Tensor) -> torch.Tensor:
    """Terms of tokens as TRL's loss adds them up, with the weights of the rows."""
    if ROW_WEIGHTS in loss_pass.inputs:
        terms_NT = terms_NT * loss_pass.inputs[ROW_WEIGHTS].unsqueeze(1)
    summed_N = (terms_NT.masked_fill(loss_pass.mask_NT == 0, 0.0)).sum(dim=1)
    return (summed_N / _divisor(trainer, loss_pass.shown, loss_pass.mask_NT)).sum()


def kl_penalty(trainer: "AblationTrainer", batch: Batch) -> torch.Tensor | None:
    """beta times the summed KL of each completion, of all processes, `(N,)`; None if the KL is not
    in the reward, or there is no reference: one-shot evaluation computes none."""
    args = trainer.args
    if args.kl_in != "reward" or "ref_per_token_logps" not in batch:
        return None
    if not is_text(batch):
        raise ConfigurationError(
            "kl_in 'reward' is for text only, but a batch has "
            f"{', '.join(sorted(batch))}; use kl_in 'loss'"
        )
    mask_NT = response_mask(batch)
    with torch.no_grad():
        kl_NT = kl_to_reference(
            _logps(trainer, batch), batch["ref_per_token_logps"], args.kl_estimator
        )
    _log(trainer, kl_NT, mask_NT)
    gathered: Any = trainer.accelerator.gather(kl_NT.masked_fill(mask_NT == 0, 0.0).sum(dim=1))
    return args.beta * gathered


def _logps(trainer: "AblationTrainer", batch: Batch) -> torch.Tensor:
    """Log-probabilities of the policy before the update, which TRL computes only if needed."""
    if "old_per_token_logps" in batch:
        return batch["old_per_token_logps"]
    args: Any = trainer.args
    training, width = trainer.model.training, batch["completion_ids"].size(1)
    ids_NL = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    mask_NL = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    at_once = args.per_device_train_batch_size if training else args.per_device_eval_batch_size
    logps: Any = trainer._get_per_token_logps_and_entropies(
        trainer.model, ids_NL, mask_NL, width, batch_size=at_once
    )
    return logps[0]


def _log(trainer: "AblationTrainer", kl_NT: torch.Tensor, mask_NT: torch.Tensor) -> None:
    """Log the mean over the tokens of all processes, as TRL does, by its name."""
    local = torch.stack([kl_NT.masked_fill(mask_NT == 0, 0.0).sum(), mask_NT.sum().float()])
    total: Any = trainer.accelerator.reduce(local, reduction="sum")
    mode = "train" if trainer.model.training else "eval"
    trainer._metrics[mode]["kl"].append((total[0] / total[1].clamp(min=1)).item())


def _divisor(trainer: "AblationTrainer", batch: Batch, mask_NT: torch.Tensor) -> torch.Tensor:
    """TRL's divisor of the summed loss of the rows, with accumulation: `(N,)` or a scalar."""
    training, loss_type = trainer.model.training, trainer.loss_type
    accumulated: Any = trainer.current_gradient_accumulation_steps if training else 1.0
    if loss_type in DIVISORS:
        longest: Any = trainer.max_completion_length
        return loss_denominator(mask_NT, DIVISORS[loss_type], constant=longest) * accumulated
    if loss_type == "bnpo":
        return loss_denominator(mask_NT, "token") * accumulated
    if loss_type == "luspo":
        return torch.as_tensor(len(mask_NT) * accumulated)
    share = accumulated / trainer.args.steps_per_generation if training else 1.0
    items = batch["num_items_in_batch"].clamp(min=1.0) / trainer.accelerator.num_processes
    return items * share
