"""Random faults in real runs: none is hidden, and none costs more than the last checkpoint.

Each case is one fault; its number decides the place and the moment. The run either finishes with
the numbers of the undisturbed run, or ends with the message of a known failure (or by the signal it
was sent) and records it in `run.json`. Once the fault is fixed, `--resume` continues from the last
whole checkpoint and also ends with the numbers of the undisturbed run.
`TRL_ABLATE_FAULTS=200` tries that many cases; the checkout must stay as it is while they run.
"""

import json
import os
import random
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest
from safetensors.torch import load_file

from tests.support.disks import mount, unmount
from tests.support.rows import without_times
from tests.support.shared import shared_once
from tests.support.warm import SMALL, Ended, Running, model_and_data, warm
from trl_ablate.run.checkpoints import is_whole, latest_whole_checkpoint, step_of
from trl_ablate.run.directory import RunDirectory

pytestmark = pytest.mark.slow

CASES = int(os.environ.get("TRL_ABLATE_FAULTS", "20"))
STEPS = 5
ROWS = 9
"""Lines of metrics.jsonl: the steps, and evaluations at 0, 2, 4 and 5."""

WORDS = [
    *SMALL, "--grpo_steps", str(STEPS), "--eval_steps", "2", "--save_steps", "1",
    "--save_total_limit", "2",
]  # fmt: skip

KINDS = {
    0: "finished", 1: "said", 2: "said", 75: "preempted", 130: "interrupted",
    -signal.SIGINT: "killed", -signal.SIGTERM: "killed", -signal.SIGKILL: "killed",
}  # fmt: skip
ASKED_TO_END = {"preempted", "interrupted", "killed", "finished"}


class Case:
    """One run beside its model and data, its fault's random numbers, and how to fix the fault."""

    def __init__(self, folder: Path, world: Path, number: int):
        self.folder = folder
        self.world = world
        self.random = random.Random(number)
        self.mend: Callable[[], object] = lambda: None
        self.output = folder / "run"
        self.disk = folder / "disk"

    def start(self, *more: str, with_graders: bool = False) -> Running:
        places = ["--model_name_or_path", self.world / "model", "--dataset", self.world / "data"]
        words = [*WORDS, *places, "--output_dir", self.output, *more]
        return warm("train", *words, with_graders=with_graders)

    def at_some_moment(self, training: Running) -> None:
        rows = self.random.randrange(ROWS)
        metrics = self.output / "metrics.jsonl"
        training.wait_for(lambda: not rows or metrics.exists() and lines(metrics) >= rows)
        time.sleep(self.random.uniform(0, 0.5))

    def take(self, files: list[Path]) -> None:
        """Delete one of the files, or cut it off, or overwrite it; fixing restores it."""
        file, way = self.random.choice(sorted(files)), self.random.choice(("delete", "cut", "fill"))
        content = file.read_bytes()
        self.mend = lambda: file.write_bytes(content)
        if way == "delete":
            file.unlink()
        elif way == "cut":
            os.truncate(file, int(len(content) * self.random.random()))
        else:
            file.write_bytes(self.random.randbytes(len(content)))


def lines(file: Path) -> int:
    return file.read_bytes().count(b"\n")


def full_disk(case: Case) -> Ended:
    """A disk of its own that ends at some byte."""
    mount(case.disk, f"size={case.random.randrange(100, 12_000)}k")
    case.output = case.disk / "run"
    case.mend = partial(mount, case.disk, "remount,size=1g")
    return case.start().wait()


def killed(case: Case, number: signal.Signals) -> Ended:
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


def interrupted(case: Case) -> RunDirectory:
    """A run that was killed when it had saved something, as this case's own."""
    start = case.random.choice(sorted((case.world / "interrupted").iterdir()))
    shutil.copytree(start, case.output)
    return RunDirectory(case.output)


