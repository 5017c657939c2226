"""A run that something happened to: resumed, it gives the same results as one left alone.

Faults are random: the number of a case decides the place and the moment. The run either finishes
with the numbers of the undisturbed run, or ends with the message of a known failure (or by the
signal it was sent) and records it in `run.json`. Once the fault is fixed, `--resume` continues from
the last whole checkpoint and also ends with the numbers of the undisturbed run.
`TRL_ABLATE_FAULTS=200` tries that many cases; the checkout must stay as it is while they run.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest
from safetensors.torch import load_file

from tests.conftest import REPOSITORY
from tests.support.folders import mount, shared_once, unmount
from tests.support.rows import without_times
from tests.support.warm import Ended, Running, warm
from trl_ablate.run.checkpoints import is_whole, latest_whole_checkpoint, step_of
from trl_ablate.run.directory import RunDirectory

SMALL = [
    "--profile", "miniature", "--generation_batch_size", "32",
    "--per_device_train_batch_size", "8", "--train_size", "12", "--eval_size", "16",
    "--eval_steps", "2", "--save_steps", "1", "--report_to", "none", "--grader_workers", "1",
    "--grader_timeout", "60",
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


@pytest.fixture(scope="module")
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


def outcome(output: Path) -> tuple[list[dict], list[dict], dict]:
    """What a run ends with: weights, last and best; what it logged but for times; the best step."""
    run = RunDirectory(output)
    weights = [
        {name: tensor.numpy().tobytes() for name, tensor in load_file(file).items()}
        for folder in (run.checkpoint_last, run.checkpoint_best)
        for file in folder.glob("*.safetensors")
    ]
    return weights, [without_times(row) for row in run.metrics()], run.best() or {}


def assert_same(one: Path, other: Path) -> None:
    assert outcome(one) == outcome(other)
    assert RunDirectory(other).read()["status"] == "finished"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "code", "like"),
    [
        ((), 75, ()),
        (ACCELERATE, -signal.SIGTERM, ()),
        pytest.param(TWO_BY_ACCELERATE, 1, TWO_PROCESSES, marks=pytest.mark.long),
        pytest.param(TWO_PROCESSES, 1, TWO_PROCESSES, marks=pytest.mark.long),
    ],
    ids=["alone", "accelerate", "accelerate, two", "torchrun, two"],
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
    finish(start(output, OFF_POLICY, "--resume", launcher=launcher))
    assert_same(whole(OFF_POLICY, like), output)
    assert RunDirectory(output).read()["run_name"] == record["run_name"]


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "kills", "launcher"),
    [
        (OFF_POLICY, 3, ()),
        pytest.param(ADAPTER, 2, (), marks=pytest.mark.long),
        pytest.param(OFF_POLICY, 2, TWO_PROCESSES, marks=pytest.mark.long),
    ],
    ids=["off-policy", "lora", "two processes"],
)
def test_killed_at_random_moments(tmp_path, whole, words, kills, launcher):
    """Killed `kills` times, each time at most a few steps on: the end is that of the whole run."""
    moments, words = random.Random(f"{words[0]}-{kills}"), [*words, *EIGHT_STEPS]
    output = tmp_path / "run"
    for _ in range(kills):
        process = start(output, words, again(output), launcher=launcher)
        wait_for_step(output, process)
        time.sleep(moments.uniform(0, 0.8))
        process.kill()
        assert all(json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines())
        assert json.loads((output / "run.json").read_text())
    finish(start(output, words, again(output), launcher=launcher))
    assert_same(whole(words, launcher), output)


ROWS = 9
"""Lines of metrics.jsonl: the steps, and evaluations at 0, 2, 4 and 5."""
ENDS = {
    0: "finished", 1: "told", 2: "told", 75: "signal", 130: "signal",
    -signal.SIGINT: "signal", -signal.SIGTERM: "signal", -signal.SIGKILL: "signal",
}  # fmt: skip


class Case:
    """One run, its fault's random numbers, and how to fix the fault."""

    def __init__(self, folder: Path, interrupted: Path, number: int):
        self.folder, self.interrupted = folder, interrupted
        self.random = random.Random(number)
        self.fix: Callable[[], object] = lambda: None
        self.output, self.disk = folder / "run", folder / "disk"

    def start(self, *more: str, with_graders: bool = False) -> Running:
        words = [*ON_POLICY, *SMALL, "--save_total_limit", "2", "--output_dir", str(self.output)]
        return warm("train", *words, *more, with_graders=with_graders)

    def at_some_moment(self, training: Running) -> None:
        rows, metrics = self.random.randrange(ROWS), self.output / "metrics.jsonl"
        training.wait_for(
            lambda: not rows or metrics.exists() and metrics.read_bytes().count(b"\n") >= rows
        )
        time.sleep(self.random.uniform(0, 0.5))

    def take(self, pattern: str) -> None:
        """Delete a file of a killed run, or cut it off, or overwrite it; fixing restores it."""
        file = self.random.choice(sorted(self.output.glob(pattern)))
        way, content = self.random.choice(("delete", "cut", "fill")), file.read_bytes()
        self.fix = lambda: file.write_bytes(content)
        if way == "delete":
            file.unlink()
        elif way == "cut":
            os.truncate(file, int(len(content) * self.random.random()))
        else:
            file.write_bytes(self.random.randbytes(len(content)))


