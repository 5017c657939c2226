"""How a run ends that something happens to: its exit code, its record, and one sentence."""

import ctypes
import errno
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from tests.support.warm import SMALL, Ended, model_and_data, warm
from trl_ablate.run.checkpoints import latest_whole_checkpoint, seal
from trl_ablate.run.directory import RunDirectory

WORDS = [*SMALL, "--grpo_steps", "3", "--eval_strategy", "no", "--eval_on_start", "false",
         "--save_steps", "1", "--max_completion_length", "16"]  # fmt: skip
TOKEN = "hf_" + "Zz9Yy8Xx7Ww6Vv5Uu4Tt3Ss2Rr1Qq0Pp9"
NEW_MOUNTS = 0x00020000
"""`CLONE_NEWNS` of Linux: what a process mounts from now on, it alone sees."""


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> tuple[Path, Path]:
    return model_and_data(tmp_path_factory.mktemp("world"))


@pytest.fixture
def end(world, tmp_path):
    """`end(sabotage, *words)`: how a run in `tmp_path / "run"` ended, and its record."""
    model, data = world
    places = ["--model_name_or_path", str(model), "--dataset", str(data)]

    def end(sabotage, *words: str) -> tuple[Ended, dict]:
        words = (*WORDS, *places, "--output_dir", str(tmp_path / "run"), *words)
        ended = warm("train", *words, sabotage=sabotage, environment={"HF_TOKEN": TOKEN}).wait()
        return ended, json.loads((tmp_path / "run" / "run.json").read_text())

    return end


def at_a_step(event: str, action) -> None:
    """Do `action(control)` in this event of the third step."""
    from trl_ablate.training.callbacks import LiveLine

    def acting(self, args, state, control, **kwargs):
        if state.global_step == 2:
            action(control)
        return control

    setattr(LiveLine, event, acting)


def a_callback_stops():
    at_a_step("on_step_end", lambda control: setattr(control, "should_training_stop", True))


def a_callback_exits():
    at_a_step("on_step_end", lambda control: sys.exit(0))


def sigterm_in_the_last_step():
    at_a_step("on_step_begin", lambda control: signal.raise_signal(signal.SIGTERM))


def no_data():
    """As where the questions make no rollout batch: the loader has nothing."""
    from trl_ablate.trainer.ablation import AblationTrainer

    AblationTrainer.get_train_dataloader = lambda self: []


def while_the_model_is_loaded(action) -> None:
    from trl_ablate.training import lifecycle

    lifecycle.build_trainer = action


def sigterm_while_the_model_is_loaded():
    while_the_model_is_loaded(lambda *_: signal.raise_signal(signal.SIGTERM))


def an_unknown_error():
    def died(*_):
        raise RuntimeError("the engine died: " + os.environ["HF_TOKEN"])

    while_the_model_is_loaded(died)


def a_reward_raises():
    from trl_ablate.rewards import functions

    functions.score_batch = lambda *args, **kwargs: [][0]


def hardly_any_shared_memory():
    ctypes.CDLL(None).unshare(NEW_MOUNTS)
    for words in (["--make-rprivate", "/"], ["-t", "tmpfs", "-o", "size=4k", "tmpfs", "/dev/shm"]):
        subprocess.run(["mount", *words], check=True)
    Path("/dev/shm/full").write_bytes(b"0" * 4096)


def the_clock_jumps_back():
    now, jumps = time.time, count()
    time.time = lambda: now() - 3600 * next(jumps)


