"""No dashboard can end a run: an integration that raises is reported once and dropped; and what is
sent to trackio."""

import sys
import time
from types import SimpleNamespace

import pytest
import torch
import trackio
from transformers import TrainerCallback, TrainerControl, TrainerState
from transformers.integrations import integration_utils
from transformers.integrations.integration_utils import TrackioCallback
from transformers.trainer_callback import CallbackHandler

from trl_ablate import hub, load_recipe
from trl_ablate.errors import ConfigurationError, PublishError
from trl_ablate.guard.rules import Alert
from trl_ablate.recipe.places import SHIPPED
from trl_ablate.rewards.own.chosen import Rewards
from trl_ablate.run.directory import RunDirectory
from trl_ablate.training.building import put_together
from trl_ablate.training.callbacks import RolloutWriter
from trl_ablate.training.dashboard import (
    EVENTS,
    Tolerated,
    export_static,
    log_rollouts,
    new_run_name,
    tolerated_integrations,
)

HAPPENED = "the disk of the dashboard is full, hf_" + "aB3dE6gH9jK2mN5pQ8rS1tU4vW7xY0zA2b"


class Raising(TrainerCallback):
    """An integration that raises in one event, and counts all."""

    event = "on_log"

    def __init__(self):
        self.seen = []


def _record(event):
    def record(self, args, state, control, **kwargs):
        self.seen.append(event)
        if event == self.event:
            raise OSError(HAPPENED)

    return record


for _event in EVENTS:
    setattr(Raising, _event, _record(_event))


@pytest.fixture
def offered(monkeypatch):
    """`offered(name, callback)` registers an integration with transformers."""

    def offer(name, callback):
        monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, name, callback)

    return offer


def arguments(*names):
    return SimpleNamespace(report_to=list(names))


@pytest.mark.parametrize("event", EVENTS)
def test_an_integration_that_raises_is_reported_once_and_left_alone(
    event, offered, monkeypatch, caplog
):
    monkeypatch.setattr(Raising, "event", event)
    offered("broken", Raising)
    offered("whole", type("Whole", (Raising,), {"event": None}))
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


def test_an_integration_whose_package_is_missing_is_left_out(caplog, monkeypatch):
    monkeypatch.setattr(integration_utils, "is_wandb_available", lambda: False)
    args = arguments("wandb", "trackio")
    with tolerated_integrations(args) as callbacks:
        pass
    assert [callback.name for callback in callbacks] == args.report_to == ["trackio"]
    (said,) = caplog.messages
    assert "reporting to wandb has stopped (RuntimeError: " in said


