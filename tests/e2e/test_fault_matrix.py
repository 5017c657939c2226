"""Every command × every fault: an exit code, at most one sentence, and no other file changed.

A case copies a small world (a model, data, a finished and an interrupted run, a study) and starts
one command in it. Damaged files have tests where they are read.
"""

import os
import random
import shutil
import signal
import time
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

import pytest

from tests.support.folders import contents, mount, unmount
from tests.support.hub_endpoint import HubEndpoint
from tests.support.warm import Ended, Running, model_and_data, warm
from trl_ablate.run.directory import MARK
from trl_ablate.run.json_files import write_jsonl

pytestmark = pytest.mark.slow

TOKEN = "hf_" + "matrixmatrix" * 3

RECIPE = """\
extends: grpo.yaml
model_name_or_path: model
dataset: data
grpo_steps: 3
eval_steps: 1
save_steps: 1
save_total_limit: 2
generation_batch_size: 16
optimizer_batch_size: 16
per_device_train_batch_size: 16
eval_size: 16
train_size: 64
grader_workers: 1
grader_timeout: 60
report_to: none
"""

STUDY = """\
question: Does it work?
arms: [../recipe.yaml, ../other.yaml]
seeds: [0]
profile: miniature
"""

OWN = ("*.json", "*.jsonl", "README.md", "rollouts/*", ".*", "checkpoint_*", "checkpoint-[0-9]*/*")


@dataclass(frozen=True)
class Command:
    """A command line in the world's folder, and what it may write."""

    words: str
    writes: tuple[str, ...] = ()
    again: str = ""
    """The words that finish it after a kill, where they are others."""
    seconds: float = 0.5
    """About how long it takes: a kill comes before that."""
    failed: str = "error: "
    """How it begins the line that reports a failure."""


TRAIN = "train recipe.yaml --profile miniature --output_dir"
COMMANDS = {
    "train": Command(f"{TRAIN} new", ("new/*",), f"{TRAIN} new --overwrite", 5),
    "overwrite": Command(
        f"{TRAIN} run --overwrite", tuple(f"run/{name}" for name in OWN), seconds=5
    ),
    "resume": Command(
        f"{TRAIN} stopped --resume", tuple(f"stopped/{name}" for name in OWN), seconds=4
    ),
    "evaluate": Command(
        "evaluate run --dataset data --output scores.json --per_question rates.jsonl",
        ("scores.json", "scores*.jsonl", "rates.jsonl"), seconds=3,
    ),
    "check": Command(
        "check recipe.yaml --profile miniature --questions 8", seconds=2, failed="problem: "
    ),
    "new": Command("new task", ("task/*", "other/*", ".new-*/*"), "new other"),
    "publish": Command("publish run"),
    "plan": Command("study plan study", ("runs/studies/*",)),
    "run": Command("study run study", ("runs/*",), seconds=15, failed="failed: "),
    "status": Command("study status study", ("runs/studies/*",)),
    "report": Command(
        "study report study",
        ("study/REPORT.md", "study/report.html", "study/report.json", "study/*.csv", "study/*.png",
         "study/*.svg", "runs/studies/*"), seconds=3,
    ),
    "clean": Command("study clean study --checkpoints --yes", ("runs/*",)),
    "doctor": Command("doctor recipe.yaml --profile miniature", failed="cannot run here"),
    "bench": Command(
        "bench reward --answers answers.jsonl --count 8 --rounds 1 --workers 1 --output bench.json",
        ("bench.json",), seconds=3,
    ),
}  # fmt: skip


def start(world: Path, words: str, hub: str = "") -> Running:
    command, *rest = words.split()
    return warm(command, *rest, sabotage=partial(enter, world, hub))


def enter(world: Path, hub: str) -> None:
    """Work in a world, with this address as the Hub."""
    os.chdir(world)
    if hub:
        from huggingface_hub import constants

        os.environ["HF_TOKEN"] = TOKEN
        constants.HF_HUB_OFFLINE, constants.HF_HUB_DISABLE_XET = False, True
        constants.ENDPOINT = hub


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    """One of the study's two runs, as `run`; the other one in its place; and `stopped`."""
    folder = tmp_path_factory.mktemp("matrix")
    model_and_data(folder)
    (folder / "recipe.yaml").write_text(RECIPE)
    (folder / "other.yaml").write_text(f"{RECIPE}scale_rewards: none\n")
    write_jsonl(folder / "answers.jsonl", [{"answer": str(number)} for number in range(8)])
    (folder / "study").mkdir()
    (folder / "study" / "study.yaml").write_text(STUDY)
    training = start(folder, COMMANDS["train"].words)
    training.wait_for((folder / "new" / "checkpoint-2" / "trainer_state.json").exists)
    training.send(signal.SIGKILL)
    training.wait()
    (folder / "new" / MARK).unlink()
    (folder / "new").rename(folder / "stopped")
    ended = start(folder, COMMANDS["run"].words).wait()
    assert ended.code == 0, ended.stderr
    first, _ = sorted((folder / "runs").glob("*/run.json"))
    first.parent.rename(folder / "run")
    return folder