ENDINGS = [  # what happens, further words, exit code, status, how the reason begins
    (a_callback_stops, [], 1, "failed", "the training ended at step 2 of 3, and neither the guard"),
    (no_data, [], 1, "failed", "the training ended at step 0 of 3, and neither the guard"),
    (a_callback_exits, [], 1, "failed", "the training was ended by SystemExit: 0 (line "),
    (sigterm_while_the_model_is_loaded, [], 75, "stopped", "ended by SIGTERM"),
    (sigterm_in_the_last_step, [], 0, "finished", None),
    (the_clock_jumps_back, [], 0, "finished", None),
    (None, ["--learning_rate", "1e30", "--grpo_steps", "6"], 0, "stopped", "the training diverged"),
    (a_reward_raises, [], 1, "failed", "reward function 'r1_zero' raised IndexError: list index"),
    (an_unknown_error, [], 1, "failed", "RuntimeError: the engine died: <masked>"),
    pytest.param(
        hardly_any_shared_memory, ["--dataloader_num_workers", "2"], 1, "failed",
        "shared memory (/dev/shm) is full; set dataloader_num_workers to 0",
        marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount"),
    ),
]  # fmt: skip


@pytest.mark.sample(3)
@pytest.mark.parametrize(("sabotage", "words", "code", "status", "reason"), ENDINGS)
def test_an_ending_is_in_the_exit_code_in_the_record_and_in_one_sentence(
    end, tmp_path, sabotage, words, code, status, reason
):
    ended, record = end(sabotage, *words)
    assert (ended.code, record["status"]) == (code, status), ended.stderr
    assert record["reason"] == reason or record["reason"].startswith(reason)
    seconds = [0, *(row["seconds"] for row in RunDirectory(tmp_path / "run").metrics())]
    assert seconds == sorted(seconds) and record["seconds"] >= 0
    if sabotage is None:
        assert 1 <= record["diverged_at"] < 6 and "lower learning_rate" in record["reason"]
    if sabotage is an_unknown_error:
        assert "Traceback" in ended.stderr and "the engine died" in ended.stderr
    elif code == 1:
        assert the_sentence(ended) == record["reason"]


def the_sentence(ended: Ended) -> str:
    assert "Traceback" not in ended.stderr, ended.stderr
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
    return line.removeprefix("error: ")


def full_disk():
    """From the second checkpoint on."""
    import transformers.modeling_utils as saving

    save, calls = saving.safe_save_file, []

    def full(tensors, name, *rest, **more):
        calls.append(name)
        if len(calls) > 1:
            Path(name).write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        return save(tensors, name, *rest, **more)

    saving.safe_save_file = full


@dataclass
class Foreign:
    """Its unpickling makes a folder."""

    folder: Path

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


@pytest.mark.slow
def test_a_full_disk_leaves_a_checkpoint_to_resume_from_and_no_file_holds_the_token(end, tmp_path):
    output, made = tmp_path / "run", tmp_path / "made"
    ended, record = end(full_disk)
    assert (ended.code, record["status"]) == (1, "failed"), ended.stderr
    assert record["reason"] == the_sentence(ended)
    assert record["reason"].startswith("the disk is full") and "--resume" in record["reason"]
    assert (output / "checkpoint-2" / "model.safetensors").read_bytes() == b"half"
    checkpoint = output / "checkpoint-1"
    assert latest_whole_checkpoint(output) == checkpoint

    whole = (checkpoint / "optimizer.pt").read_bytes()
    (checkpoint / "optimizer.pt").write_bytes(pickle.dumps(Foreign(made)))
    seal(checkpoint)
    ended, _ = end(None, "--resume")
    assert the_sentence(ended).startswith("a file of the checkpoint holds more than tensors")
    assert not made.exists()

    (checkpoint / "optimizer.pt").write_bytes(whole)
    seal(checkpoint)
    again, record = end(None, "--resume", "--hub_token", TOKEN)
    assert again.code == 0 and "checkpoint-1" in again.stdout, again.stderr
    assert record["status"] == "finished"
    files = [file for file in output.rglob("*") if file.is_file()]
    assert {"training_args.bin", "run.json", "metrics.jsonl"} <= {file.name for file in files}
    assert not [file for file in files if TOKEN.encode() in file.read_bytes()]
