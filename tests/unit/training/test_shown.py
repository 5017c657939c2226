"""What a training shows: in a terminal of 80 columns, in a log file, in trackio; and that no
dashboard can end a run: an integration that raises is reported once and dropped."""

import re
import time
from contextlib import closing
from fractions import Fraction
from io import StringIO
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import trackio
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.integrations import integration_utils
from transformers.trainer_callback import CallbackHandler

from tests.support.terminal import in_terminal
from trl_ablate import hub, load_recipe
from trl_ablate.errors import ConfigurationError, PublishError
from trl_ablate.metrics import ENTROPY, EVAL_REWARD, GRAD_NORM, LENGTH, REWARD
from trl_ablate.recipe.places import SHIPPED
from trl_ablate.run.directory import RunDirectory
from trl_ablate.run.untrusted import SafeConsole
from trl_ablate.training import lifecycle
from trl_ablate.training.callbacks import LiveLine
from trl_ablate.training.dashboard import (
    Tolerated,
    export_static,
    log_rollouts,
    tolerated_integrations,
)
from trl_ablate.training.guard_callback import GuardCallback

EVENTS = [name for name in vars(TrainerCallback) if name.startswith("on_")]
HAPPENED = "the disk of the dashboard is full, hf_" + "aB3dE6gH9jK2mN5pQ8rS1tU4vW7xY0zA2b"


def arguments(*names):
    return SimpleNamespace(report_to=list(names))


@pytest.mark.parametrize("event", ["on_init_end", "on_log", "on_train_end"])
def test_an_integration_that_raises_is_reported_once_and_left_alone(event, monkeypatch, caplog):
    broken, whole = Mock(), Mock()
    getattr(broken, event).side_effect = OSError(HAPPENED)
    known = {"broken": lambda: broken, "whole": lambda: whole}
    monkeypatch.setattr(integration_utils, "INTEGRATION_TO_CALLBACK", known)
    args = arguments("broken", "whole")
    with tolerated_integrations(args) as callbacks:
        assert args.report_to == []
    assert args.report_to == ["broken", "whole"]
    handler = CallbackHandler(callbacks, None, None, None, None)
    for each in (*EVENTS, *EVENTS):
        handler.call_event(each, args, TrainerState(), TrainerControl())
    of_broken, of_whole = ([name for name, *_ in one.method_calls] for one in (broken, whole))
    # EVENTS are in order of definition, and the handler itself begins with on_init_end
    assert of_broken[-1] == event and of_broken.count(event) == 1
    assert of_whole == [*EVENTS, *EVENTS]
    assert args.report_to == ["whole"]
    (said,) = caplog.messages
    assert said.startswith("reporting to broken has stopped (OSError: the disk of the dashboard")
    assert "hf_" not in said and "the run continues" in said


def test_an_answer_of_an_integration_and_a_ctrl_c_are_passed_on():
    integration, args = Mock(), arguments("x")
    callback = Tolerated("x", integration)
    integration.on_log.side_effect = KeyboardInterrupt
    assert callback.on_step_end(args) is integration.on_step_end.return_value  # type: ignore
    with pytest.raises(KeyboardInterrupt):
        callback.on_log(args)  # type: ignore


def test_an_integration_whose_package_is_missing_is_left_out(caplog, monkeypatch):
    monkeypatch.setattr(integration_utils, "is_wandb_available", lambda: False)
    args = arguments("wandb", "trackio")
    with tolerated_integrations(args) as callbacks:
        pass
    assert [callback.name for callback in callbacks] == args.report_to == ["trackio"]
    (said,) = caplog.messages
    assert "reporting to wandb has stopped (RuntimeError: " in said


@pytest.mark.parametrize(
    "error", [ConfigurationError("x is a link"), OSError("no\nroom \x1b[2J"), PublishError("gone")]
)
def test_a_failed_push_says_how_to_publish_the_finished_run(tmp_path, monkeypatch, error):
    """A `PublishError` ends the command with 1, and the record of the run is closed by then."""
    monkeypatch.setattr(hub, "push_run", Mock(side_effect=error))
    given = {"output_dir": str(tmp_path), "push_to_hub": True}
    resolved = load_recipe(SHIPPED / "grpo.yaml", "miniature", given)
    start = lifecycle.Start(resolved, "new", None, None, ["train"])  # type: ignore
    with pytest.raises(PublishError) as raised:
        list(lifecycle.publish(start))
    if not isinstance(error, PublishError):  # `push_run` has named the command in those
        assert f"`trl-ablate publish {tmp_path}`" in str(raised.value)
    assert "\n" not in str(raised.value) and "\x1b" not in str(raised.value)


