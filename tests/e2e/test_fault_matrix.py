"""Every command × every fault: an exit code, at most one sentence, and no other file changed.

A case copies a small world (a model, data, a finished and an interrupted run, a study), breaks one
thing in it, and starts one command. The slow tests try one case in `TRL_ABLATE_MATRIX` (14) of all,
and with 1 every case.
"""

import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.folders import contents, mount, shared_once, unmount
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

MODEL = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
INPUTS = (
    *(f"model/{name}" for name in MODEL), "data/train.jsonl", "data/validation.jsonl",
    "recipe.yaml",
)  # fmt: skip
CHECKPOINT = tuple(f"run/checkpoint_last/{name}" for name in MODEL)
RECORDS = ("run.json", "metrics.jsonl", "resolved_config.json")
STUDIED = ("study/study.yaml", "recipe.yaml", "runs/studies/study.json")


@dataclass(frozen=True)
class Command:
    """A command line in the world's folder, the files that it reads, and what it may write."""

    words: str
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    again: str = ""
    """The words that finish it after a kill, where they are others."""
    seconds: float = 0.5
    """About how long it takes: a kill comes before that."""
    failed: str = "error: "
    """How it begins the line that reports a failure."""


OWN = ("*.json", "*.jsonl", "README.md", "rollouts/*", ".*", "checkpoint_*", "checkpoint-[0-9]*/*")

