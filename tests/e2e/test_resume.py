"""A run that was killed and resumed gives the same results as one that was not."""

import hashlib
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from safetensors.torch import load_file

from tests.conftest import REPOSITORY
from tests.support.rows import without_times
from tests.support.shared import shared_once
from tests.support.warm import Ended, Running, warm
from trl_ablate.run.checkpoints import latest_whole_checkpoint

SMALL = [
    "--profile", "miniature", "--generation_batch_size", "32",
    "--per_device_train_batch_size", "8", "--train_size", "12", "--eval_size", "16",
    "--eval_steps", "2", "--save_steps", "1", "--report_to", "none", "--grader_workers", "1",
]  # fmt: skip
"""Several epochs: of three rollout batches each."""
FIVE_STEPS, EIGHT_STEPS = ("--grpo_steps", "5"), ("--grpo_steps", "8")
ON_POLICY = ["recipes/std_dev_off.yaml", "--optimizer_batch_size", "32", *FIVE_STEPS]
OFF_POLICY = [
    "recipes/off_policy_e2_tb128.yaml", "--optimizer_batch_size", "16", "--logging_steps", "3",
    *FIVE_STEPS,
]  # fmt: skip
ADAPTER = ["recipes/lora.yaml", "--optimizer_batch_size", "32", *FIVE_STEPS]
TWO_PROCESSES = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
ACCELERATE = ["-m", "accelerate.commands.launch", "--num_processes", "1"]
TWO_BY_ACCELERATE = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]


