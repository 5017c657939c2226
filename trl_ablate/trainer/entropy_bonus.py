"""The entropy bonus where dropped groups leave some microbatches without a token."""

from contextlib import contextmanager
from typing import TYPE_CHECKING

from trl_ablate.trainer.batching import BONUS_WEIGHTS, Batch
from trl_ablate.trainer.temporary import replaced

if TYPE_CHECKING:
    from trl_ablate.trainer.ablation import AblationTrainer


@contextmanager
def bonus_of_kept_groups(trainer: "AblationTrainer", inputs: Batch):
    """Within the block, TRL's mean of the bonus over all microbatches is one over those that have a
    kept group.

    This takes a factor for the coefficient. So that TRL's control of an adaptive coefficient goes
    on, its step and its bounds are in the same unit.
    """
    if not (trainer.model.training and BONUS_WEIGHTS in inputs):
        yield
        return
    args, own = trainer.args, trainer.entropy_coef
    factor = inputs[BONUS_WEIGHTS][0].item()  # the same in all rows
    with replaced(
        args,
        entropy_coef_delta=args.entropy_coef_delta * factor,
        entropy_coef_min=args.entropy_coef_min * factor,
        entropy_coef_max=args.entropy_coef_max * factor,
    ):
        trainer.entropy_coef = raised = own * factor
        yield
    trainer.entropy_coef = own if trainer.entropy_coef == raised else trainer.entropy_coef / factor
    if trainer.accelerator.sync_gradients:
        trainer._metrics["train"]["entropy_coef"][-1] = trainer.entropy_coef
