"""`scripts/train.py` in real processes that need not import torch: forked from one that has.

A start costs tenths of a second in place of eight. Nothing but imports has happened in the process
forked from, and no thread runs in it.
"""

import gc
import multiprocessing
import os
import runpy
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trl_ablate import miniature
from trl_ablate.run.files import write_jsonl

SMALL = [
    "recipes/std_dev_off.yaml", "--profile", "miniature", "--generation_batch_size", "16",
    "--optimizer_batch_size", "16", "--per_device_train_batch_size", "16", "--eval_size", "16",
    "--grader_workers", "1", "--grader_timeout", "60", "--train_size", "64", "--report_to", "none",
]  # fmt: skip
"""A training of small steps that saves and evaluates; how often and how long is left to say."""

PATIENCE = 300
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(
    [
        "trl_ablate.training.building",
        "trl_ablate.training.callbacks",
        "trl_ablate.run.masking",
        "trl_ablate.recipe.resolving",
    ]
)


@dataclass(frozen=True)
class Ended:
    """How a training ended, and what it said."""

    code: int
    stdout: str
    stderr: str


class Training:
    """A training that has been started; `sabotage` is called in its process first."""

    def __init__(self, words: list[str], folder: Path, sabotage: Callable[[], None] | None = None):
        self._logs = folder / "stdout", folder / "stderr"
        self._process = _SERVER.Process(target=_train, args=(words, *self._logs, sabotage))
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def send(self, number: signal.Signals) -> None:
        if self.alive:
            os.kill(self.pid, number)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Until it holds, or the training has ended."""
        deadline = time.monotonic() + PATIENCE
        while self.alive and not condition():
            assert time.monotonic() < deadline, "it never came to that"
            time.sleep(0.02)

    def wait(self) -> Ended:
        self._process.join(PATIENCE)
        if self.alive:
            self._process.kill()
            self._process.join()
            raise AssertionError("the training hangs\n" + "\n".join(map(_text, self._logs)))
        assert self._process.exitcode is not None
        return Ended(self._process.exitcode, *map(_text, self._logs))


def model_and_data(folder: Path) -> tuple[Path, Path]:
    """The miniature and its sums as files of one's own, enough for `SMALL`."""
    model, data = folder / "model", folder / "data"
    shutil.copytree(miniature.build("sft_final", progress=False), model)
    data.mkdir()
    for split, size in (("train", 64), ("validation", 16)):
        write_jsonl(data / f"{split}.jsonl", miniature.problems(split, size, 0))
    return model, data


def _text(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def _train(words: list[str], stdout: Path, stderr: Path, sabotage: Callable[[], None] | None):
    gc.freeze()  # what was imported before is nobody's garbage
    for file, number in ((stdout, 1), (stderr, 2)):
        os.dup2(os.open(file, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), number)
    if sabotage:
        sabotage()
    sys.argv = ["scripts/train.py", *words]
    runpy.run_path("scripts/train.py", run_name="__main__")
