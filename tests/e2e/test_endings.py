"""How a run ends that something happens to: its exit code, its record, and one sentence. And what
a start refuses: it changes nothing of the run in its folder until all checks have passed."""

import errno
import os
import pickle
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_train import alive
from tests.support.folders import contents
from tests.support.warm import SMALL, Ended, model_and_data, warm
from trl_ablate.run.checkpoints import latest_whole_checkpoint, seal
from trl_ablate.run.directory import RunDirectory

pytestmark = pytest.mark.slow

WORDS = [*SMALL, "--grpo_steps", "3", "--eval_strategy", "no", "--eval_on_start", "false",
         "--save_steps", "1", "--max_completion_length", "16"]  # fmt: skip
TOKEN = "hf_" + "Zz9Yy8Xx7Ww6Vv5Uu4Tt3Ss2Rr1Qq0Pp9"


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    """A model and data, and a finished run."""
    folder = tmp_path_factory.mktemp("endings")
    model_and_data(folder)
    ended = start(folder, folder / "finished", "--grpo_steps", "2")
    assert ended.code == 0, ended.stderr
    return folder


def start(world: Path, output: Path, *words: str, sabotage=None) -> Ended:
    places = ["--model_name_or_path", world / "model", "--dataset", world / "data"]
    words = (*WORDS, *places, "--output_dir", output, *words)
    return warm("train", *words, sabotage=sabotage, environment={"HF_TOKEN": TOKEN}).wait()


def end(world: Path, output: Path, sabotage, *words: str) -> tuple[Ended, dict]:
    """How a run ended, and its record."""
    ended = start(world, output, *words, sabotage=sabotage)
    return ended, RunDirectory(output).read()


def at_a_step(event: str, act: Callable[[Any], object]) -> None:
    """Do `act(control)` in this event of the third step."""
    from trl_ablate.training.callbacks import LiveLine

    def acting(self, args, state, control, **kwargs):
        if state.global_step == 2:
            act(control)
        return control

    setattr(LiveLine, event, acting)


def while_the_model_is_loaded(action) -> None:
    from trl_ablate.training import lifecycle

    lifecycle.build_trainer = action


def stop(control):
    control.should_training_stop = True


def leave(control):
    sys.exit(0)


def sigterm(*_):
    signal.raise_signal(signal.SIGTERM)


def die(*_):
    raise RuntimeError("the engine died: " + os.environ["HF_TOKEN"])


def the_clock_jumps_back():
    now, jumps = time.time, count()
    time.time = lambda: now() - 3600 * next(jumps)


an_unknown_error = partial(while_the_model_is_loaded, die)

ENDINGS = [  # what happens, further words, exit code, status, how the reason begins
    (partial(at_a_step, "on_step_end", stop), [], 1, "failed",
     "the training ended at step 2 of 3, and neither the guard"),
    (partial(at_a_step, "on_step_end", leave), [], 1, "failed",
     "the training was ended by SystemExit: 0 (line "),
    (partial(while_the_model_is_loaded, sigterm), [], 75, "stopped", "ended by SIGTERM"),
    (partial(at_a_step, "on_step_begin", sigterm), [], 0, "finished", None),  # in the last step
    (the_clock_jumps_back, [], 0, "finished", None),
    (None, ["--learning_rate", "1e30", "--grpo_steps", "6"], 0, "stopped", "the training diverged"),
    (an_unknown_error, [], 1, "failed", "RuntimeError: the engine died: <masked>"),
]  # fmt: skip


@pytest.mark.sample(4)
@pytest.mark.parametrize(("sabotage", "words", "code", "status", "reason"), ENDINGS)
def test_an_ending_is_in_the_exit_code_in_the_record_and_in_one_sentence(
    world, tmp_path, sabotage, words, code, status, reason
):
    ended, record = end(world, tmp_path / "run", sabotage, *words)
    assert (ended.code, record["status"]) == (code, status), ended.stderr
    assert record["reason"] == reason or record["reason"].startswith(reason)
    seconds = [0, *(row["seconds"] for row in RunDirectory(tmp_path / "run").metrics())]
    assert seconds == sorted(seconds) and record["seconds"] >= 0
    if sabotage is None:
        assert 1 <= record["diverged_at"] < 6 and "lower learning_rate" in record["reason"]
    if sabotage is an_unknown_error:
        assert "Traceback" in ended.stderr and "the engine died" in ended.stderr
    elif code == 1:
        assert ended.error == record["reason"]


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


