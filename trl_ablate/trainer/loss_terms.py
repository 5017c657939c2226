"""Terms of the loss that TRL lacks, or has in another form: KL, covariance, entropy bonus.

TRL adds the k3 estimate of the KL to the reference to the loss of each token. Another estimate, or
a weight for each row, is added here to TRL's loss with the same divisor. In the reward, the KL of a
completion is computed once per rollout batch, under the policy that is about to be trained.
"""

from contextlib import contextmanager
from typing import Any

import torch

from trl_ablate.config import AblationConfig
from trl_ablate.errors import ConfigurationError
from trl_ablate.losses import highest_covariance, kl_to_reference, loss_denominator
from trl_ablate.trainer.batching import BONUS_WEIGHTS, ROW_WEIGHTS, Batch, is_text, response_mask
from trl_ablate.trainer.loss_pass import LossPass, own_kl
from trl_ablate.trainer.setting import Setting
from trl_ablate.trainer.temporary import replaced

DIVISORS = {"grpo": "mean", "sapo": "mean", "dr_grpo": "constant"}
"""Loss type -> the length norm with its divisor; the others are in `_divisor`."""


def added_terms(setting: Setting, loss_pass: LossPass, accumulated: float) -> list[torch.Tensor]:
    """What is added to TRL's loss: our KL, unless it is TRL's or in the reward, and the distance
    to the old policy at the tokens of highest covariance.

    `accumulated`: microbatches over which TRL divides the loss; 1 in an evaluation.
    """
    args, terms = loss_pass.config, []
    if own_kl(args, loss_pass.inputs):
        reference_NT = loss_pass.shown["ref_per_token_logps"]
        kl_NT = kl_to_reference(loss_pass.attached_logps_NT, reference_NT, args.kl_estimator)
        if args.use_bias_correction_kl:
            kl_NT = kl_NT * loss_pass.attached_ratio()
        _log_kl(setting, kl_NT.detach(), loss_pass.mask_NT)
        terms.append(args.beta * _mean(setting, loss_pass, kl_NT, accumulated))
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


def kl_penalty(setting: Setting, batch: Batch, logps_NT: torch.Tensor) -> torch.Tensor:
    """beta times the summed KL of each completion, of all processes, `(N,)`."""
    args, mask_NT = setting.config, response_mask(batch)
    kl_NT = kl_to_reference(logps_NT, batch["ref_per_token_logps"], args.kl_estimator)
    _log_kl(setting, kl_NT, mask_NT)
    return args.beta * setting.gather(kl_NT.masked_fill(mask_NT == 0, 0.0).sum(dim=1))


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
        yield
    trainer.entropy_coef = own if trainer.entropy_coef == raised else trainer.entropy_coef / factor
    if trainer.accelerator.sync_gradients:
        trainer._metrics["train"]["entropy_coef"][-1] = trainer.entropy_coef
