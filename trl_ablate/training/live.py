"""The live line of a training in the terminal."""

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import TrainerCallback, TrainerState

from trl_ablate.metrics import ENTROPY, EVAL_REWARD, GRAD_NORM, LENGTH, REWARD

SHOWN = {
    REWARD: "reward",
    EVAL_REWARD: "eval",
    LENGTH: "length",
    ENTROPY: "entropy",
    GRAD_NORM: "grad",
}
"""Metrics of the live line, with their short names."""


class LiveLine(TrainerCallback):
    """One live line: step, reward, eval reward, length, entropy, gradient norm, time left.

    If the output is not a terminal, the line is printed at every evaluation instead.
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
        elif EVAL_REWARD in logs:
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