def test_a_full_disk_leaves_a_checkpoint_to_resume_from_and_no_file_holds_the_token(
    world, tmp_path
):
    output, made = tmp_path / "run", tmp_path / "made"
    ended, record = end(world, output, full_disk)
    assert (ended.code, record["status"]) == (1, "failed"), ended.stderr
    assert record["reason"] == ended.error
    assert record["reason"].startswith("the disk is full") and "--resume" in record["reason"]
    assert (output / "checkpoint-2" / "model.safetensors").read_bytes() == b"half"
    checkpoint = output / "checkpoint-1"
    assert latest_whole_checkpoint(output) == checkpoint

    whole = (checkpoint / "optimizer.pt").read_bytes()
    (checkpoint / "optimizer.pt").write_bytes(pickle.dumps(Foreign(made)))
    seal(checkpoint)
    ended, _ = end(world, output, None, "--resume")
    assert ended.error.startswith("a file of the checkpoint holds more than tensors")
    assert not made.exists()

    (checkpoint / "optimizer.pt").write_bytes(whole)
    seal(checkpoint)
    again, record = end(world, output, None, "--resume", "--hub_token", TOKEN)
    assert again.code == 0 and "checkpoint-1" in again.stdout, again.stderr
    assert record["status"] == "finished"
    files = [file for file in output.rglob("*") if file.is_file()]
    assert {"training_args.bin", "run.json", "metrics.jsonl"} <= {file.name for file in files}
    assert not [file for file in files if TOKEN.encode() in file.read_bytes()]


@pytest.fixture
def finished(world, tmp_path) -> RunDirectory:
    """The finished run, and a file of the user in it."""
    shutil.copytree(world / "finished", tmp_path / "run")
    (tmp_path / "run" / "thesis.tex").write_text("precious")
    return RunDirectory(tmp_path / "run")


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--overwrite", "--dataset", "typo.jsonl"], "there is no such file"),
        (["--overwrite", "--model_name_or_path", "/nowhere/model"], "could not be loaded"),
        (["--overwrite", "--train_size", "1"], "questions to train on"),
        (["--resume", "--best_metric", "eval_format_reward"], "best_metric"),
    ],
)
def test_a_refused_start_changes_no_file(world, finished, words, said):
    before = contents(finished.path)
    ended = start(world, finished.path, *words)
    assert ended.code == 2 and said in ended.error
    assert contents(finished.path) == before


REWARDS = """
import os, sys

def exits(completions, **kwargs):
    sys.exit(0)

def ends(completions, **kwargs):
    os._exit(0)

def comes_back_twice(completions, **kwargs):
    child = os.fork()
    if child == 0:
        with open(__file__ + ".pids", "a") as file:
            file.write(f"{os.getpid()} ")
    else:
        os.waitpid(child, 0)
    return [float(len(text)) for text in completions]
"""


@pytest.mark.sample(2)
@pytest.mark.parametrize(("name", "said"), [
    ("exits", "reward function 'exits' raised SystemExit: 0 (line 5 of "),
    ("ends", "reward function 'ends' raised SystemExit: 0 (line 8 of "),
    ("comes_back_twice", "64 questions to train on"),
])  # fmt: skip
def test_a_reward_cannot_end_or_double_the_program(world, tmp_path, name, said):
    file, pids = tmp_path / "reward.py", tmp_path / "reward.py.pids"
    file.write_text(REWARDS)
    words = ["--dataset", world / "data", "--reward_funcs", f'["{file}:{name}"]']
    ended = warm("check", *SMALL, *words).wait()  # a length does not tell right from wrong
    assert ended.code == 1 and ended.printed.count(said) == 1, ended.printed
    assert "Traceback" not in ended.printed
    assert not pids.exists() or not any(alive(int(pid)) for pid in pids.read_text().split())


def test_a_resume_keeps_the_history_of_changed_settings(world, finished):
    longer = ["--resume", "--grpo_steps", "3"]
    assert start(world, finished.path, *longer, "--num_rollouts_saved", "3").code == 0
    (entry,) = finished.read()["changed_settings"]
    assert entry["settings"]["grpo_steps"] == [2, 3]
    assert entry["settings"]["num_rollouts_saved"][1] == 3
    assert entry["step"] == 2
    assert max(row["step"] for row in finished.metrics()) == 3