def test_an_answer_of_an_integration_is_passed_on(offered):
    class Stopping(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = True
            return control

    args = arguments("stopping")
    callback = Tolerated("stopping", Stopping())
    answer = callback.on_step_end(args, TrainerState(), TrainerControl())
    assert answer.should_training_stop


def test_ctrl_c_in_an_integration_ends_the_run(offered, monkeypatch):
    class Interrupted(TrainerCallback):
        def on_log(self, args, state, control, **kwargs):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Tolerated("x", Interrupted()).on_log(arguments("x"), TrainerState(), TrainerControl())


def with_integrations(make_trainer, *names, **settings):
    """A trainer whose integrations are added as `put_together` adds them."""
    trainer = make_trainer(project="tried", run_name="mine", **settings)
    trainer.args.report_to = list(names)
    with tolerated_integrations(trainer.args) as callbacks:
        for callback in callbacks:
            trainer.add_callback(callback)
    return trainer


@pytest.fixture
def storage(tmp_path, monkeypatch):
    """trackio's database of the project, in a folder of its own."""
    from trackio import sqlite_storage, utils

    folder = tmp_path / "trackio"
    folder.mkdir()
    for module in (sqlite_storage, utils, trackio):
        monkeypatch.setattr(module, "TRACKIO_DIR", folder)
    yield folder / "tried.db"
    trackio.context_vars.current_run.set(None)


def damage(file):
    """The bytes of a database and of its log, overwritten in place.

    Never cut off: SQLite has its index of the log (`-shm`) in memory, and a process that reads such
    a file behind its end is killed by the kernel.
    """
    for each in (file, file.with_name(f"{file.name}-wal")):
        if each.is_file():
            with each.open("r+b") as opened:
                opened.write(b"\xff" * max(4096, each.stat().st_size))


class Damaging(TrainerCallback):
    def __init__(self, file, step):
        self._file, self._step = file, step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self._step:
            until = time.monotonic() + 20
            while not self._file.exists() and time.monotonic() < until:  # made in a thread
                time.sleep(0.05)
            assert self._file.exists()
            damage(self._file)


@pytest.mark.parametrize("step", [0, 1], ids=["at the start", "in the middle"])
def test_a_damaged_database_of_trackio_costs_no_training(
    make_trainer, tmp_path, storage, caplog, step
):
    if step == 0:
        storage.write_bytes(b"\xff" * 4096)
    trainer = with_integrations(make_trainer, "trackio", logging_steps=1, eval_strategy="steps",
                                eval_steps=1)  # fmt: skip
    rollouts = RolloutWriter(RunDirectory(tmp_path / "run"), 2, 0)
    rollouts.attach(trainer)
    for callback in (Damaging(storage, step), rollouts):
        trainer.add_callback(callback)
    trainer.train()
    assert trainer.state.global_step == 3
    assert len([said for said in caplog.messages if "reporting to trackio" in said]) <= 1
    assert len(list((tmp_path / "run" / "rollouts").iterdir())) == 3


def test_a_trainer_of_a_recipe_has_tolerated_integrations(monkeypatch):
    """`put_together` passes the callbacks to the trainer, and the trainer adds none of its own."""
    import trl_ablate.training.building as building

    given = {}

    def stand_in(**arguments):
        given.update(arguments, seen=list(arguments["args"].report_to))
        return SimpleNamespace(remove_callback=lambda callback: None, model=torch.nn.Linear(1, 1))

    monkeypatch.setattr(building, "task_rewards", lambda *parts: Rewards([], []))
    monkeypatch.setattr(building, "check_columns", lambda *parts: None)
    resolved = load_recipe(SHIPPED / "grpo.yaml", "miniature", {"report_to": "trackio"})
    mine = TrainerCallback()
    put_together(resolved, None, "m", None, None, None, [mine], kind=stand_in)  # type: ignore
    first, second = given["callbacks"]
    assert isinstance(first, Tolerated) and first.name == "trackio" and second is mine
    assert given["seen"] == [] and resolved.config.report_to == ["trackio"]


def test_an_export_that_fails_is_a_warning(monkeypatch, caplog):
    def fail(**given):
        raise ConnectionError("no route")

    monkeypatch.setattr(trackio, "sync", fail)
    config = SimpleNamespace(
        trackio_static_space_id="me/x", trackio_space_id=None, project="p", hub_private_repo=True,
        trackio_bucket_id=None,
    )  # fmt: skip
    assert export_static(config, True) is None  # type: ignore
    (said,) = caplog.messages
    assert said.startswith("no static Space me/x was made (ConnectionError: no route)")


def test_an_alert_that_cannot_be_sent_is_kept_and_costs_nothing(tmp_path, monkeypatch, caplog):
    import io

    from rich.console import Console

    from trl_ablate.guard.arguments import GuardArguments
    from trl_ablate.training.callbacks import GuardWatch

    def fail(**given):
        raise RuntimeError("Call trackio.init() before")

    monkeypatch.setattr(trackio, "alert", fail)
    run = RunDirectory(tmp_path)
    watch = GuardWatch(run, GuardArguments(), Console(file=io.StringIO()))
    alert = Alert("length", "warn", 3, 1.0, 2.0, "Responses are long.")
    watch._guard = SimpleNamespace(observe=lambda row: [alert])  # type: ignore
    args = arguments("trackio")
    for step in (3, 4):
        state = TrainerState(is_world_process_zero=True, global_step=step)
        watch.on_log(args, state, TrainerControl(), logs={})
    assert len(run.alerts_file.read_text().splitlines()) == 2
    assert args.report_to == [] and len(caplog.messages) == 1


def test_an_alert_is_printed_once_with_the_step_of_training(tmp_path, monkeypatch, capsys):
    from rich.console import Console

    from trl_ablate.guard.arguments import GuardArguments
    from trl_ablate.training.callbacks import GuardWatch

    sent = []

    def print_and_send(**given):
        sys.stdout.write(f"[TRACKIO WARN] {given['title']}: {given['text']} (step 17)\n")
        sent.append(given["text"])

    monkeypatch.setattr(trackio, "alert", print_and_send)
    watch = GuardWatch(RunDirectory(tmp_path), GuardArguments(), Console())
    alert = Alert("length", "warn", 3, 1.0, 2.0, "Responses are long.")
    watch._guard = SimpleNamespace(observe=lambda row: [alert])  # type: ignore
    state = TrainerState(is_world_process_zero=True, global_step=3)
    watch.on_log(arguments("trackio"), state, TrainerControl(), logs={})
    assert capsys.readouterr().out == "guard, step 3: Responses are long. (warn)\n"
    assert sent == ["Responses are long. (step 3)"]


@pytest.mark.parametrize(
    "error", [ConfigurationError("x is a link"), OSError("no\nroom \x1b[2J"), PublishError("gone")]
)
def test_a_failed_push_says_how_to_publish_the_finished_run(tmp_path, monkeypatch, error):
    """A `PublishError` ends the command with 1, and the record of the run is closed by then."""
    from trl_ablate.training import lifecycle

    def fail(*given, **more):
        raise error

    monkeypatch.setattr(hub, "push_run", fail)
    config = SimpleNamespace(
        output_dir=str(tmp_path), hub_model_id=None, hub_private_repo=None, hub_token=None,
        hub_revision=None,
    )  # fmt: skip
    resolved = SimpleNamespace(config=config, settings={})
    start = lifecycle.Start(resolved, "new", None, None, ["train"])  # type: ignore
    with pytest.raises(PublishError) as raised:
        list(lifecycle.publish(start))
    if not isinstance(error, PublishError):  # `push_run` has named the command in those
        assert f"`trl-ablate publish {tmp_path}`" in str(raised.value)
    assert "\n" not in str(raised.value) and "\x1b" not in str(raised.value)


def config(**settings):
    given = {"run_name": "mine", **settings}
    return load_recipe(SHIPPED / "grpo.yaml", "miniature", given).config


def test_no_two_runs_have_one_name():
    names = {new_run_name("mine") for _ in range(100)}
    assert len(names) == 100
    assert all(name.startswith("mine-") for name in names)


def test_rollouts_are_a_table_of_text(monkeypatch):
    logged = []
    monkeypatch.setattr(trackio, "log", logged.append)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}]
    rows = [{"prompt": "1+1?", "response": "2", "reward": 1.0}]
    rows += [{"prompt": messages, "response": [{"role": "assistant", "content": "3"}], "reward": 0}]
    log_rollouts(rows, step=7)
    ((table, step),) = [(row["rollouts"], row["train/global_step"]) for row in logged]
    assert step == 7
    assert table.data == [
        {"step": 7, "prompt": "1+1?", "response": "2", "reward": 1.0},
        {
            "step": 7,
            "prompt": "[system] Be brief.\n[user] 1+1?",
            "response": "[assistant] 3",
            "reward": 0,
        },
    ]


