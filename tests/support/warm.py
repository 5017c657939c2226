"""Commands of the package in real processes, forked from a process that has imported torch.

A start takes tenths of a second instead of eight seconds. The mechanism is that of local studies,
so that signals, exit codes, descriptors and `kill -9` work as for any process.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

from tests.conftest import REPOSITORY
from trl_ablate import load_recipe, miniature
from trl_ablate.rewards.grading.pool import Outcome, WorkerPool
from trl_ablate.run.json_files import write_jsonl
from trl_ablate.study.engines.warm import IMPORTS_OF_A_TRAINING, ForkServer, WarmProcess

SMALL = [
    "recipes/std_dev_off.yaml", "--profile", "miniature", "--generation_batch_size", "16",
    "--optimizer_batch_size", "16", "--per_device_train_batch_size", "16", "--eval_size", "16",
    "--grader_workers", "1", "--grader_timeout", "60", "--train_size", "64", "--report_to", "none",
]  # fmt: skip
"""A training of small steps that saves and evaluates; intervals and length are to be added."""

SIZES = ("generation_batch_size", "optimizer_batch_size", "per_device_train_batch_size")
PATIENCE = 300
IMPORTS = (
    *IMPORTS_OF_A_TRAINING, "trl_ablate.cli.evaluate", "trl_ablate.training.evaluating",
    "tests.support.warmed",
)  # fmt: skip


@dataclass(frozen=True)
class Ended:
    """How a process ended, and what it printed."""

    code: int
    stdout: str
    stderr: str

    @property
    def printed(self) -> str:
        return self.stdout + self.stderr

    @property
    def error(self) -> str:
        """The one sentence that reports an error, where there is no traceback."""
        assert "Traceback" not in self.printed, self.printed
        (line,) = [line for line in self.stderr.splitlines() if line.startswith("error: ")]
        return line.removeprefix("error: ")


class Running:
    """A process that has been started."""

    def __init__(self, process: WarmProcess, folder: Path):
        self._process, self._folder = process, folder

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds, or the process has ended."""
        deadline = time.monotonic() + PATIENCE
        while self.alive and not condition():
            assert time.monotonic() < deadline, "it never came to that"
            time.sleep(0.02)

    def wait(self) -> Ended:
        try:
            code = self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the process hangs\n{self.ended(-signal.SIGKILL)}") from None
        return self.ended(code)

    def kill(self) -> None:
        """Kill the process, and all processes of its group."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def ended(self, code: int) -> Ended:
        return Ended(code, *((self._folder / name).read_text() for name in ("stdout", "stderr")))


def warm(
    command: str,
    *words: object,
    sabotage: Callable[[], object] | None = None,
    environment: Mapping[str, str] | None = None,
    with_graders: bool = False,
) -> Running:
    """A command of the package, such as `train`, started with these words.

    Args:
        sabotage: called in the process first; a function of a module, or a `partial` of one.
        environment: set in the process; libraries that were imported before do not see it.
        with_graders: the grader's processes start with the run, as if an answer needed algebra; for
            tests about them.
    """
    words = tuple(str(word) for word in words)
    return fork(_command, command, words, sabotage, environment or {}, with_graders)


def by_script(*words: str) -> Ended:
    """A training by the README's own command in a new interpreter, as vLLM's engine needs."""
    done = subprocess.run(
        [sys.executable, "scripts/train.py", *words],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=900,
        env={**os.environ, "VLLM_NO_USAGE_STATS": "1"},
    )  # fmt: skip
    return Ended(done.returncode, done.stdout, done.stderr)


def smaller(arm: str, profile: str, by: int) -> list[str]:
    """Smaller sizes that keep the number of microbatches and of optimizer steps of a rollout
    batch, of a group or more."""
    config = load_recipe(REPOSITORY / "recipes" / f"{arm}.yaml", profile).config
    by = min(by, config.generation_batch_size // config.num_generations)
    return [word for size in SIZES for word in (f"--{size}", str(getattr(config, size) // by))]


def grade_without_processes() -> None:
    """In this process, answers that need algebra are wrong: a worker takes seconds to start, and
    such an answer of the miniature is no number. A `sabotage` for tests of something else."""
    WorkerPool.run = lambda self, requests: [Outcome(False) for _ in requests]


def fork(target: Callable[..., int | None], *arguments: object) -> Running:
    """A process that does `target(*arguments)`, which are pickled."""
    folder = Path(tempfile.mkdtemp(dir=_logs().name))
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        process = _server().start(target, *arguments, stdout=out.fileno(), stderr=err.fileno())
    return Running(process, folder)


def model_and_data(folder: Path) -> tuple[Path, Path]:
    """The miniature and its sums as separate files, enough for `SMALL`."""
    model, data = folder / "model", folder / "data"
    shutil.copytree(miniature.build("sft_final", progress=False), model)
    data.mkdir()
    for split, size in (("train", 64), ("validation", 16)):
        write_jsonl(data / f"{split}.jsonl", miniature.problems(split, size, 0))
    return model, data


@cache
def _server() -> ForkServer:
    """The fork server, one per test process. It finds the tests' functions by their names."""
    path = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
    return ForkServer(IMPORTS, {**os.environ, "PYTHONPATH": path})


@cache
def _logs() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="warm-")


def _command(
    command: str,
    words: Sequence[str],
    sabotage: Callable[[], object] | None,
    environment: Mapping[str, str],
    with_graders: bool,
) -> None:
    os.chdir(REPOSITORY)
    os.environ.update(environment)
    if with_graders:
        import_module("tests.support.warmed").start_graders_at_once()
    if sabotage:
        sabotage()
    sys.argv = [f"trl-ablate {command}", *words]
    sys.exit(import_module(f"trl_ablate.cli.{command}").main(list(words)))
