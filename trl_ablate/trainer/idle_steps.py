"""Optimizer steps without any token in their loss, which `group_filter` and
`length_norm: nonzero` can cause, are skipped.

Their gradient is 0, but an optimizer with momentum or weight decay would still move the weights. So
gradients are removed just before such a step. DeepSpeed steps inside the backward pass, where this
comes too late; there the momentum moves the weights.
"""

from collections.abc import Callable, MutableMapping
from typing import Any

import torch
from transformers import TrainerCallback


class IdleSteps(TrainerCallback):
    """Counts the tokens of each optimizer step over all processes, and skips a step without any.

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