COMMANDS = {
    "train": Command(
        "train recipe.yaml --profile miniature --output_dir new", INPUTS, ("new/*",),
        seconds=5, again="train recipe.yaml --profile miniature --output_dir new --overwrite",
    ),
    "overwrite": Command(
        "train recipe.yaml --profile miniature --output_dir run --overwrite", INPUTS,
        tuple(f"run/{name}" for name in OWN), seconds=5,
    ),
    "resume": Command(
        "train recipe.yaml --profile miniature --output_dir stopped --resume",
        (*INPUTS, *(f"stopped/{name}" for name in RECORDS)),
        tuple(f"stopped/{name}" for name in OWN), seconds=4,
    ),
    "evaluate": Command(
        "evaluate run --dataset data --output scores.json",
        (*CHECKPOINT, "run/resolved_config.json", "data/validation.jsonl"),
        ("scores.json", "scores*.jsonl"), seconds=3,
    ),
    "rates": Command(
        "evaluate run --dataset data --per_question rates.jsonl", ("data/validation.jsonl",),
        ("rates.jsonl",), seconds=3,
    ),
    "check": Command(
        "check recipe.yaml --profile miniature --questions 8",
        ("recipe.yaml", "data/train.jsonl", "data/validation.jsonl", "model/tokenizer.json",
         "model/tokenizer_config.json"), seconds=2, failed="problem: ",
    ),
    "new": Command("new task", (), ("task/*", "other/*", ".new-*/*"), again="new other"),
    "publish": Command("publish run", (*CHECKPOINT, *(f"run/{name}" for name in RECORDS))),
    "plan": Command("study plan study", STUDIED, ("runs/studies/*",)),
    "run": Command("study run study", STUDIED, ("runs/*",), seconds=15, failed="failed: "),
    "status": Command("study status study", STUDIED, ("runs/studies/*",)),
    "report": Command(
        "study report study", STUDIED,
        ("study/REPORT.md", "study/report.html", "study/report.json", "study/*.csv", "study/*.png",
         "study/*.svg", "runs/studies/*"), seconds=3,
    ),
    "clean": Command("study clean study --checkpoints --yes", STUDIED, ("runs/*",)),
    "doctor": Command(
        "doctor recipe.yaml --profile miniature", ("recipe.yaml",), failed="cannot run here"
    ),
    "recipes": Command("recipes"),
    "bench": Command(
        "bench reward --answers answers.jsonl --count 8 --rounds 1 --workers 1 --output bench.json",
        ("answers.jsonl",), ("bench.json",), seconds=3,
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


def make_world(folder: Path) -> None:
    model_and_data(folder)
    (folder / "recipe.yaml").write_text(RECIPE)
    (folder / "other.yaml").write_text(f"{RECIPE}scale_rewards: none\n")
    write_jsonl(folder / "answers.jsonl", [{"answer": str(number)} for number in range(8)])
    (folder / "study").mkdir()
    (folder / "study" / "study.yaml").write_text(STUDY)
    for words in (COMMANDS["train"].words, COMMANDS["run"].words):
        ended = start(folder, words).wait()
        assert ended.code == 0, ended.stderr
    (folder / "new").rename(folder / "run")
    first, *_ = sorted((folder / "runs").glob("*/run.json"))
    shutil.rmtree(first.parent)
    stop_after_a_checkpoint(folder)


def stop_after_a_checkpoint(folder: Path) -> None:
    training = start(folder, COMMANDS["train"].words)
    training.wait_for((folder / "new" / "checkpoint-2" / "trainer_state.json").exists)
    training.send(signal.SIGKILL)
    training.wait()
    (folder / "new" / MARK).unlink()
    (folder / "new").rename(folder / "stopped")


class Case:
    """One command in its own copy of the world."""

    def __init__(self, folder: Path, name: str, hub: str):
        self.folder, self.command = folder / "world", COMMANDS[name]
        self.hub = hub if name == "publish" else ""
        self.before: dict[str, str] = {}

    def start(self, words: str = "") -> Running:
        return start(self.folder, words or self.command.words, self.hub)

    def watch(self) -> None:
        """From here on, only what the command writes may change."""
        self.before = contents(self.folder)

    def run(self) -> Ended:
        ended = self.start().wait()
        self.check(ended)
        return ended

    def check(self, ended: Ended) -> None:
        assert "Traceback" not in ended.stderr, ended.stderr
        assert ended.code in (0, 1, 2), ended
        beginnings = (self.command.failed, "error: ") if ended.code == 1 else ("error: ",)
        failures = [line for line in ended.printed.splitlines() if line.startswith(beginnings)]
        assert len(failures) == (ended.code != 0), ended
        self.check_files(refused=ended.code == 2)

    def check_files(self, refused: bool = False) -> None:
        """What existed before may change only where the command writes, and not if it refused."""
        after = contents(self.folder)
        changed = [name for name, found in self.before.items() if after.get(name) != found]
        assert not (refused and changed)
        touched = {*changed, *after.keys() - self.before.keys()}
        patterns = self.command.writes
        assert not [n for n in touched if not any(fnmatchcase(n, one) for one in patterns)]


DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": lambda file: file.unlink(),
    "truncated": lambda file: os.truncate(file, file.stat().st_size // 2),
    "empty": lambda file: os.truncate(file, 0),
    "wrong_shape": lambda file: file.write_text("[3]\n"),  # valid JSON, JSONL and YAML; no object
}


def damaged(case: Case, file: str, damage: str) -> None:
    DAMAGES[damage](case.folder / file)
    case.watch()
    case.run()


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
    case.watch()
    assert case.run().code == 0
    for name in FOREIGN:
        assert (case.folder / name).read_text() == "not ours"


def in_a_read_only_folder(case: Case) -> None:
    case.watch()
    mount(case.folder, "remount,ro")
    case.run()


def on_a_full_disk(case: Case) -> None:
    used = shutil.disk_usage(case.folder).used
    mount(case.folder, f"remount,size={used}")
    case.watch()
    case.run()


def killed(case: Case, seed: int) -> None:
    case.watch()
    running = case.start()
    time.sleep(random.Random(seed).uniform(0, case.command.seconds))
    running.kill()
    case.check_files()
    again = case.start(case.command.again).wait()
    assert again.code == 0, again
    case.check(again)


def started_twice(case: Case) -> None:
    case.watch()
    both = [case.start(), case.start()]
    found = [running.wait() for running in both]
    assert not [ended for ended in found if "Traceback" in ended.stderr], found
    codes = {ended.code for ended in found}
    assert 0 in codes and codes <= {0, 2}, found
    case.check_files()


ON_A_DISK = (in_a_read_only_folder, on_a_full_disk)
EVERY = int(os.environ.get("TRL_ABLATE_MATRIX", "14"))


def chosen() -> list[Any]:
    """One in `EVERY` of all cases."""
    found = [pytest.param(name, fault, id=f"{name}-{how}") for name, fault, how in cases()]
    random.Random(0).shuffle(found)
    return found[::EVERY]


def cases() -> Iterator[tuple[str, Callable[[Case], object], str]]:
    """Every case: its command, its fault, and its name."""
    for name, command in COMMANDS.items():
        for fault in (beside_foreign_files, *ON_A_DISK, started_twice):
            yield name, fault, fault.__name__
        for seed in range(3):
            yield name, partial(killed, seed=seed), f"killed-{seed}"
        for file in command.reads:
            for damage in DAMAGES:
                yield name, partial(damaged, file=file, damage=damage), f"{damage}-{file}"


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    return shared_once(tmp_path_factory, "matrix", make_world)


@pytest.fixture(scope="module")
def hub():
    with HubEndpoint(tokens={TOKEN: "owner"}) as endpoint:
        yield endpoint


@pytest.mark.parametrize(("command", "fault"), chosen())
def test_a_fault_ends_in_one_sentence_and_changes_nothing_else(
    command, fault, world, hub, tmp_path
):
    case = Case(tmp_path, command, hub.url)
    if fault in ON_A_DISK:
        mount(case.folder, "size=1g")
    shutil.copytree(world, case.folder, dirs_exist_ok=True)
    try:
        fault(case)
    finally:
        unmount(case.folder)
