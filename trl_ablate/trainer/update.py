"""Callbacks of a step: its time and memory, steps without a gradient, when to evaluate and save."""

import logging
import re
import time
from collections.abc import Callable, MutableMapping
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState
from transformers.trainer_utils import IntervalStrategy, SaveStrategy, has_length

from trl_ablate.config import AblationConfig
from trl_ablate.errors import ConfigurationError
from trl_ablate.schedule import due, period

logger = logging.getLogger(__name__)

GIB = 2**30
STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")
Metrics = MutableMapping[str, list[float]]
"""Lists of values by name, of this process, whose mean TRL logs."""


def with_zero_gradients(loss: Tensor, model: torch.nn.Module) -> Tensor:
    """A loss that no parameter has an effect on, with a gradient of 0 for each of them, so that
    optimizer and hooks find what a backward pass leaves."""
    one_each = [p.view(-1)[:1] for p in model.parameters() if p.requires_grad and p.numel()]
    return loss + 0.0 * sum(one.float().sum() for one in one_each)


class IdleSteps(TrainerCallback):
    """Skips optimizer steps without any token in their loss, which `group_filter` and
    `length_norm: nonzero` can cause.

    Their gradient is 0, but an optimizer with momentum or weight decay would still move the
    weights. So gradients are removed just before such a step. DeepSpeed steps inside the backward
    pass, where this comes too late. Nothing is added where a loss balances experts, as that has a
    gradient without groups, too. `total` sums a tensor over the processes.
    """

    def __init__(self, metrics: Metrics, total: Callable[[Tensor], Any]):
        self._metrics = metrics
        self._total = total
        self._tokens: Tensor | None = None
        self.skipped = 0

    def add(self, mask_NT: Tensor) -> None:
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

    Arms take several optimizer steps per rollout batch, or several rollout batches per optimizer
    step. Counted in GRPO steps, all are evaluated at the same steps, or at the first optimizer step
    after them, and always at the last. A checkpoint is written between two rollout batches, unless
    another callback requests it. A fraction is a share of all GRPO steps, rounded up. At the end of
    an epoch that is logged or evaluated as such, the checkpoint follows its row, which a resumed
    run would not write again.
    """

    def __init__(self):
        self._save_after_epoch = False

    def on_train_begin(self, args: AblationConfig, state: TrainerState, control, **kwargs):
        state.compute_steps(args, state.max_steps)  # a checkpoint has those before a change
        self._check_epoch(args, state, kwargs["train_dataloader"])
        # transformers has converted a fraction into a number of optimizer steps
        grpo_steps = state.max_steps * args.grpo_steps_per_optimizer_step
        if args.eval_steps is not None:
            state.eval_steps = period(args.eval_steps, grpo_steps)
        state.save_steps = period(args.save_steps, grpo_steps)

    def _check_epoch(self, args: AblationConfig, state: TrainerState, microbatches: Any) -> None:
        """Refuse an epoch that ends with a part of a step, which would count for a whole one; where
        no number of GRPO steps is asked for, warn of it."""
        if not has_length(microbatches):
            return
        per_step = args.grpo_steps_per_optimizer_step
        steps = Fraction(len(microbatches), args.gradient_accumulation_steps)
        if steps.denominator > 1 and state.max_steps > steps:
            found = (
                f"the {steps * per_step} rollout batches in an epoch do not fill optimizer steps "
                f"of {per_step}, so the last of each epoch would train on fewer than it counts; "
                "change the size of the training set, or lower optimizer_batch_size"
            )
            if args.grpo_steps is not None:
                raise ConfigurationError(found)
            logger.warning(found)

    def on_step_end(
        self, args: AblationConfig, state: TrainerState, control: TrainerControl, **kwargs
    ):
        step, per_step = state.global_step, args.grpo_steps_per_optimizer_step
        last = step >= state.max_steps
        if args.eval_strategy == IntervalStrategy.STEPS:
            started = step >= args.eval_delay
            control.should_evaluate = last or (started and due(step, state.eval_steps, per_step))
        if args.save_strategy == SaveStrategy.STEPS:
            control.should_save = last or due(step, state.save_steps, per_step)
        self._save_after_epoch = control.should_save and row_is_to_come(args, state)
        control.should_save = control.should_save and not self._save_after_epoch
        return control

    def on_epoch_end(self, args, state, control: TrainerControl, **kwargs):
        control.should_save = control.should_save or self._save_after_epoch
        return control


def ends_epoch(state: TrainerState) -> bool:
    """Whether the step that has just ended is the last of its epoch."""
    return (state.epoch or 0.0) % 1 == 0


def row_is_to_come(args: AblationConfig, state: TrainerState) -> bool:
    """Whether the last epoch has ended, and its row or its evaluation is still to be written."""
    ended = ends_epoch(state) or state.global_step >= state.max_steps
    return ended and IntervalStrategy.EPOCH in (args.logging_strategy, args.eval_strategy)


class StepPhases(TrainerCallback):
    """Adds `time/*` (seconds) and `memory/*` (GiB) of every optimizer step to the metrics.

    A step lasts from its first microbatch to the end of the optimizer's update; evaluation, saving
    and logging are not part of it. `phase` marks a part of the step; time in a nested phase counts
    for that one only. `time/train` is the rest: forward, backward and update.
    """

    def __init__(self, metrics: Metrics, *, memory: bool):
        self._metrics = metrics
        self._memory = memory
        self._began: float | None = None
        self._device = torch.device("cpu")
        self._seconds: dict[str, float] = {}
        self._peaks: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str):
        """Measure a part of the step. Outside of a step, such as in evaluation, do nothing."""
        if self._began is None:
            yield
            return
        if name == "rollout":
            self._note_peak("after_train")  # of earlier microbatches of this step
        began, inside_before = time.perf_counter(), sum(self._seconds.values())
        yield
        inside = sum(self._seconds.values()) - inside_before
        spent = time.perf_counter() - began - inside
        self._seconds[name] = self._seconds.get(name, 0.0) + spent
        if name == "rollout":
            self._note_peak("after_rollout")

    def on_step_begin(self, args, state, control, **kwargs):
        self._device = args.device
        self._began = _now(self._device)
        self._seconds, self._peaks = {"rollout": 0.0, "reward": 0.0}, {}
        if self._memory:
            reset_peak_memory(self._device)

    def on_step_end(self, args, state, control, **kwargs):
        if self._began is None:
            return
        whole = _now(self._device) - self._began
        seconds = {**self._seconds, "train": whole - sum(self._seconds.values()), "step": whole}
        for name, value in seconds.items():
            self._metrics[f"time/{name}"].append(value)
        self._note_peak("after_train")
        for name, peak in self._peaks.items():
            self._metrics[f"memory/peak_{name}"].append(peak)
        self._began = None

    def _note_peak(self, name: str) -> None:
        if self._memory:
            peak = peak_memory(self._device) / GIB
            self._peaks[name] = max(peak, self._peaks.get(name, peak))
            reset_peak_memory(self._device)


def _now(device: torch.device) -> float:
    """The time, after the device has finished all work so far."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def reset_peak_memory(device: torch.device) -> None:
    """Reset the peak. Without a GPU this needs Linux; on other systems it has no effect."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif CLEAR_REFS.exists():
        CLEAR_REFS.write_text("5")


def peak_memory(device: torch.device) -> float:
    """Peak memory in bytes; NaN if the system does not report it."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    if not STATUS.exists():
        return float("nan")
    found = re.search(r"VmHWM:\s+(\d+) kB", STATUS.read_text())
    return float(found.group(1)) * 1024 if found else float("nan")
