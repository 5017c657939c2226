"""What watches a run: when it evaluates and saves, what it records, what a person sees of it."""

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import TrainerCallback, TrainerControl, TrainerState
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from trl_ablate.config import AblationConfig
from trl_ablate.run import RunDirectory

SHOWN = {
    "reward": "reward",
    "eval_reward": "eval",
    "completions/mean_length": "length",
    "entropy": "entropy",
    "grad_norm": "grad",
}
"""Metrics of the live line, and the short names they have there."""


class GRPOStepClock(TrainerCallback):
    """Counts `eval_steps` and `save_steps` in GRPO steps (rollout batches), not optimizer steps.

    Off-policy arms take several optimizer steps per rollout batch; counted so, they are evaluated at
    the same GRPO steps as on-policy ones, and a checkpoint never falls into the middle of a batch. The
    last step is always evaluated.
    """

    def __init__(self, optimizer_steps_per_rollout: int):
        self._per_rollout = optimizer_steps_per_rollout

    def on_step_end(
        self, args: AblationConfig, state: TrainerState, control: TrainerControl, **kwargs
    ):
        # transformers has said what is due at multiples of eval_steps; keep one in `_per_rollout`
        last = state.global_step >= state.max_steps
        if args.eval_strategy == IntervalStrategy.STEPS:
            control.should_evaluate &= self._falls_on(state.global_step, state.eval_steps)
            control.should_evaluate |= last
        if args.save_strategy == SaveStrategy.STEPS:
            control.should_save &= last or self._falls_on(state.global_step, state.save_steps)
        return control

    def _falls_on(self, global_step: int, every: int) -> bool:
        return global_step % (every * self._per_rollout) == 0


class RunRecorder(TrainerCallback):
    """Appends every logged row to `metrics.jsonl`, with its step and its time since the start."""

    def __init__(self, run: RunDirectory, optimizer_steps_per_rollout: int):
        self._run = run
        self._per_rollout = optimizer_steps_per_rollout
        self._started = time.time()

    def on_log(self, args, state: TrainerState, control, logs: dict[str, Any], **kwargs):
        if state.is_world_process_zero:
            place = {
                "step": state.global_step,
                "grpo_step": state.global_step / self._per_rollout,
                "seconds": round(time.time() - self._started, 3),
            }
            self._run.append_metrics({**place, **logs})


class LiveLine(TrainerCallback):
    """One live line: step, reward, eval reward, length, entropy, gradient norm, time left.

    Where the output is no terminal, the line is printed at every evaluation instead.
    """

    def __init__(self, console: Console):
        self._console = console
        self._seen: dict[str, float] = {}
        self._bar: Progress | None = None

    def on_train_begin(self, args, state: TrainerState, control, **kwargs):
        if not state.is_world_process_zero or not self._console.is_terminal:
            return
        self._bar = Progress(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(bar_width=16),
            TextColumn("{task.fields[seen]}"),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._bar.start()
        self._bar.add_task("training", total=state.max_steps, completed=state.global_step, seen="")

    def on_log(self, args, state: TrainerState, control, logs: dict[str, Any], **kwargs):
        if not state.is_world_process_zero:
            return
        self._seen |= {key: logs[key] for key in SHOWN if logs.get(key) is not None}
        if self._bar:
            self._bar.update(self._bar.task_ids[0], completed=state.global_step, seen=self.line())
        elif "eval_reward" in logs:
            self._console.print(f"step {state.global_step}/{state.max_steps}  {self.line()}")

    def on_train_end(self, args, state, control, **kwargs):
        self.close()

    def close(self) -> None:
        """Leave the terminal as it was; safe to call twice."""
        if self._bar:
            self._bar.stop()
            self._bar = None

    def line(self) -> str:
        return "  ".join(
            f"{name} {self._seen[key]:.3g}" for key, name in SHOWN.items() if key in self._seen
        )
