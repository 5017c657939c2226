"""A run that something happened to: resumed, it gives the same results as one left alone.

Faults are random: the number of a case decides the place and the moment. `--resume` continues from
the last whole checkpoint and ends with the numbers of the undisturbed run. `TRL_ABLATE_FAULTS=200`
tries that many cases of each fault; the checkout must stay as it is while they run.
"""

import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY
from tests.support.folders import mount, shared_once, unmount
from tests.support.rows import outcome
from tests.support.warm import Ended, warm
from trl_ablate.run.checkpoints import latest_whole_checkpoint, step_of
from trl_ablate.run.directory import RunDirectory

pytestmark = pytest.mark.slow

SMALL = [
    "--profile", "miniature", "--generation_batch_size", "32",
    "--per_device_train_batch_size", "8", "--train_size", "12", "--eval_size", "16",
    "--eval_steps", "2", "--save_steps", "1", "--report_to", "none", "--grader_workers", "1",
    "--grader_timeout", "60", "--grpo_steps", "5",
]  # fmt: skip
"""Several epochs: of three rollout batches each."""
ON_POLICY = [
    "recipes/std_dev_off.yaml", "--optimizer_batch_size", "32", "--save_total_limit", "2",
]  # fmt: skip
OFF_POLICY = [
    "recipes/off_policy_e2_tb128.yaml", "--optimizer_batch_size", "16", "--logging_steps", "3",
]  # fmt: skip
TWO_PROCESSES = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
ACCELERATE = ["-m", "accelerate.commands.launch", "--num_processes", "1"]


class Launched:
    """A training below a launcher, which only a new interpreter can be; else as `Running`."""

    def __init__(self, launcher: Sequence[str], words: list[str]):
        self._process = subprocess.Popen(
            [sys.executable, *launcher, "scripts/train.py", *words],
            cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self) -> Ended:
        printed, _ = self._process.communicate(timeout=300)
        return Ended(self._process.returncode, printed, "")


def start(output: Path, words: list[str], *more: str, launcher: Sequence[str] = ()) -> Any:
    """A `Running` training, or a `Launched` one."""
    words = [*words, *SMALL, "--output_dir", str(output), *more]
    return Launched(launcher, words) if launcher else warm("train", *words)


def finish(training: Any, code: int = 0) -> str:
    ended = training.wait()
    assert ended.code == code, ended.printed
    return ended.printed


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """`whole(words)`: the folder of an undisturbed run, made once for all tests."""

    def whole(words: list[str], launcher=()) -> Path:
        digest = hashlib.sha256(" ".join([*words, *launcher]).encode()).hexdigest()[:12]

        def make(folder: Path) -> None:
            finish(start(folder / "run", words, launcher=launcher))

        return shared_once(tmp_path_factory, f"whole-{digest}", make) / "run"

    return whole


def wait_for_step(output: Path, training: Any) -> None:
    """Until the run has logged something since now, or has ended."""
    file = output / "metrics.jsonl"
    before = file.stat().st_size if file.exists() else 0
    while training.alive and (not file.exists() or file.stat().st_size <= before):
        time.sleep(0.05)


def assert_same(one: Path, other: Path) -> None:
    assert outcome(one) == outcome(other)
    assert RunDirectory(other).read()["status"] == "finished"


@pytest.mark.parametrize(
    ("launcher", "code", "like"),
    [
        ((), 75, ()),
        pytest.param(ACCELERATE, -signal.SIGTERM, (), marks=pytest.mark.long),
        pytest.param(TWO_PROCESSES, 1, TWO_PROCESSES, marks=pytest.mark.long),
    ],
    ids=["alone", "accelerate", "torchrun, two"],
)
def test_sigterm_saves_behind_the_next_step_and_resume_goes_on(
    tmp_path, whole, launcher, code, like
):
    """Sent to the launcher alone, it reaches the training. The launcher chooses its own exit code;
    the run's end is in the record. The weights of one process are those of no launcher."""
    output = tmp_path / "run"
    process = start(output, OFF_POLICY, "--save_steps", "100", launcher=launcher)
    wait_for_step(output, process)
    process.send(signal.SIGTERM)
    assert "--resume continues" in finish(process, code)  # when the last process has ended
    record = RunDirectory(output).read()
    assert (record["status"], record["reason"]) == ("stopped", "ended by SIGTERM")
    assert not (output / ".running").exists() and list(output.glob("checkpoint-*"))
    finish(start(output, OFF_POLICY, "--resume", launcher=like))
    assert_same(whole(OFF_POLICY, like), output)
    assert RunDirectory(output).read()["run_name"] == record["run_name"]


def test_resuming_what_had_reached_its_end_trains_no_further(tmp_path, whole):
    output = tmp_path / "run"
    shutil.copytree(whole(ON_POLICY), output)
    shutil.rmtree(output / "checkpoint_last")
    (output / "checkpoint_best").rename(output / ".checkpoint_best.old")  # killed in the swap
    finish(start(output, ON_POLICY, "--resume"))
    assert_same(whole(ON_POLICY), output)
    assert not list(output.glob(".checkpoint*"))


def again(output: Path) -> str:
    """A run that has logged rows and saved nothing can only start over."""
    run = RunDirectory(output)
    saved = latest_whole_checkpoint(output) or next(run.metrics(), None) is None
    return "--resume" if saved else "--overwrite"


def test_killed_at_random_moments(tmp_path, whole):
    """Three times, each time at most a few steps on: the end is that of the whole run."""
    moments, output = random.Random(0), tmp_path / "run"
    for _ in range(3):
        process = start(output, OFF_POLICY, again(output))
        wait_for_step(output, process)
        time.sleep(moments.uniform(0, 0.6))
        process.kill()
        assert all(json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines())
        assert json.loads((output / "run.json").read_text())
    finish(start(output, OFF_POLICY, again(output)))
    assert_same(whole(OFF_POLICY), output)


SEEDS = [
    pytest.param(number, marks=pytest.mark.long if number > 1 else ())
    for number in range(int(os.environ.get("TRL_ABLATE_FAULTS", "8")))
]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_disk_that_is_full_at_some_byte_costs_no_finished_step(tmp_path, whole, seed):
    """All rows up to the last whole checkpoint are kept, including their times."""
    disk, output = tmp_path / "disk", tmp_path / "disk" / "run"
    mount(disk, f"size={random.Random(seed).randrange(100, 12_000)}k")
    try:
        ended = start(output, ON_POLICY).wait()
        if ended.code != 0:
            assert ended.error.startswith("the disk is full"), ended.printed
            mount(disk, "remount,size=1g")
            checkpoint, rows = latest_whole_checkpoint(output), RunDirectory(output).metrics()
            step = step_of(checkpoint) if checkpoint else -1
            kept = [row for row in rows if row["step"] <= step]
            words = finish(start(output, ON_POLICY, again(output)))
            if checkpoint:  # a terminal's width cuts words into lines
                assert f"resumingfrom{checkpoint}" in re.sub(r"\s", "", words)
            assert list(RunDirectory(output).metrics())[: len(kept)] == kept
            assert (not checkpoint) == (not kept)
        assert_same(whole(ON_POLICY), output)
    finally:
        unmount(disk)
