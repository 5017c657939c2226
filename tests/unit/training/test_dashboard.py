"""What is sent to trackio, what is read back, and the warning if something is missing."""

import io
from types import SimpleNamespace

import pytest
import trackio
from rich.console import Console
from trackio.sqlite_storage import SQLiteStorage
from transformers import TrainerControl, TrainerState
from transformers.integrations.integration_utils import TrackioCallback

from trl_ablate import load_recipe
from trl_ablate.recipe.places import SHIPPED
from trl_ablate.training.dashboard import (
    DashboardCheck,
    export_static,
    kept_metrics,
    log_rollouts,
    new_run_name,
)

ROWS = [
    {"step": 0, "timestamp": "1", "profiling/Time taken": 0.1},
    {"step": 1, "timestamp": "2", "train/global_step": 1, "train/reward": 0.1},
    {"step": 2, "timestamp": "3", "train/global_step": 2, "train/reward": 0.2},
    {"step": 3, "timestamp": "4", "train/global_step": 2, "eval/reward": 0.5},
    {"step": 4, "timestamp": "5", "train/global_step": 2, "train/reward": 0.3},
]
"""The rows that trackio has of a run that was resumed after its first step."""


def config(**settings):
    given = {"run_name": "mine", **settings}
    return load_recipe(SHIPPED / "grpo.yaml", "miniature", given).config


@pytest.fixture
def stored(monkeypatch):
    """`stored(rows)` makes trackio's storage return these rows for the run `mine`."""

    def put(rows):
        logs = {("trl_ablate", "mine"): rows}
        monkeypatch.setattr(SQLiteStorage, "get_logs", lambda *run: logs[run])

    return put


def test_rows_are_joined_by_step_and_the_last_one_counts(stored):
    stored(ROWS)
    kept = kept_metrics("trl_ablate", "mine")
    assert {step: row["train/reward"] for step, row in kept.items()} == {1: 0.1, 2: 0.3}
    assert kept[2]["eval/reward"] == 0.5


def warning_after(logged, **settings):
    """The output of the check at the end of a run that has logged these rows."""
    said, control = io.StringIO(), TrainerControl()
    check = DashboardCheck(Console(file=said, width=200))
    state = TrainerState(is_world_process_zero=True)
    for state.global_step, row in logged:
        check.on_log(config(**settings), state, control, logs=row)
    check.on_train_end(config(**settings), state, control)
    return said.getvalue()


LOGGED = [(1, {"reward": 0.1}), (2, {"reward": 0.3}), (2, {"eval_reward": 0.5})]


def test_nothing_is_said_where_nothing_is_missing(stored):
    stored(ROWS)
    assert warning_after([*LOGGED, (2, {"train_runtime": 3.0, "total_flos": 1.0})]) == ""


@pytest.mark.parametrize("lost", [[2, 4], [3]], ids=["a training row", "an evaluation"])
def test_a_lost_row_is_said_in_one_sentence(stored, lost):
    stored([row for row in ROWS if row["step"] not in lost])
    said = warning_after(LOGGED)
    assert "trackio has lost rows of 1 of 2 steps (the first: step 2)" in said
    assert len(said.splitlines()) == 1


def test_what_went_elsewhere_or_nowhere_is_not_looked_for(stored):
    stored([])
    assert warning_after(LOGGED, report_to="none") == ""
    token = trackio.context_vars.current_server.set("https://somewhere")
    try:
        assert warning_after(LOGGED) == ""
    finally:
        trackio.context_vars.current_server.reset(token)
    assert "lost rows of 2 of 2" in warning_after(LOGGED)


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
    assert (
        export_static(config(trackio_static_space_id="me/a", trackio_space_id="me/b"), True) is None
    )
    assert not seen.calls
    settings = {"trackio_static_space_id": "me/frozen", "hub_private_repo": True}
    assert export_static(config(**settings), True) == "me/frozen"
    sent = seen.calls["sync"]
    assert (sent["sdk"], sent["project"], sent["private"]) == ("static", "trl_ablate", True)
