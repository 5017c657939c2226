"""What a training prints while it runs: in a terminal of 80 columns, and in a log file."""

import re
import time
from contextlib import closing
from fractions import Fraction
from io import StringIO

import pytest
from transformers import TrainerControl, TrainerState, TrainingArguments

from tests.support.terminal import in_terminal
from trl_ablate.metrics import ENTROPY, EVAL_REWARD, GRAD_NORM, LENGTH, REWARD
from trl_ablate.run.directory import RunDirectory
from trl_ablate.run.untrusted import SafeConsole
from trl_ablate.training.callbacks import LiveLine
from trl_ablate.training.guard_callback import GuardCallback

LOGS = {REWARD: 0.8125, LENGTH: 1024.4, ENTROPY: 1.23e-5, GRAD_NORM: 0.0123, EVAL_REWARD: 0.5}
TIME_LEFT = re.compile(r"left \d+:\d\d:\d\d")
ARGS, CONTROL = TrainingArguments("unused", report_to="none"), TrainerControl()


def state(step: int, is_main: bool = True) -> TrainerState:
    return TrainerState(global_step=step, max_steps=1000, is_world_process_zero=is_main)


def shown(live: LiveLine) -> None:
    live.on_train_begin(ARGS, state(0), CONTROL)
    live.on_log(ARGS, state(7), CONTROL, logs=LOGS)
    live.close()


def test_in_80_columns_nothing_is_cut_and_the_time_left_is_there():
    printed = in_terminal(lambda: shown(LiveLine(SafeConsole(soft_wrap=True))))
    line = next(one for one in reversed(printed) if "7/1000" in one)
    assert len(line.rstrip()) <= 80 and "…" not in line
    assert TIME_LEFT.search(line) and "reward 0.812" in line and "length 1024" in line


def test_a_terminal_without_room_shows_nothing_but_the_step():
    file = StringIO()
    shown(LiveLine(SafeConsole(file=file, width=15, force_terminal=True, soft_wrap=True)))
    assert "step" in file.getvalue() and "reward" not in file.getvalue()


def test_a_log_file_gets_a_line_at_every_evaluation():
    file = StringIO()
    shown(LiveLine(SafeConsole(file=file, width=80, soft_wrap=True)))
    (line,) = file.getvalue().splitlines()
    assert line.startswith("step 7/1000  left ") and TIME_LEFT.search(line)
    for part in ("reward 0.812", "eval 0.5", "length 1024", " s/step", "entropy 1.23e-05"):
        assert part in line


@pytest.mark.parametrize("is_main", [True, False])
def test_a_log_file_gets_a_line_every_minute_also_during_a_long_step(is_main):
    file = StringIO()
    with closing(LiveLine(SafeConsole(file=file, width=80, soft_wrap=True), every=0.02)) as live:
        live.on_train_begin(ARGS, state(3, is_main), CONTROL)
        live.on_log(ARGS, state(4, is_main), CONTROL, logs={REWARD: 0.25, LENGTH: 9.0})
        until = time.monotonic() + (20 if is_main else 0.2)
        while file.getvalue().count("\n") < 2 and time.monotonic() < until:
            time.sleep(0.01)
    lines = file.getvalue().splitlines()
    assert len(lines) >= 2 if is_main else not lines
    for line in lines:
        assert re.fullmatch(
            r"step 4/1000  left \d+:\d\d:\d\d  reward 0.25  length 9  \S+ s/step", line
        ), line


def test_a_metrics_file_that_vanishes_ends_the_run(tmp_path):
    run = RunDirectory(tmp_path)
    recorder = GuardCallback(run=run, per_step=Fraction(1))
    recorder.on_log(ARGS, state(1), CONTROL, logs=LOGS)
    run.metrics_file.unlink()
    with pytest.raises(FileNotFoundError, match="metrics.jsonl"):
        recorder.on_log(ARGS, state(2), CONTROL, logs=LOGS)
