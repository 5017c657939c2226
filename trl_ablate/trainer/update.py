"""The optimizer step where dropped groups leave nothing to learn, and when to evaluate and save."""

import math
from collections.abc import Callable, MutableMapping
from fractions import Fraction
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from trl_ablate.config import AblationConfig


def with_zero_gradients(loss: torch.Tensor, model: torch.nn.Module) -> torch.Tensor:
    """A loss that no parameter has an effect on, with a gradient of 0 for each of them, so that
    optimizer and hooks find what a backward pass leaves."""
    one_each = [p.view(-1)[:1] for p in model.parameters() if p.requires_grad and p.numel()]
    return loss + 0.0 * sum(one.float().sum() for one in one_each)


class IdleSteps(TrainerCallback):
    """Skips optimizer steps without any token in their loss, which `group_filter` and
    `length_norm: nonzero` can cause.

    Their gradient is 0, but an optimizer with momentum or weight decay would still move the
    weights. So gradients are removed just before such a step. DeepSpeed steps inside the backward
    pass, where this comes too late; there the momentum moves the weights.

    Args:
        metrics: lists of values by name; `rollouts/skipped_steps` counts since the start.
        total: sums a tensor over the processes.
    """

    def __init__(
        self,
        metrics: MutableMapping[str, list[float]],
        total: Callable[[torch.Tensor], Any],
    ):
        self._metrics = metrics
        self._total = total
        self._tokens: torch.Tensor | None = None
        self.skipped = 0

    def add(self, mask_NT: torch.Tensor) -> None:
        """Count the tokens of one microbatch."""
        tokens = mask_NT.sum().float()
        self._tokens = tokens if self._tokens is None else self._tokens + tokens

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        if self._tokens is None:
            return
        if self._total(self._tokens).item() == 0:
            self.skipped += 1
            for parameter in model.parameters():
                parameter.grad = None
        self._metrics["rollouts/skipped_steps"] = [float(self.skipped)]
        self._tokens = None


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