def broken_checkpoint(case: Case) -> Ended:
    """A file of the last checkpoint, after a kill: the run resumes from the whole one before it,
    and is refused where there is none."""
    folders = sorted(interrupted(case).path.glob("checkpoint-[0-9]*"), key=step_of)
    before = [folder for folder in folders[:-1] if is_whole(folder)]
    finished = list(RunDirectory(case.output).metrics())
    case.take(list(folders[-1].iterdir()))
    ended = case.start("--resume").wait()
    if before:
        assert_goes_on(ended, case.output, before[-1], finished)
    else:
        assert ended.code == 2 and "no whole checkpoint" in ended.stderr, ended.stderr
    return ended


def broken(case: Case, pattern: str) -> Ended:
    """A file that the run has written, after a kill."""
    case.take(list(interrupted(case).path.glob(pattern)))
    return case.start("--resume").wait()


FAULTS: dict[str, tuple[Callable[[Case], Ended], set[str]]] = {
    "full disk": (full_disk, {"said", "finished"}),
    "checkpoint": (broken_checkpoint, {"finished", "said"}),
    "json": (partial(broken, pattern="[rm]*.json*"), {"finished", "said"}),
    "killed worker": (killed_worker, {"finished"}),
    "killed run": (partial(killed, number=signal.SIGKILL), ASKED_TO_END),
    "best model": (partial(broken, pattern="checkpoint_best/*"), {"finished", "said"}),
    "preempted": (partial(killed, number=signal.SIGTERM), ASKED_TO_END),
    "ctrl-c": (partial(killed, number=signal.SIGINT), ASKED_TO_END),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    """A model, data, the undisturbed run, and runs killed after some of their checkpoints."""
    return shared_once(tmp_path_factory, "faults", make_world)


def make_world(folder: Path) -> None:
    model_and_data(folder)
    whole = Case(folder, folder, 0)
    ended = whole.start().wait()
    assert ended.code == 0, ended.stderr
    (folder / "interrupted").mkdir()
    for step in range(1, STEPS):
        kill_behind(Case(folder, folder, 0), folder / "interrupted" / str(step), step)


def kill_behind(case: Case, output: Path, step: int) -> None:
    case.output = output
    training = case.start()
    training.wait_for((output / f"checkpoint-{step}" / "trainer_state.json").exists)
    training.send(signal.SIGKILL)
    assert training.wait().code == -signal.SIGKILL


@pytest.fixture
def case(request, tmp_path, world) -> Iterator[Case]:
    made = Case(tmp_path, world, request.param)
    yield made
    unmount(made.disk)


def outcome(output: Path) -> tuple[list[dict], list[dict], dict]:
    """What a run ends with: weights, last and best; what it logged but for times; the best step."""
    run = RunDirectory(output)
    weights = [
        {name: tensor.numpy().tobytes() for name, tensor in load_file(file).items()}
        for folder in (run.checkpoint_last, run.checkpoint_best)
        for file in folder.glob("*.safetensors")
    ]
    rows = [without_times(row) for row in run.metrics()]
    return weights, rows, run.best() or {}


@pytest.mark.sample(9)
@pytest.mark.parametrize(
    ("fault", "case"),
    [(name, number) for number in range(CASES) for name in [list(FAULTS)[number % len(FAULTS)]]],
    indirect=["case"],
)
def test_a_fault_is_told_or_harmless_and_costs_no_finished_step(
    case, world, fault, record_property
):
    disturb, allowed = FAULTS[fault]
    ended = disturb(case)
    kind = KINDS.get(ended.code, str(ended.code))
    record_property("end", kind)
    record_property("said", ended.stderr[-300:])
    assert kind in allowed, ended.stderr
    if kind == "said":
        assert_told(ended, case.output)
    if kind != "finished":
        case.mend()
        whole = latest_whole_checkpoint(case.output)
        finished = list(RunDirectory(case.output).metrics())
        again = case.start("--resume" if whole or not finished else "--overwrite").wait()
        assert again.code == 0, again.stderr
        assert_goes_on(again, case.output, whole, finished)
    assert json.loads((case.output / "run.json").read_text())["status"] == "finished"
    assert outcome(case.output) == outcome(world / "run")


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


def assert_told(ended: Ended, output: Path) -> None:
    """The end was reported in one sentence, without a traceback."""
    assert "Traceback" not in ended.stderr, ended.stderr
    (said,) = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
    assert ended.code == 2 or said.startswith("error: the disk is full"), said
