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
from importlib import import_module
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.support.disks import mount, unmount
from tests.support.rows import without_times
from tests.support.shared import shared_once
from tests.support.warm import SMALL, Ended, Running, model_and_data, warm
from trl_ablate.run import failures
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
    -signal.SIGTERM: "killed", -signal.SIGKILL: "killed",
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
        self.model = world / "model"
        self.data = world / "data"

    def start(
        self,
        *more: str,
        sabotage: Callable[[], None] | None = None,
        with_graders: bool = False,
    ) -> Running:
        words = [*WORDS, "--model_name_or_path", str(self.model), "--dataset", str(self.data)]
        return warm(
            "train", *words, "--output_dir", self.output, *more,
            sabotage=sabotage, with_graders=with_graders,
        )  # fmt: skip

    def own(self, name: str) -> Path:
        """The model or the data as this case's own, to be broken."""
        setattr(self, name, shutil.copytree(self.world / name, self.folder / name))
        return self.folder / name

    def at_some_moment(self, training: Running) -> None:
        rows = self.random.randrange(ROWS)
        metrics = self.output / "metrics.jsonl"
        training.wait_for(lambda: not rows or metrics.exists() and lines(metrics) >= rows)
        time.sleep(self.random.uniform(0, 0.5))

    def take(self, files: list[Path], *ways: str) -> None:
        """Break one of the files in one of the ways; fixing restores it."""
        file, way = self.random.choice(sorted(files)), self.random.choice(ways)
        self.mend = break_file(file, self.folder / "kept", way, self.random.random())


def break_file(file: Path, kept: Path, way: str, cut: float) -> Callable[[], object]:
    """Delete a file, or truncate it, or overwrite a part of it; how to fix it.

    The fix does not restore a file that the run has replaced in the meantime.
    """
    if way == "delete":
        with suppress(FileNotFoundError):  # the run was faster
            file.rename(kept)
        return lambda: kept.exists() and file.parent.is_dir() and kept.rename(file)
    content = file.read_bytes()
    if way == "truncate":
        os.truncate(file, int(len(content) * cut))
    else:
        file.write_bytes(random.Random(cut).randbytes(len(content)))
    return lambda: file.write_bytes(content)


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
        workers = grader_processes(training.pid)
        if workers:
            os.kill(case.random.choice(workers), signal.SIGKILL)
    return training.wait()


def grader_processes(parent: int) -> list[int]:
    """A training's watchers, and their forks."""
    try:
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        below = [child for each in children for child in grader_processes(int(each))]
        return [int(each) for each in children if "worker.py" in command(each)] + below
    except FileNotFoundError:
        return []


def command(pid: str) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


LOADING = {
    "check_model": "models",
    "load_tokenizer": "models",
    "task_dataset": "building",
    "AblationTrainer": "building",
}
"""What is called while a model is loaded, in this order, and the module that calls it."""


def broken_while_loaded(case: Case) -> Ended:
    """A file of the model is deleted or truncated between two reads of it."""
    file = case.random.choice(sorted(case.own("model").iterdir()))
    kept, content = case.folder / "kept", file.read_bytes()
    case.mend = lambda: file.write_bytes(content)
    way, cut = case.random.choice(("delete", "truncate")), case.random.random()
    moment = case.random.choice(list(LOADING))
    return case.start(sabotage=partial(break_before, moment, file, kept, way, cut)).wait()


def break_before(moment: str, *fault) -> None:
    caller = import_module(f"trl_ablate.training.{LOADING[moment]}")
    called = getattr(caller, moment)

    def broken(*args, **kwargs):
        if fault[0].exists():
            break_file(*fault)
        return called(*args, **kwargs)

    setattr(caller, moment, broken)


def vanishing(case: Case) -> Ended:
    """A file of the inputs or of the run is deleted while it runs."""
    inputs = [*case.own("data").iterdir(), *case.own("model").iterdir()]
    training = case.start()
    case.at_some_moment(training)
    own = [case.output / "run.json", case.output / "metrics.jsonl"]
    own += case.output.glob("checkpoint[-_]*/*")
    case.take([file for file in [*inputs, *own] if file.exists()], "delete")
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
    case.take(list(folders[-1].iterdir()), "delete", "truncate", "garbage")
    ended = case.start("--resume").wait()
    if before:
        assert_goes_on(ended, case.output, before[-1], finished)
    else:
        assert ended.code == 2 and "no whole checkpoint" in ended.stderr, ended.stderr
    return ended


def broken_best(case: Case) -> Ended:
    """A file of the best model, after a kill."""
    run = interrupted(case)
    case.take(list(run.checkpoint_best.iterdir()), "delete", "truncate", "garbage")
    return case.start("--resume").wait()


def broken_json(case: Case) -> Ended:
    """What the run has written about itself, after a kill."""
    run = interrupted(case)
    files = [run.run_file, run.metrics_file, run.config_file]
    case.take(files, "delete", "truncate", "garbage")
    return case.start("--resume").wait()


FAULTS: dict[str, tuple[Callable[[Case], Ended], set[str]]] = {
    "full disk": (full_disk, {"said", "finished"}),
    "checkpoint": (broken_checkpoint, {"finished", "said"}),
    "json": (broken_json, {"finished", "said"}),
    "killed worker": (killed_worker, {"finished"}),
    "killed run": (partial(killed, number=signal.SIGKILL), ASKED_TO_END),
    "vanishing file": (vanishing, {"finished", "said"}),
    "best model": (broken_best, {"finished", "said"}),
    "model while loaded": (broken_while_loaded, {"finished", "said"}),
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


FORESEEN = [
    *(text for name, text in vars(failures).items() if name.isupper() and isinstance(text, str)),
]
"""All messages that a run can end with, except those of a `ConfigurationError`."""


def is_foreseen(said: str) -> bool:
    return any(re.fullmatch(re.sub(r"\\{\w+\\}", ".*", re.escape(each)), said) for each in FORESEEN)


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
    assert ended.code == 2 or is_foreseen(said.removeprefix("error: ")), said
