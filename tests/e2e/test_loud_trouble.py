"""A failure in the middle of a run ends it with one sentence; what was saved stays usable."""

import ctypes
import errno
import json
import os
import pickle
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.warm import Ended, warm
from trl_ablate.run.checkpoints import latest_whole_checkpoint, seal

SMALL = [
    "recipes/std_dev_off.yaml", "--profile", "miniature", "--generation_batch_size", "16",
    "--optimizer_batch_size", "16", "--per_device_train_batch_size", "8", "--grpo_steps", "3",
    "--train_size", "64", "--eval_size", "8", "--eval_strategy", "no", "--eval_on_start", "false",
    "--save_steps", "1", "--report_to", "none", "--max_completion_length", "16",
]  # fmt: skip

TOKEN = "hf_" + "Zz9Yy8Xx7Ww6Vv5Uu4Tt3Ss2Rr1Qq0Pp9"


def run(output: Path, *words: str, sabotage: Callable[[], None] | None = None) -> Ended:
    """`train`, with something broken in its process first."""
    words = (*SMALL, "--output_dir", str(output), *words)
    return warm("train", *words, sabotage=sabotage, environment={"HF_TOKEN": TOKEN}).wait()


def full_disk() -> None:
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


def bad_reward() -> None:
    from trl_ablate.rewards import functions

    functions.score_batch = lambda *args, **kwargs: [][0]


def unforeseen() -> None:
    from trl_ablate.training import lifecycle

    def build_trainer(*args):
        raise RuntimeError("the engine died: " + os.environ["HF_TOKEN"])

    lifecycle.build_trainer = build_trainer


NEW_MOUNTS = 0x00020000
"""`CLONE_NEWNS` of Linux: what a process mounts from now on, it alone sees."""


def hardly_any_shared_memory() -> None:
    ctypes.CDLL(None).unshare(NEW_MOUNTS)
    for words in (["--make-rprivate", "/"], ["-t", "tmpfs", "-o", "size=4k", "tmpfs", "/dev/shm"]):
        subprocess.run(["mount", *words], check=True)
    Path("/dev/shm/full").write_bytes(b"0" * 4096)


class Foreign:
    """Its unpickling makes a folder."""

    def __init__(self, folder: Path):
        self._folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self._folder),)


def the_sentence(done: Ended) -> str:
    assert "Traceback" not in done.stderr, done.stderr
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    return said.removeprefix("error: ")


def record(output: Path) -> dict:
    return json.loads((output / "run.json").read_text())


@pytest.mark.slow
def test_a_full_disk_leaves_a_checkpoint_to_go_on_from_and_no_file_holds_the_token(tmp_path):
    output = tmp_path / "run"
    done = run(output, sabotage=full_disk)
    assert done.code == 1, done.stderr
    said = the_sentence(done)
    assert said.startswith("the disk is full") and "--resume" in said
    assert (record(output)["status"], record(output)["reason"]) == ("failed", said)
    assert (output / "checkpoint-2" / "model.safetensors").read_bytes() == b"half"
    assert latest_whole_checkpoint(output) == output / "checkpoint-1"
    again = run(output, "--resume", "--hub_token", TOKEN)
    assert again.code == 0, again.stderr
    assert "resuming from" in again.stdout and "checkpoint-1" in again.stdout
    assert record(output)["status"] == "finished"
    files = [file for file in output.rglob("*") if file.is_file()]
    assert {"training_args.bin", "run.json", "metrics.jsonl"} <= {file.name for file in files}
    assert not [file for file in files if TOKEN.encode() in file.read_bytes()]


def test_a_reward_that_raises_is_named(tmp_path):
    done = run(tmp_path / "run", sabotage=bad_reward)
    assert done.code == 1, done.stderr
    said = the_sentence(done)
    assert said.startswith("reward function 'r1_zero' raised IndexError: list index out of range")
    assert "fix it" in said
    assert (record(tmp_path / "run")["status"], record(tmp_path / "run")["reason"]) == (
        "failed",
        said,
    )


def test_an_unforeseen_error_keeps_its_traceback_and_the_record_no_token(tmp_path):
    done = run(tmp_path / "run", sabotage=unforeseen)
    assert done.code == 1
    assert "Traceback" in done.stderr and "RuntimeError: the engine died" in done.stderr
    assert record(tmp_path / "run")["status"] == "failed"
    assert record(tmp_path / "run")["reason"] == "RuntimeError: the engine died: <masked>"


def test_a_dataset_that_vanished(tmp_path):
    done = run(tmp_path / "run", "--dataset", str(tmp_path / "gone.jsonl"))
    assert done.code == 2, done.stderr
    assert "gone.jsonl': there is no such file" in the_sentence(done)
    assert not list((tmp_path / "run").iterdir())  # nothing that blocks the next start


@pytest.mark.skipif(os.geteuid() != 0, reason="a small /dev/shm can be mounted by root alone")
def test_loader_workers_without_shared_memory(tmp_path):
    workers = ("--dataloader_num_workers", "2")
    done = run(tmp_path / "run", *workers, sabotage=hardly_any_shared_memory)
    assert done.code == 1, done.stderr
    said = the_sentence(done)
    assert said.startswith("shared memory (/dev/shm) is full; set dataloader_num_workers to 0")
    assert record(tmp_path / "run")["reason"] == said


@pytest.mark.slow
def test_a_pickle_of_other_people_is_not_executed(tmp_path):
    """In a checkpoint whose seal is whole."""
    output, made = tmp_path / "run", tmp_path / "made"
    assert run(output, sabotage=full_disk).code == 1
    checkpoint = latest_whole_checkpoint(output)
    (checkpoint / "optimizer.pt").write_bytes(pickle.dumps(Foreign(made)))
    seal(checkpoint)
    done = run(output, "--resume")
    assert done.code == 1, done.stderr
    assert the_sentence(done).startswith("a file of the checkpoint holds more than tensors")
    assert not made.exists()
