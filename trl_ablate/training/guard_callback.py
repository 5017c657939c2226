"""The guard on any trainer of TRL: `trainer.add_callback(trl_ablate.GuardCallback())`."""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from errno import ENOENT
from fractions import Fraction
from pathlib import Path
from typing import Any

from accelerate.optimizer import AcceleratedOptimizer
from rich.console import Console
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from trl_ablate.errors import ConfigurationError, nearest
from trl_ablate.guard.arguments import GuardArguments
from trl_ablate.guard.remedies import seconds_by_step, verdict
from trl_ablate.guard.replaying import replay
from trl_ablate.guard.rules import Alert, Guard
from trl_ablate.metrics import GRAD_NORM, translated
from trl_ablate.run.directory import RunDirectory
from trl_ablate.run.json_files import append_jsonl
from trl_ablate.run.untrusted import SafeConsole
from trl_ablate.training.dashboard import send_alert, to_trackio, warn_of

FOLDER = "guard"
"""Where the guard's files are, below the `output_dir` of a trainer that keeps no such files."""


class GuardCallback(TrainerCallback):
    """Records every logged row, and passes it to the guard; warns, or ends the run, as configured.

    It prints alerts, sends them to trackio and its webhooks if `report_to` has it, writes
    `OUTPUT_DIR/guard/metrics.jsonl` and `alerts.jsonl`, which `trl-ablate inspect OUTPUT_DIR`
    reads, and prints a verdict with what to try at the end. It changes nothing else.

    Args:
        arguments: rules and thresholds; default: `GuardArguments()`.
        run: the run that it belongs to, instead of a folder below `output_dir`.
        per_step: GRPO steps per optimizer step of that run.
        settings: fields of `GuardArguments` instead, such as `guard_entropy="stop"`.

    Attributes:
        stopped_by: the alert that has stopped the run.
    """

    def __init__(
        self,
        arguments: GuardArguments | None = None,
        *,
        run: RunDirectory | None = None,
        per_step: Fraction | None = None,
        console: Console | None = None,
        **settings: Any,
    ):
        if arguments is not None and settings:
            raise ConfigurationError(
                f"GuardCallback has both arguments and {', '.join(settings)}; give one of the two"
            )
        known = GuardArguments.__dataclass_fields__
        for name in settings.keys() - known.keys():
            raise ConfigurationError(f"GuardCallback has no setting '{name}'{nearest(name, known)}")
        self._arguments = arguments or GuardArguments(**settings)
        self._guard = Guard(self._arguments)
        self._skipped: set[int] = set()
        self._run, self._is_own, self._per_step = run, run is not None, per_step
        self._started, self._begun = time.monotonic(), False
        self._console = console or SafeConsole(soft_wrap=True)
        self.stopped_by: Alert | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._guard, self.stopped_by = Guard(self._arguments), None
        if state.is_world_process_zero and not self._is_own:
            self._write(self._begin, args, state)
        recorded = self._run.metrics() if self._run else ()  # from before a resume
        self._skipped = {row["step"] for row in recorded if "loss" in row and GRAD_NORM not in row}
        for row in state.log_history:
            self._guard.observe(_named(self._applied(row)))
        self._guard.rearm()
        if self._run:
            self._started -= self._run.seconds_so_far()  # before a resume

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        optimizer: Any = None,
        **kwargs: Any,
    ) -> TrainerControl:
        if isinstance(optimizer, AcceleratedOptimizer) and optimizer.step_was_skipped:
            self._skipped.add(state.global_step)
        row = self._applied({**(logs or {}), "step": state.global_step})
        if self._run and state.is_world_process_zero and self._is_of_steps(row):
            self._write(self._record, self._run, row)
        for alert in self._guard.observe(_named(row)):
            if state.is_world_process_zero:
                self._tell(alert, args)
            if alert.action == "stop" and self.stopped_by is None:
                self.stopped_by = alert
                control.should_training_stop = True
        return control

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        rows = [_named(self._applied(row)) for row in state.log_history]
        found = replay(rows, self._arguments)
        if state.is_world_process_zero and (found.alerts or not self._is_own):
            for sentence in verdict(rows, found):
                self._console.print(f"guard: {sentence}")

    def _applied(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """A row without the gradient norm of a step that was skipped: with fp16, a gradient that
        overflows changes no weight."""
        skipped = row.get("step") in self._skipped
        return {name: one for name, one in row.items() if not (skipped and name == GRAD_NORM)}

    def _begin(self, args: TrainingArguments, state: TrainerState) -> None:
        """Open the files, without what an earlier run recorded after this one's first step, and
        with those last rows of the history that were not recorded."""
        run = RunDirectory(Path(str(args.output_dir)) / FOLDER)
        run.path.mkdir(parents=True, exist_ok=True)
        run.rewind(state.global_step or -1)
        last = max((row["step"] for row in run.metrics()), default=-1)
        spent = seconds_by_step(state.log_history)
        for row in state.log_history:
            step = int(row["step"])
            if step > last and self._is_of_steps(row):
                seconds = {"seconds": spent[step]} if step in spent else {}
                run.append_metrics({**row, **seconds})
        self._run, self._started, self._begun = run, time.monotonic(), False

    def _is_of_steps(self, row: Mapping[str, Any]) -> bool:
        """Whether a row is one of steps: not that of the totals, which, on TRL's trainers, may have
        the reward of the steps after the last row."""
        return "train_runtime" not in row or ("reward" in row and not self._is_own)

    def _record(self, run: RunDirectory, row: Mapping[str, Any]) -> None:
        """Append a row to `metrics.jsonl`, with its step and its time since the start."""
        if self._begun and not run.metrics_file.exists():
            raise FileNotFoundError(ENOENT, os.strerror(ENOENT), str(run.metrics_file))
        self._begun = True
        place = {} if self._per_step is None else {"grpo_step": float(row["step"] * self._per_step)}
        seconds = round(time.monotonic() - self._started, 3)
        run.append_metrics({"step": row["step"], **place, "seconds": seconds, **row})

    def _tell(self, alert: Alert, args: TrainingArguments) -> None:
        if self._run:
            self._write(append_jsonl, self._run.alerts_file, asdict(alert))
        self._console.print(
            f"guard, step {alert.step}: {alert.sentence} ({alert.action})", style="yellow"
        )
        to_trackio(args, send_alert, alert)

    def _write(self, write: Callable[..., Any], *given: Any) -> None:
        """Write to a file; without one, a trainer that does not need the files goes on."""
        try:
            write(*given)
        except OSError as error:
            if self._is_own:
                raise
            warn_of("the guard writes no more files", error)
            self._run = None


def _named(row: Mapping[str, Any]) -> dict[str, Any]:
    """A logged row with the names of GRPO: TRL's former PPO trainer has others."""
    return {translated(name): value for name, value in row.items()}