def test_a_repository_that_cannot_be_is_refused_before_the_training(tmp_path):
    given = {"output_dir": str(tmp_path / "run"), "push_to_hub": True, "hub_model_id": "a b"}
    resolved = load_recipe(SHIPPED / "grpo.yaml", "miniature", given)
    start = lifecycle.Start(resolved, "new", None, None, ["train"])  # type: ignore
    with pytest.raises(ConfigurationError, match="'a b' is no name of a repository"):
        lifecycle.claim(start)


def test_rollouts_are_a_table_of_text(monkeypatch):
    logged = []
    monkeypatch.setattr(trackio, "log", logged.append)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}]
    rows = [{"prompt": "1+1?", "response": "2", "reward": 1.0}]
    rows += [{"prompt": messages, "response": [{"role": "assistant", "content": "3"}], "reward": 0}]
    log_rollouts(rows, step=7)
    (row,) = logged
    assert row["train/global_step"] == 7
    assert row["rollouts"].data == [
        {"step": 7, "prompt": "1+1?", "response": "2", "reward": 1.0},
        {"step": 7, "prompt": "[system] Be brief.\n[user] 1+1?", "response": "[assistant] 3",
         "reward": 0},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "made"),
    [
        ({}, None),
        ({"trackio_static_space_id": False}, None),
        ({"trackio_static_space_id": "me/a", "trackio_space_id": "me/b"}, None),  # by trackio
        ({"trackio_static_space_id": "me/frozen"}, "me/frozen"),
    ],
)
def test_a_static_export_of_what_was_logged_here(monkeypatch, caplog, settings, made):
    monkeypatch.setattr(trackio, "sync", sync := Mock(return_value=made))
    config = load_recipe("grpo", "miniature", {"run_name": "mine", **settings}).config
    assert export_static(config, True) == made
    sent = [(one["sdk"], one["project"], one["private"]) for _, one in sync.call_args_list]
    assert sent == ([("static", "trl_ablate", True)] if made else [])
    sync.side_effect = IndexError("list index")
    assert export_static(config, True) is None
    failed = "no static Space me/frozen was made (IndexError: list index)"
    assert [said.partition(";")[0] for said in caplog.messages] == ([failed] if made else [])


LOGS = {REWARD: 0.8125, LENGTH: 1024.4, ENTROPY: 1.23e-5, GRAD_NORM: 0.0123, EVAL_REWARD: 0.5}
TIME_LEFT = re.compile(r"left \d+:\d\d:\d\d")
ARGS, CONTROL = TrainingArguments("unused", report_to="none"), TrainerControl()


def state(step: int, is_main: bool = True) -> TrainerState:
    return TrainerState(global_step=step, max_steps=1000, is_world_process_zero=is_main)


def shown(live: LiveLine) -> None:
    live.on_train_begin(ARGS, state(0), CONTROL)
    live.on_log(ARGS, state(7), CONTROL, logs=LOGS)
    live.close()


def test_a_terminal_has_one_line_with_what_fits():
    printed = in_terminal(lambda: shown(LiveLine(SafeConsole(soft_wrap=True))))
    line = next(one for one in reversed(printed) if "7/1000" in one)
    assert len(line.rstrip()) <= 80 and "…" not in line
    assert TIME_LEFT.search(line) and "reward 0.812" in line and "length 1024" in line
    file = StringIO()  # without room for more than the step
    shown(LiveLine(SafeConsole(file=file, width=15, force_terminal=True, soft_wrap=True)))
    assert "step" in file.getvalue() and "reward" not in file.getvalue()


def test_a_log_file_gets_a_line_at_every_evaluation():
    shown(LiveLine(SafeConsole(file=(file := StringIO()), width=80, soft_wrap=True)))
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
