"""Callbacks of a run: they record its rollouts, keep the best model, show the live line, and end
the run after SIGTERM. `guard_callback.py` has the one that records its rows.
"""

import logging
import math
import random
import time
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from transformers import TrainerCallback, TrainerState

from trl_ablate.config import AblationConfig
from trl_ablate.metrics import ENTROPY, EVAL_REWARD, GRAD_NORM, LENGTH, REWARD
from trl_ablate.run.checkpoints import best_logged, check_best, seal
from trl_ablate.run.directory import RunDirectory
from trl_ablate.run.folders import part_of, replace_folder
from trl_ablate.run.json_files import write_json
from trl_ablate.run.masking import Masker
from trl_ablate.run.termination import Termination
from trl_ablate.trainer.update import ends_epoch, row_is_to_come
from trl_ablate.training.dashboard import log_rollouts, to_trackio

if TYPE_CHECKING:
    from trl_ablate.trainer.ablation import AblationTrainer

logger = logging.getLogger(__name__)


class RolloutWriter(TrainerCallback):
    """Writes some rollouts of the last step at every evaluation.

    As JSONL, and as a table in trackio if `report_to` has it. Each line has prompt, response,
    ground_truth, reward, format_reward, answer_reward, advantage; what a reward function does not
    report is null. Before the first step there are no rollouts.
    """

    def __init__(self, trainer: "AblationTrainer", run: RunDirectory, count: int, seed: int):
        self._trainer, self._run, self._count, self._seed = trainer, run, count, seed
        self._masker = Masker(hide_home=False)  # by shape: a dataset or a model may hold tokens

    def on_evaluate(self, args, state: TrainerState, control, **kwargs):
        if not state.is_world_process_zero:
            return
        rows = self._trainer.latest_rollouts()
        draw = random.Random(f"{self._seed}-{state.global_step}")
        if drawn := draw.sample(range(len(rows)), min(self._count, len(rows))):
            kept = self._masker.value([rows[i] for i in sorted(drawn)])
            self._run.write_rollouts(state.global_step, kept)
            to_trackio(args, log_rollouts, kept, state.global_step)


class BestCheckpoint(TrainerCallback):
    """Keeps the model of the best evaluation in `checkpoint_best`, by a task metric, never by loss.

    The old one is kept until the new one is whole. A resumed run compares with the best evaluation
    up to its checkpoint; a better one, of a step that it repeats, is saved again.
    """

    def __init__(self, trainer: "AblationTrainer", run: RunDirectory, metric: str):
        self._trainer, self._run, self._metric, self._best = trainer, run, metric, -math.inf

    def on_train_begin(self, args, state, control, **kwargs):
        best = best_logged(state.log_history, self._metric)
        self._best = best["value"] if best else -math.inf

    def on_evaluate(self, args, state: TrainerState, control, metrics=None, **kwargs):
        value = (metrics or {}).get(self._metric)
        if value is None or not value > self._best:
            return
        self._best = value
        best = {"metric": self._metric, "value": value, "step": state.global_step}
        save_whole(self._trainer, self._run.checkpoint_best, best=best)

    def check(self) -> None:
        """Refuse to finish if the best model has changed since it was saved."""
        if self._trainer.accelerator.is_main_process and self._best > -math.inf:
            check_best(self._run)
            kept = self._run.best() or {"value": self._best}
            if kept["value"] != self._best:
                logger.warning(
                    "%s is %s, but a resume has repeated this step with another result; the best "
                    "evaluation in metrics.jsonl is %.4g",
                    *(self._run.checkpoint_best, kept, self._best),
                )


def save_whole(trainer: "AblationTrainer", folder: Path, **notes: dict[str, Any]) -> None:
    """Save the model, and each note as JSON, to `folder`, and seal it; a kill leaves the new folder
    or the old one. Every process has to call it."""
    part = part_of(folder)
    trainer.save_model(str(part))
    if trainer.accelerator.is_main_process:
        for name, note in notes.items():
            write_json(part / f"{name}.json", note)
        seal(part)
        replace_folder(folder)
    trainer.accelerator.wait_for_everyone()