def full_disk(case: Case) -> Ended:
    """A disk of its own that ends at some byte."""
    mount(case.disk, f"size={case.random.randrange(100, 12_000)}k")
    case.output = case.disk / "run"
    case.fix = partial(mount, case.disk, "remount,size=1g")
    return case.start().wait()


def sent(case: Case, number: signal.Signals) -> Ended:
    training = case.start()
    case.at_some_moment(training)
    training.send(number)
    return training.wait()


def killed_worker(case: Case) -> Ended:
    """The grader's processes, its watcher or its fork, up to twice."""
    training = case.start(with_graders=True)
    for _ in range(case.random.randint(1, 2)):
        case.at_some_moment(training)
        with suppress(psutil.NoSuchProcess):  # the run has ended
            if workers := psutil.Process(training.pid).children(recursive=True):
                case.random.choice(workers).kill()
    return training.wait()


def broken(case: Case, pattern: str) -> Ended:
    """A file of a killed run; `checkpoint-N` is the last one. The run resumes from the last whole
    checkpoint, or is refused where there is none."""
    shutil.copytree(case.random.choice(sorted(case.interrupted.iterdir())), case.output)
    folders = sorted(case.output.glob("checkpoint-[0-9]*"), key=step_of)
    before = [folder for folder in folders[:-1] if is_whole(folder)]
    rows = list(RunDirectory(case.output).metrics())
    case.take(pattern.replace("checkpoint-N", folders[-1].name))
    ended = case.start("--resume").wait()
    if "checkpoint-N" in pattern and before:
        assert_goes_on(ended, case.output, before[-1], rows)
    elif "checkpoint-N" in pattern:
        assert ended.code == 2 and "no whole checkpoint" in ended.error
    return ended


FAULTS: dict[str, tuple[Callable[[Case], Ended], set[str]]] = {
    "full disk": (full_disk, {"told", "finished"}),
    "checkpoint": (partial(broken, pattern="checkpoint-N/*"), {"finished", "told"}),
    "json": (partial(broken, pattern="[rm]*.json*"), {"finished", "told"}),
    "killed worker": (killed_worker, {"finished"}),
    "killed run": (partial(sent, number=signal.SIGKILL), {"finished", "signal"}),
    "best model": (partial(broken, pattern="checkpoint_best/*"), {"finished", "told"}),
    "preempted": (partial(sent, number=signal.SIGTERM), {"finished", "signal"}),
    "ctrl-c": (partial(sent, number=signal.SIGINT), {"finished", "signal"}),
}
CASES = [
    (list(FAULTS)[number % len(FAULTS)], number)
    for number in range(int(os.environ.get("TRL_ABLATE_FAULTS", "20")))
]


def interrupt(folder: Path) -> None:
    """Runs that were killed after each of their checkpoints but the last."""
    for step in range(1, 5):
        case = Case(folder, folder, 0)
        case.output = folder / str(step)
        training = case.start()
        training.wait_for((case.output / f"checkpoint-{step}/trainer_state.json").exists)
        training.send(signal.SIGKILL)
        assert training.wait().code == -signal.SIGKILL


@pytest.fixture
def case(request, tmp_path, tmp_path_factory) -> Iterator[Case]:
    made = Case(tmp_path, shared_once(tmp_path_factory, "interrupted", interrupt), request.param)
    yield made
    unmount(made.disk)


@pytest.mark.slow
@pytest.mark.sample(6)
@pytest.mark.parametrize(("fault", "case"), CASES, indirect=["case"])
def test_a_fault_is_told_or_harmless_and_costs_no_finished_step(case, whole, fault):
    disturb, allowed = FAULTS[fault]
    ended = disturb(case)
    end = ENDS.get(ended.code, str(ended.code))
    assert end in allowed, ended.stderr
    if end == "told":
        assert ended.code == 2 or ended.error.startswith("the disk is full"), ended.error
    if end != "finished":
        case.fix()
        before = latest_whole_checkpoint(case.output)
        rows = list(RunDirectory(case.output).metrics())
        resumed = case.start(again(case.output)).wait()
        assert_goes_on(resumed, case.output, before, rows)
    assert_same(whole(ON_POLICY), case.output)


def assert_goes_on(ended: Ended, output: Path, checkpoint: Path | None, before: list[dict]) -> None:
    """The run resumed from that checkpoint; all rows up to it are kept, including their times."""
    assert ended.code == 0, ended.stderr
    words = re.sub(r"\s", "", ended.stdout)  # a terminal's width cuts them into lines
    if checkpoint:
        assert f"resumingfrom{checkpoint}".replace(" ", "") in words, ended.stdout
    step = step_of(checkpoint) if checkpoint else -1
    kept = [row for row in before if row["step"] <= step]
    assert list(RunDirectory(output).metrics())[: len(kept)] == kept
    assert (not checkpoint) == (not kept)
