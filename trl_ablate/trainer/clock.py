"""Decides when to evaluate and save, counted in rollout batches."""

import math
from fractions import Fraction

from transformers import TrainerCallback, TrainerControl, TrainerState
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from trl_ablate.config import AblationConfig


class GRPOStepClock(TrainerCallback):
    """Counts `eval_steps` and `save_steps` in GRPO steps (rollout batches), not optimizer steps.

    Off-policy arms take several optimizer steps per rollout batch; arms with large optimizer
    batches take several rollout batches per optimizer step. Counted in GRPO steps, all arms are
    evaluated at the same steps, or at the first optimizer step after them. A checkpoint is written
    between two rollout batches, unless another callback requests it. A fraction is a share of all
    GRPO steps, rounded up. The last step is always evaluated.
    """

    def __init__(self, grpo_steps_per_optimizer_step: Fraction):
        self._per_step = grpo_steps_per_optimizer_step

    def on_train_begin(self, args: AblationConfig, state: TrainerState, control, **kwargs):
        # transformers has converted a fraction into a number of optimizer steps
        if args.eval_steps is not None and 0 < args.eval_steps < 1:
            state.eval_steps = self._share(args.eval_steps, state)
        if 0 < args.save_steps < 1:
            state.save_steps = self._share(args.save_steps, state)

    def _share(self, fraction: float, state: TrainerState) -> int:
        return math.ceil(state.max_steps * self._per_step * fraction)

    def on_step_end(
        self, args: AblationConfig, state: TrainerState, control: TrainerControl, **kwargs
    ):
        last = state.global_step >= state.max_steps
        if args.eval_strategy == IntervalStrategy.STEPS:
            due = self._falls_on(state.global_step, state.eval_steps)
            control.should_evaluate = last or (due and state.global_step >= args.eval_delay)
        if args.save_strategy == SaveStrategy.STEPS:
            control.should_save = last or self._falls_on(state.global_step, state.save_steps)
        return control

    def _falls_on(self, global_step: int, every: int) -> bool:
        """Whether this optimizer step completes a multiple of `every` GRPO steps."""
        if every <= 0:
            return False
        before, now = (global_step - 1) * self._per_step, global_step * self._per_step
        return now // every > before // every