SHOWN = {
    REWARD: "reward", EVAL_REWARD: "eval", LENGTH: "length", ENTROPY: "entropy", GRAD_NORM: "grad",
}  # fmt: skip
"""Metrics of the line, with their short names."""
BAR = 8


class LiveLine(TrainerCallback):
    """Step, time left, rewards, length, seconds per step, entropy and gradient norm.

    In a terminal this is one live line, with as many of them as fit. Elsewhere it is printed at
    every evaluation, and every so many seconds, also during a long step.
    """

    def __init__(self, console: Console, every: float = 60.0):
        self._console, self._every = console, every
        self._seen: dict[str, float] = {}
        self._bar: Progress | None = None
        self._over = Event()

    def on_train_begin(self, args, state: TrainerState, control, **kwargs):
        self._step = self._first = state.global_step
        self._steps, self._started = state.max_steps, time.monotonic()
        if not state.is_world_process_zero:
            return
        if not self._console.is_terminal:
            Thread(target=self._print_regularly, daemon=True).start()
            return
        columns = (MofNCompleteColumn(), BarColumn(BAR), TextColumn("{task.fields[seen]}"))
        self._bar = Progress(TextColumn("step"), *columns, console=self._console)
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
        self._over.set()
        if self._bar:
            self._bar.stop()
            self._bar = None

    def _print_regularly(self) -> None:
        while not self._over.wait(self._every):
            self._print()

    def _print(self) -> None:
        self._console.print(f"step {self._step}/{self._steps}  {self._line()}".rstrip())

    def _line(self, room: int | None = None) -> str:
        """All parts, or the first ones that fit; the mean time of a step includes evaluations."""
        seen = [(name, self._seen[key]) for key, name in SHOWN.items() if key in self._seen]
        parts = [
            f"{name} {value:.0f}" if 1000 <= abs(value) < 1e7 else f"{name} {value:.3g}"
            for name, value in seen
        ]
        if done := self._step - self._first:
            seconds = (time.monotonic() - self._started) / done
            left = timedelta(seconds=round(seconds * (self._steps - self._step)))
            parts[3:3] = [f"{seconds:.3g} s/step"]
            parts[:0] = [f"left {left}"]
        while parts and room is not None and len("  ".join(parts)) > room:
            parts.pop()
        return "  ".join(parts)


class Preemption(TrainerCallback):
    """Asks the trainer to save and to stop, once any process has received SIGTERM.

    No finished step is lost. It overrides other callbacks' decisions on saving, so it has to be
    added last.
    """

    def __init__(self, termination: Termination):
        self._termination = termination
        self.ended_run = False  # before its last step

    def on_train_begin(self, args, state, control, **kwargs):
        self._termination.noted_only = True
        self._termination.listen()  # an engine may have replaced our handler

    def on_step_end(self, args: AblationConfig, state, control, **kwargs):
        if state.global_step < state.max_steps and self._anybody_asked(args):
            self.ended_run = control.should_training_stop = True
            control.should_save = not row_is_to_come(args, state)
        return control

    def on_epoch_end(self, args: AblationConfig, state, control, **kwargs):
        """The rest of an epoch that was cut off belongs to the resumed run, and so does its row."""
        if self.ended_run:
            control.should_log &= ends_epoch(state)
            control.should_evaluate &= ends_epoch(state)
            control.should_save = row_is_to_come(args, state)
        return control

    def _anybody_asked(self, args: AblationConfig) -> bool:
        if args.world_size == 1:
            return self._termination.came
        asked = torch.tensor(int(self._termination.came), device=args.device)
        torch.distributed.all_reduce(asked, op=torch.distributed.ReduceOp.MAX)
        return bool(asked)
