"""What a training prints while it runs."""

import time
from datetime import timedelta
from threading import Event, Thread
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from transformers import TrainerCallback, TrainerState

from trl_ablate.metrics import ENTROPY, EVAL_REWARD, GRAD_NORM, LENGTH, REWARD

SHOWN = {
    REWARD: "reward",
    EVAL_REWARD: "eval",
    LENGTH: "length",
    ENTROPY: "entropy",
    GRAD_NORM: "grad",
}
"""Metrics of the line, with their short names."""
BAR = 8


class LiveLine(TrainerCallback):
    """Step, time left, rewards, length, seconds per step, entropy and gradient norm.

    In a terminal this is one live line, with as many of them as fit. Elsewhere it is printed at
    every evaluation, and whenever nothing was printed for `every` seconds, also during a long step.
    """

    def __init__(self, console: Console, every: float = 60.0):
        self._console = console
        self._every = every
        self._seen: dict[str, float] = {}
        self._bar: Progress | None = None
        self._printer: Thread | None = None
        self._wake, self._over = Event(), False

    def on_train_begin(self, args, state: TrainerState, control, **kwargs):
        self._step = self._first = state.global_step
        self._steps, self._started = state.max_steps, time.monotonic()
        if not state.is_world_process_zero:
            return
        if not self._console.is_terminal:
            self._printer = Thread(target=self._print_regularly, daemon=True)
            self._printer.start()
            return
        self._bar = Progress(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(bar_width=BAR),
            TextColumn("{task.fields[seen]}"),
            console=self._console,
        )
        self._bar.start()
        self._bar.add_task("training", total=self._steps, completed=self._step, seen="")

    def on_log(self, args, state: TrainerState, control, logs: dict[str, Any], **kwargs):
        if not state.is_world_process_zero:
            return
        self._step = state.global_step
        self._seen |= {key: logs[key] for key in SHOWN if logs.get(key) is not None}
        if self._bar:
            room = self._console.width - len("step  ") - 2 * len(f"{self._steps}/") - BAR
            self._bar.update(self._bar.task_ids[0], completed=self._step, seen=self._line(room))
        elif EVAL_REWARD in logs:
            self._print()

    def on_train_end(self, args, state, control, **kwargs):
        self.close()

    def close(self) -> None:
        """Leave the terminal as it was; safe to call twice."""
        if self._bar:
            self._bar.stop()
            self._bar = None
        if self._printer:
            self._over = True
            self._wake.set()
            self._printer.join()
            self._printer = None

    def _print_regularly(self) -> None:
        while not self._over:
            if not self._wake.wait(self._every):
                self._print()
            elif not self._over:  # a line was printed: wait anew
                self._wake.clear()

    def _print(self) -> None:
        self._console.print(f"step {self._step}/{self._steps}  {self._line()}".rstrip())
        self._wake.set()

    def _line(self, room: int | None = None) -> str:
        """All parts, or the first ones that fit; the mean time of a step includes evaluations."""
        parts = [f"{name} {_short(self._seen[key])}"
                 for key, name in SHOWN.items() if key in self._seen]  # fmt: skip
        done = self._step - self._first
        if done:
            seconds = (time.monotonic() - self._started) / done
            left = timedelta(seconds=round(seconds * (self._steps - self._step)))
            parts[3:3] = [f"{seconds:.3g} s/step"]
            parts[:0] = [f"left {left}"]
        while room is not None and len("  ".join(parts)) > room:
            parts.pop()
        return "  ".join(parts)


def _short(value: float) -> str:
    return f"{value:.0f}" if 1000 <= abs(value) < 1e7 else f"{value:.3g}"
