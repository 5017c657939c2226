"""No dashboard can end a run: an integration that raises is reported once and dropped; and what is
sent to trackio."""

from functools import partial
from types import SimpleNamespace

import pytest
import trackio
from transformers import TrainerCallback, TrainerControl, TrainerState
from transformers.integrations import integration_utils
from transformers.trainer_callback import CallbackHandler

from trl_ablate import hub, load_recipe
from trl_ablate.errors import ConfigurationError, PublishError
from trl_ablate.recipe.places import SHIPPED
from trl_ablate.training import lifecycle
from trl_ablate.training.dashboard import (
    Tolerated,
    export_static,
    log_rollouts,
    new_run_name,
    tolerated_integrations,
)

EVENTS = [name for name in vars(TrainerCallback) if name.startswith("on_")]
HAPPENED = "the disk of the dashboard is full, hf_" + "aB3dE6gH9jK2mN5pQ8rS1tU4vW7xY0zA2b"


class Raising(TrainerCallback):
    """An integration that counts all events, and raises in one."""

    def __init__(self, event: str | None = None):
        self._event, self.seen = event, []
        for name in EVENTS:
            setattr(self, name, partial(self._happened, name))

    def _happened(self, event, args, state, control, **kwargs):
        self.seen.append(event)
        if event == self._event:
            raise OSError(HAPPENED)


def arguments(*names):
    return SimpleNamespace(report_to=list(names))


@pytest.mark.parametrize("event", ["on_init_end", "on_log", "on_train_end"])
def test_an_integration_that_raises_is_reported_once_and_left_alone(event, monkeypatch, caplog):
    for name, made in (("broken", partial(Raising, event)), ("whole", Raising)):
        monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, name, made)
    args = arguments("broken", "whole")
    with tolerated_integrations(args) as callbacks:
        assert args.report_to == []
    assert args.report_to == ["broken", "whole"]
    handler = CallbackHandler(callbacks, None, None, None, None)
    for _ in range(2):
        for each in EVENTS:
            handler.call_event(each, args, TrainerState(), TrainerControl())
    broken, whole = (callback.integration.seen for callback in callbacks)
    # EVENTS are in order of definition, and the handler itself begins with on_init_end
    assert broken[-1] == event and broken.count(event) == 1
    assert whole == [*EVENTS, *EVENTS]
    assert args.report_to == ["whole"]
    (said,) = caplog.messages
    assert said.startswith("reporting to broken has stopped (OSError: the disk of the dashboard")
    assert "hf_" not in said and "the run continues" in said


class Deciding(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = True
        return control

    def on_log(self, args, state, control, **kwargs):
        raise KeyboardInterrupt


def test_an_answer_of_an_integration_and_a_ctrl_c_are_passed_on():
    args, callback = arguments("x"), Tolerated("x", Deciding())
    answer = callback.on_step_end(args, TrainerState(), TrainerControl())  # type: ignore
    assert answer.should_training_stop
    with pytest.raises(KeyboardInterrupt):
        callback.on_log(args, TrainerState(), TrainerControl())  # type: ignore


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

    def fail(*given, **more):
        raise error

    monkeypatch.setattr(hub, "push_run", fail)
    given = {"output_dir": str(tmp_path), "push_to_hub": True}
    resolved = load_recipe(SHIPPED / "grpo.yaml", "miniature", given)
    start = lifecycle.Start(resolved, "new", None, None, ["train"])  # type: ignore
    with pytest.raises(PublishError) as raised:
        list(lifecycle.publish(start))
    if not isinstance(error, PublishError):  # `push_run` has named the command in those
        assert f"`trl-ablate publish {tmp_path}`" in str(raised.value)
    assert "\n" not in str(raised.value) and "\x1b" not in str(raised.value)


def test_rollouts_are_a_table_of_text_and_runs_have_names_of_their_own(monkeypatch):
    names = {new_run_name("mine") for _ in range(100)}
    assert len(names) == 100 and all(name.startswith("mine-") for name in names)
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
    calls = []
    monkeypatch.setattr(trackio, "sync", lambda **given: calls.append(given) or given["space_id"])
    given = {"run_name": "mine", **settings}
    config = load_recipe(SHIPPED / "grpo.yaml", "miniature", given).config
    assert export_static(config, True) == made
    sent = [(one["sdk"], one["project"], one["private"]) for one in calls]
    assert sent == ([("static", "trl_ablate", True)] if made else [])
    monkeypatch.setattr(trackio, "sync", lambda **given: [][0])
    assert export_static(config, True) is None
    failed = ["no static Space me/frozen was made (IndexError: list index"] if made else []
    assert [one[: len(failed[0])] for one in caplog.messages] == failed
