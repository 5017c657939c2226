"""Trouble in the middle of a run ends it in one sentence, and leaves what was saved usable."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.conftest import REPOSITORY
from trl_ablate.run.checkpoints import latest_whole_checkpoint

SMALL = [
    "recipes/std_dev_off.yaml", "--profile", "miniature", "--generation_batch_size", "16",
    "--optimizer_batch_size", "16", "--per_device_train_batch_size", "8", "--grpo_steps", "3",
    "--train_size", "64", "--eval_size", "8", "--eval_strategy", "no", "--eval_on_start", "false",
    "--save_steps", "1", "--report_to", "none", "--max_completion_length", "16",
]  # fmt: skip

FULL_DISK = """
    import errno
    import transformers.modeling_utils as saving
    save, calls = saving.safe_save_file, []
    def full(tensors, name, *rest, **more):
        calls.append(name)
        if len(calls) > 1:
            open(name, "wb").write(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        return save(tensors, name, *rest, **more)
    saving.safe_save_file = full
"""
BAD_REWARD = """
    import trl_ablate.rewards.functions as functions
    def score(*args, **kwargs):
        return [][0]
    functions.score_batch = score
"""
UNFORESEEN = """
    from trl_ablate.training import lifecycle
    def build_trainer(*args):
        raise RuntimeError("the engine died: " + os.environ["HF_TOKEN"])
    lifecycle.build_trainer = build_trainer
"""
TOKEN = "hf_" + "Zz9Yy8Xx7Ww6Vv5Uu4Tt3Ss2Rr1Qq0Pp9"


def run(output: Path, trouble: str, *words: str) -> subprocess.CompletedProcess:
    """`scripts/train.py`, with something broken in its process first."""
    driver = f"import os, runpy, sys\n{textwrap.dedent(trouble)}\n" + (
        "sys.argv = ['scripts/train.py', *sys.argv[1:]]\n"
        "runpy.run_path('scripts/train.py', run_name='__main__')"
    )
    return subprocess.run(
        [sys.executable, "-c", driver, *SMALL, "--output_dir", str(output), *words],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=600,
        env={**os.environ, "HF_TOKEN": TOKEN},
    )  # fmt: skip


def the_sentence(done: subprocess.CompletedProcess) -> str:
    assert "Traceback" not in done.stderr, done.stderr
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    return said.removeprefix("error: ")


def record(output: Path) -> dict:
    return json.loads((output / "run.json").read_text())


def test_a_full_disk_leaves_a_checkpoint_to_go_on_from_and_no_file_holds_the_token(tmp_path):
    output = tmp_path / "run"
    done = run(output, FULL_DISK)
    assert done.returncode == 1, done.stderr
    said = the_sentence(done)
    assert said.startswith("the disk is full") and "--resume" in said
    assert (record(output)["status"], record(output)["reason"]) == ("failed", said)
    assert (output / "checkpoint-2" / "model.safetensors").read_bytes() == b"half"
    assert latest_whole_checkpoint(output) == output / "checkpoint-1"
    again = run(output, "", "--resume", "--hub_token", TOKEN)
    assert again.returncode == 0, again.stderr
    assert "resuming from" in again.stdout and "checkpoint-1" in again.stdout
    assert record(output)["status"] == "finished"
    files = [file for file in output.rglob("*") if file.is_file()]
    assert {"training_args.bin", "run.json", "metrics.jsonl"} <= {file.name for file in files}
    assert not [file for file in files if TOKEN.encode() in file.read_bytes()]


def test_a_reward_that_raises_is_named(tmp_path):
    done = run(tmp_path / "run", BAD_REWARD)
    assert done.returncode == 1, done.stderr
    said = the_sentence(done)
    assert said.startswith("reward function 'r1_zero' raised IndexError: list index out of range")
    assert "mend it" in said
    assert (record(tmp_path / "run")["status"], record(tmp_path / "run")["reason"]) == (
        "failed",
        said,
    )


def test_an_unforeseen_error_keeps_its_traceback_and_the_record_no_token(tmp_path):
    done = run(tmp_path / "run", UNFORESEEN)
    assert done.returncode == 1
    assert "Traceback" in done.stderr and "RuntimeError: the engine died" in done.stderr
    assert record(tmp_path / "run")["status"] == "failed"
    assert record(tmp_path / "run")["reason"] == "RuntimeError: the engine died: <masked>"


def test_a_dataset_that_vanished(tmp_path):
    done = run(tmp_path / "run", "", "--dataset", str(tmp_path / "gone.jsonl"))
    assert done.returncode == 2, done.stderr
    assert "gone.jsonl': there is no such file" in the_sentence(done)
    assert record(tmp_path / "run")["status"] == "failed"
    assert "there is no such file" in record(tmp_path / "run")["reason"]