class Recorder:
    """A stand-in for a module: records every call, and returns the requested Space."""

    __version__ = "0.43.0"

    def __init__(self):
        self.calls = {}
        self.config = {}
        self.context_vars = SimpleNamespace(
            current_space_id=SimpleNamespace(get=lambda: self.calls["init"]["space_id"])
        )

    def __getattr__(self, name):
        return lambda **given: self.calls.setdefault(name, given).get("space_id")


def test_the_settings_of_a_space_reach_trackio():
    settings = {"trackio_space_id": "me/live", "trackio_static_space_id": "me/frozen"}
    settings |= {"trackio_bucket_id": "me/bucket", "hub_private_repo": True}
    callback, seen = TrackioCallback(), Recorder()
    callback._trackio = seen
    state, control = TrainerState(is_world_process_zero=True), TrainerControl()
    model = SimpleNamespace(config=None, num_parameters=lambda: 1)
    args = config(**settings)
    callback.on_train_begin(args, state, control, model=model)
    callback.on_train_end(args, state, control, model=model)
    opened, frozen = seen.calls["init"], seen.calls["freeze"]
    assert (opened["space_id"], opened["bucket_id"]) == ("me/live", "me/bucket")
    assert opened["private"] is frozen["private"] is True
    assert (frozen["space_id"], frozen["new_space_id"]) == ("me/live", "me/frozen")


def test_a_static_export_of_what_was_logged_here(monkeypatch):
    seen = Recorder()
    monkeypatch.setattr(trackio, "sync", seen.sync)
    assert export_static(config(), True) is None
    assert export_static(config(trackio_static_space_id=False), True) is None
    both = config(trackio_static_space_id="me/a", trackio_space_id="me/b")
    assert export_static(both, True) is None
    assert not seen.calls
    settings = {"trackio_static_space_id": "me/frozen", "hub_private_repo": True}
    assert export_static(config(**settings), True) == "me/frozen"
    sent = seen.calls["sync"]
    assert (sent["sdk"], sent["project"], sent["private"]) == ("static", "trl_ablate", True)