@pytest.fixture(scope="module")
def hub():
    with HubEndpoint(tokens={TOKEN: "owner"}) as endpoint:
        yield endpoint


class Case:
    """One command in its own copy of the world."""

    def __init__(self, folder: Path, command: Command, hub: str):
        self.folder, self.command, self._hub = folder, command, hub
        self.before: dict[str, str] = {}

    def start(self, words: str = "") -> Running:
        """From here on, only what the command writes may change."""
        self.before = self.before or contents(self.folder)
        return start(self.folder, words or self.command.words, self._hub)

    def run(self, words: str = "") -> Ended:
        """How it ended: in at most one sentence."""
        ended = self.start(words).wait()
        assert "Traceback" not in ended.stderr, ended.stderr
        assert ended.code in (0, 1, 2), ended
        beginnings = (self.command.failed, "error: ") if ended.code == 1 else ("error: ",)
        failures = [line for line in ended.printed.splitlines() if line.startswith(beginnings)]
        assert len(failures) == (ended.code != 0), ended
        self.check_files(refused=ended.code == 2)
        return ended

    def check_files(self, refused: bool = False) -> None:
        """What existed before may change only where the command writes, and not if it refused."""
        after = contents(self.folder)
        changed = [name for name, found in self.before.items() if after.get(name) != found]
        assert not (refused and changed)
        touched = {*changed, *after.keys() - self.before.keys()}
        patterns = self.command.writes
        assert not [n for n in touched if not any(fnmatchcase(n, one) for one in patterns)]


def on_a_full_disk(case: Case) -> None:
    mount(case.folder, f"remount,size={shutil.disk_usage(case.folder).used}")
    case.run()


def in_a_read_only_folder(case: Case) -> None:
    mount(case.folder, "remount,ro")
    case.run()


def killed(case: Case) -> None:
    running = case.start()
    time.sleep(random.Random(case.command.words).uniform(0, case.command.seconds))
    running.kill()
    case.check_files()
    assert case.run(case.command.again).code == 0


def started_twice(case: Case) -> None:
    found = [running.wait() for running in (case.start(), case.start())]
    assert not [ended for ended in found if "Traceback" in ended.stderr], found
    codes = {ended.code for ended in found}
    assert 0 in codes and codes <= {0, 2}, found
    case.check_files()


FOREIGN = (
    "run/checkpoint-2.bak/model.safetensors", "run/checkpoint_best.old", "run/notes.txt",
    "run/rollouts/step_final.jsonl", "run/checkpoint-x", "stopped/checkpoint-9.tmp",
    "stopped/rollouts/mine", "new/letter.txt", "runs/thesis.tex", "runs/other/data.csv",
    "runs/studies/notes.txt", "study/.DS_Store", "study/draft.md", "data/README.md",
    "model/.cache/x", ".git/config",
)  # fmt: skip


def beside_foreign_files(case: Case) -> None:
    for name in FOREIGN:
        (case.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (case.folder / name).write_text("not ours")
    assert case.run().code == 0
    for name in FOREIGN:
        assert (case.folder / name).read_text() == "not ours"


FAULTS = (on_a_full_disk, killed, started_twice, beside_foreign_files, in_a_read_only_folder)


def cases():
    """Every command with every fault; all but one of each command are long."""
    for turn, name in enumerate(COMMANDS):
        for number, fault in enumerate(FAULTS):
            marks = () if number == turn % len(FAULTS) else pytest.mark.long
            yield pytest.param(name, fault, marks=marks, id=f"{name} {fault.__name__}")


@pytest.mark.parametrize(("name", "fault"), [*cases()])
def test_a_fault_ends_in_one_sentence_and_changes_nothing_else(name, fault, world, hub, tmp_path):
    case = Case(tmp_path / "world", COMMANDS[name], hub.url if name == "publish" else "")
    if fault in (on_a_full_disk, in_a_read_only_folder):
        mount(case.folder, "size=1g")
    shutil.copytree(world, case.folder, dirs_exist_ok=True)
    try:
        fault(case)
    finally:
        unmount(case.folder)
