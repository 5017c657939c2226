"""Which checkpoint is whole, and whether the run's records match it."""

import math
import os
from types import SimpleNamespace
from typing import Any

import pytest

from trl_ablate.errors import ConfigurationError
from trl_ablate.run.checkpoints import (
    SEAL,
    agreed_checkpoint,
    best_logged,
    break_seal,
    check_record,
    latest_whole_checkpoint,
    rewind,
    seal,
)
from trl_ablate.run.directory import RunDirectory
from trl_ablate.run.json_files import read_jsonl, write_json, write_jsonl
from trl_ablate.training import callbacks

FILES = ("model.safetensors", "optimizer.pt", "rng_state.pth", "trainer_state.json")


@pytest.fixture
def checkpoints(tmp_path):
    """Steps 2, 4 and 10, sealed."""
    for step in (2, 4, 10):
        for name in FILES:
            file = tmp_path / f"checkpoint-{step}" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"{}" * step)
        seal(tmp_path / f"checkpoint-{step}")
    return tmp_path


def leave_the_model_only(checkpoint):
    (checkpoint / "rng_state.pth").unlink()
    seal(checkpoint)


DAMAGE = {
    "a file is gone": lambda checkpoint: (checkpoint / "rng_state.pth").unlink(),
    "a file is cut off": lambda checkpoint: os.truncate(checkpoint / "optimizer.pt", 3),
    "a file has changed": lambda checkpoint: (checkpoint / FILES[-1]).write_text("{]{}{}{}"),
    "the model only": leave_the_model_only,
    "no seal": break_seal,
    "a seal that is cut off": lambda checkpoint: (checkpoint / SEAL).write_text('{"model.saf'),
    "a seal of another shape": lambda checkpoint: (checkpoint / SEAL).write_text("[]"),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_checkpoint_that_is_not_whole_leads_back_to_the_one_before(checkpoints, damage):
    last = checkpoints / "checkpoint-10"
    (last / "notes.txt").write_text("mine")  # added later: no damage
    assert latest_whole_checkpoint(checkpoints) == last
    for step, before in ((10, 4), (4, 2)):
        damage(checkpoints / f"checkpoint-{step}")
        assert latest_whole_checkpoint(checkpoints) == checkpoints / f"checkpoint-{before}"
    assert latest_whole_checkpoint(last) is None


def test_processes_that_find_different_checkpoints_do_not_go_on(checkpoints):
    last = checkpoints / "checkpoint-10"
    assert agreed_checkpoint(checkpoints, lambda found: [*found, last]) == last
    for other, named in ((None, "checkpoint-10, none"), (last.with_name("checkpoint-4"), "-4")):
        with pytest.raises(ConfigurationError, match=f"different.*{named}.*save_on_each_node"):
            agreed_checkpoint(checkpoints, lambda found, other=other: [*found, other])


REWARDS = [{"step": 0, "r": 0.1}, {"step": 1, "loss": 2.0}, {"step": 2, "r": 0.5}]


def test_the_best_is_the_first_that_no_other_beats():
    rows = [*REWARDS, {"step": 3, "r": math.nan}, {"step": 4, "r": 0.5}, {"step": 6, "r": 0.4}]
    assert best_logged(rows, "r") == {"metric": "r", "value": 0.5, "step": 2}
    assert best_logged(rows, "other") is None
    assert best_logged([{"step": 0, "r": math.nan}], "r") is None


@pytest.fixture
def resumable(checkpoints):
    """A run at checkpoint-4, that has saved its best at step 2."""
    run, checkpoint = RunDirectory(checkpoints), checkpoints / "checkpoint-4"
    write_json(checkpoint / "trainer_state.json", {"global_step": 4, "log_history": REWARDS})
    write_jsonl(run.metrics_file, REWARDS)
    save_best(run, best_logged(REWARDS, "r"))
    return run, checkpoint


def save_best(run, best):
    run.checkpoint_best.mkdir(exist_ok=True)
    (run.checkpoint_best / "model.safetensors").write_bytes(b"weights")
    write_json(run.checkpoint_best / "best.json", best)
    seal(run.checkpoint_best)


CHANGED = "checkpoint_best has changed since it was saved.*--overwrite"


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda run: (run.checkpoint_best / "model.safetensors").unlink(), CHANGED),
        (lambda run: (run.checkpoint_best / "best.json").write_bytes(b""), CHANGED),
        (lambda run: (run.checkpoint_best / SEAL).unlink(), CHANGED),
        (lambda run: write_jsonl(run.metrics_file, REWARDS[1:]), "lacks rows from before check"),
    ],
)
def test_a_record_that_is_not_whole_is_refused(resumable, damage, said):
    run, checkpoint = resumable
    check_record(run, checkpoint, "r")
    save_best(run, {"metric": "r", "value": 0.9, "step": 6})  # of a step that is taken once more
    check_record(run, checkpoint, "r")
    damage(run)
    with pytest.raises(ConfigurationError, match=said):
        check_record(run, checkpoint, "r")


def test_a_best_model_by_another_metric_is_refused(resumable):
    with pytest.raises(ConfigurationError, match="the best model by r, and the one by other was"):
        check_record(*resumable, "other")


def test_what_was_recorded_after_the_checkpoint_is_deleted(resumable):
    """Where every epoch's end is logged, a stop within one logs a row of the checkpoint's step."""
    run, checkpoint = resumable
    write_jsonl(run.metrics_file, [*REWARDS, {"step": 4, "loss": 1.0}, {"step": 5, "loss": 1.0}])
    write_jsonl(run.alerts_file, [{"step": 4, "rule": "length"}, {"step": 5, "rule": "reward"}])
    for step in (4, 9):
        run.write_rollouts(step, [{"prompt": "1+1"}])
    mine = run.rollout_file(9).with_name("step_final.jsonl")
    mine.write_text("of the user")
    run.checkpoint_last.mkdir()  # of an end at step 5
    rewind(run, checkpoint)
    assert not run.checkpoint_last.exists() and run.checkpoint_best.exists()
    assert list(run.metrics()) == REWARDS
    assert [row["step"] for row in read_jsonl(run.alerts_file)] == [4]
    assert {*mine.parent.iterdir()} == {run.rollout_file(4), mine}
    check_record(run, checkpoint, "r")
    rewind(run, None)
    assert list(run.metrics()) == [] and [*mine.parent.iterdir()] == [mine]


def test_a_resumed_run_has_to_beat_what_its_checkpoint_knows(resumable, monkeypatch, caplog):
    """A best model of a step that is repeated after the resume does not count."""
    run, _ = resumable
    save_best(run, {"metric": "r", "value": 0.9, "step": 6})
    saved = []
    monkeypatch.setattr(callbacks, "save_whole", lambda *_, best: saved.append(best["value"]))
    trainer: Any = SimpleNamespace(accelerator=SimpleNamespace(is_main_process=True))
    watching = callbacks.BestCheckpoint(trainer, run, "r")
    state = SimpleNamespace(log_history=REWARDS, global_step=6)
    watching.on_train_begin(None, state, None)
    for value in (0.5, math.nan, 0.6, 0.6, 0.7):
        watching.on_evaluate(None, state, None, metrics={"r": value})
    assert saved == [0.6, 0.7]
    watching.check()
    assert "'value': 0.9, 'step': 6}, but a resume has repeated this step" in caplog.text
    (run.checkpoint_best / "model.safetensors").unlink()
    with pytest.raises(ConfigurationError, match="has changed since it was saved"):
        watching.check()