class Launched:
    """A training below a launcher, which only a new interpreter can be; else as `Running`."""

    def __init__(self, launcher: list[str], words: list[str]):
        self._process = subprocess.Popen(
            [sys.executable, *launcher, "scripts/train.py", *words],
            cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the launcher and all that it started: its processes would continue to train."""
        started = psutil.Process(self._process.pid).children(recursive=True)
        self._process.kill()
        for child in started:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        self._process.communicate()

    def wait(self) -> Ended:
        printed, _ = self._process.communicate(timeout=300)
        return Ended(self._process.returncode, printed, "")


def start(output: Path, words: list[str], *more: str, launcher=()) -> Running | Launched:
    all_words = [*words, *SMALL, "--output_dir", str(output), *more]
    return Launched(launcher, all_words) if launcher else warm("train", *all_words)


def finish(training: Running | Launched, code: int = 0) -> str:
    ended = training.wait()
    assert ended.code == code, ended.printed
    return ended.printed


@pytest.fixture
def whole(tmp_path_factory):
    """`whole(words)`: the folder of an undisturbed run, made once for all tests."""

    def whole(words: list[str], launcher=()) -> Path:
        digest = hashlib.sha256(" ".join([*words, *launcher]).encode()).hexdigest()[:12]
        folder = shared_once(
            tmp_path_factory, f"whole-{digest}",
            lambda folder: finish(start(folder / "run", words, launcher=launcher)),
        )  # fmt: skip
        return folder / "run"

    return whole


def wait_for_step(output: Path, training: Running | Launched) -> None:
    """Until the run has logged something since now, or has ended."""
    file = output / "metrics.jsonl"
    before = file.stat().st_size if file.exists() else 0
    while training.alive and (not file.exists() or file.stat().st_size <= before):
        time.sleep(0.05)


def outcome(output: Path) -> tuple[dict, list[dict]]:
    """The weights at the end, and what was logged but for times."""
    (weights,) = (output / "checkpoint_last").glob("*.safetensors")
    rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return load_file(weights), [without_times(row) for row in rows]


def assert_same(one: Path, other: Path) -> None:
    (weights, rows), (other_weights, other_rows) = outcome(one), outcome(other)
    assert rows == other_rows
    assert weights.keys() == other_weights.keys()
    assert all(weights[name].equal(other_weights[name]) for name in weights)
    assert json.loads((other / "run.json").read_text())["status"] == "finished"


@pytest.mark.slow
def test_sigterm_saves_behind_the_next_step_and_resume_goes_on(tmp_path, whole):
    output = tmp_path / "run"
    process = start(output, OFF_POLICY, "--save_steps", "100")
    wait_for_step(output, process)
    process.send(signal.SIGTERM)
    assert "--resume continues" in finish(process, code=75)
    record = json.loads((output / "run.json").read_text())
    assert (record["status"], record["reason"]) == ("stopped", "ended by SIGTERM")
    assert list(output.glob("checkpoint-*"))
    finish(start(output, OFF_POLICY, "--resume"))
    assert_same(whole(OFF_POLICY), output)
    assert json.loads((output / "run.json").read_text())["run_name"] == record["run_name"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "code", "like"),
    [
        (ACCELERATE, -signal.SIGTERM, ()),
        pytest.param(TWO_BY_ACCELERATE, 1, TWO_PROCESSES, marks=pytest.mark.long),
        pytest.param(TWO_PROCESSES, 1, TWO_PROCESSES, marks=pytest.mark.long),
    ],
    ids=["accelerate", "accelerate, two", "torchrun, two"],
)
def test_sigterm_to_the_launcher_alone_reaches_the_training(tmp_path, whole, launcher, code, like):
    """The launcher chooses its own exit code; the run's end is in the record. Its weights are those
    of an undisturbed run, for one process by no launcher."""
    output = tmp_path / "run"
    process = start(output, OFF_POLICY, "--save_steps", "100", launcher=launcher)
    wait_for_step(output, process)
    process.send(signal.SIGTERM)
    assert "--resume continues" in finish(process, code)  # when the last process has ended
    record = json.loads((output / "run.json").read_text())
    assert (record["status"], record["reason"]) == ("stopped", "ended by SIGTERM")
    assert not (output / ".running").exists()
    finish(start(output, OFF_POLICY, "--resume", launcher=launcher))
    assert_same(whole(OFF_POLICY, like), output)


@pytest.mark.slow
def test_resuming_what_had_reached_its_end_trains_no_further(tmp_path, whole):
    output = tmp_path / "run"
    shutil.copytree(whole(ON_POLICY), output)
    shutil.rmtree(output / "checkpoint_last")
    (output / "checkpoint_best").rename(output / ".checkpoint_best.old")  # killed in the swap
    finish(start(output, ON_POLICY, "--resume"))
    assert_same(whole(ON_POLICY), output)
    best = [
        load_file(run / "checkpoint_best" / "model.safetensors")
        for run in (whole(ON_POLICY), output)
    ]
    assert all(tensor.equal(best[1][name]) for name, tensor in best[0].items())
    assert not list(output.glob(".checkpoint*"))


def test_resuming_what_had_logged_but_not_saved_is_refused(tmp_path):
    output = tmp_path / "run"
    process = start(output, ON_POLICY, "--save_steps", "100")
    wait_for_step(output, process)
    process.kill()
    rows = (output / "metrics.jsonl").read_bytes()
    refused = finish(start(output, ON_POLICY, "--resume"), code=2)
    assert "no whole checkpoint to resume from" in refused
    assert (output / "metrics.jsonl").read_bytes() == rows


def again(output: Path) -> list[str]:
    """A run that has logged rows and saved nothing can only start over."""
    return ["--resume" if latest_whole_checkpoint(output) else "--overwrite"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "kills", "launcher"),
    [
        pytest.param(ON_POLICY, 3, (), marks=pytest.mark.long),
        (OFF_POLICY, 3, ()),
        pytest.param(ADAPTER, 2, (), marks=pytest.mark.long),
        pytest.param(OFF_POLICY, 2, TWO_PROCESSES, marks=pytest.mark.long),
    ],
    ids=["on-policy", "off-policy", "lora", "two processes"],
)
def test_killed_at_random_moments(tmp_path, whole, words, kills, launcher):
    """Killed `kills` times, each time at most a few steps on: the end is that of the whole run."""
    moments, words = random.Random(f"{words[0]}-{kills}"), [*words, *EIGHT_STEPS]
    output = tmp_path / "run"
    for _ in range(kills):
        process = start(output, words, *again(output), launcher=launcher)
        wait_for_step(output, process)
        time.sleep(moments.uniform(0, 0.8))
        process.kill()
        assert all(json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines())
        assert json.loads((output / "run.json").read_text())
    finish(start(output, words, *again(output), launcher=launcher))
    assert_same(whole(words, launcher), output)
