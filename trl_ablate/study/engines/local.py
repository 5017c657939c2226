"""This machine: one process per free GPU, or on the CPU one process for each core if the runs are
of the miniature, whose arithmetic is too small to share, else one; or as many as `--jobs` asks for.

On the CPU, runs are forked from a process that has already imported their modules (`warm`), and
start in tenths of a second. A run on a GPU starts a new interpreter: libraries access the GPU while
they are imported, and then a process cannot be forked. Such runs take hours, so the seconds do not
matter.
"""

import math
import os
import runpy
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from trl_ablate.recipe.places import PACKAGE
from trl_ablate.run.identity import cores
from trl_ablate.study.engines import SECONDS_TO_END, TRAIN, Job, Process, threads_of_run
from trl_ablate.study.engines.warm import IMPORTS_OF_A_TRAINING as IMPORTS
from trl_ablate.study.engines.warm import SUPPORTED, ForkServer, WarmProcess
from trl_ablate.study.planned import Plan

MOST_AT_ONCE = 8
"""Runs on a CPU, unless `--jobs` asks for more: each takes up to a GiB of memory."""
FREE_SHARE = 0.05
"""A GPU of whose memory less than this is in use counts as free."""


def make(options: Namespace, plan: Plan) -> "LocalEngine":
    return LocalEngine(options.jobs, on_gpu=plan.for_gpu, of_one_core=plan.of_one_core)


class LocalEngine:
    """Processes of this machine.

    Args:
        jobs: how many at once; None: one per free GPU; without a GPU one, or one per core.
        on_gpu: whether the runs need a GPU. Slots take the free GPUs in turn.
        of_one_core: whether a run is too small to use more than one core.
        command: the command of a training, without its arguments; the interpreter is first.
        warm: modules to import once for all runs; None: every run is a new interpreter.
    """

    name, in_place = "local", True

    def __init__(
        self,
        jobs: int | None = None,
        *,
        on_gpu: bool = False,
        of_one_core: bool = False,
        command: Sequence[str] = TRAIN,
        warm: Sequence[str] | None = IMPORTS,
    ):
        self._gpus = free_gpus() if on_gpu else []
        self.slots = jobs or len(self._gpus) or (min(MOST_AT_ONCE, cores()) if of_one_core else 1)
        self._threads = threads_of_run(max(1, (1 if of_one_core else cores()) // self.slots))
        self._command = command
        self._imports = warm if SUPPORTED and not on_gpu else None
        self._server: ForkServer | None = None
        self._code = 0.0

    def start(self, job: Job, slot: int) -> "LocalProcess":
        words = [*self._command[1:], *job.words, "--output_dir", str(job.directory)]
        with job.log.open("ab") as log:
            if self._imports is not None:
                outputs = {"stdout": log.fileno(), "stderr": log.fileno()}
                with suppress(ConnectionError):  # the server was killed: this run starts cold
                    server = self._server_of(self._imports)
                    return LocalProcess(server.start(interpret, words, **outputs, keep=[job.lock]))
            gpu = {}
            if self._gpus:  # numbers of nvidia-smi; CUDA counts in another order by itself
                index = self._gpus[slot % len(self._gpus)]
                gpu = {"CUDA_VISIBLE_DEVICES": index, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
            return LocalProcess(subprocess.Popen(
                [self._command[0], *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, **self._threads, **gpu}, pass_fds=(job.lock,),
                start_new_session=True,  # Ctrl-C reaches only the runner, which ends its runs
            ))  # fmt: skip

    def _server_of(self, modules: Sequence[str]) -> ForkServer:
        """The fork server. It starts with the first run, and again if it was killed or the code has
        changed: a run's record describes the code on the disk. All slots share its environment."""
        files = filter(Path.is_file, PACKAGE.rglob("*.py"))  # an editor's lock is a broken link
        change = max(file.stat().st_mtime for file in files)
        if self._server is None or self._server.has_ended() or self._code != change:
            self._code = change
            environment = {**os.environ, **self._threads, "CUDA_VISIBLE_DEVICES": ""}
            self._server = ForkServer(modules, environment)
        return self._server


def interpret(words: list[str]) -> None:
    """Run `-m MODULE …` or `SCRIPT …` in a forked process, as the interpreter would."""
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")


class LocalProcess(Process):
    """A process that leads its own group."""

    def __init__(self, popen: subprocess.Popen | WarmProcess):
        self._popen, self._saves = popen, False

    def poll(self) -> int | None:
        return self._popen.poll()

    def wait(self) -> int:
        """Wait until it ends by itself; returns the exit code."""
        return self._popen.wait()

    def ask_to_end(self) -> None:
        self._popen.send_signal(signal.SIGINT)

    def ask_to_save(self) -> None:
        self._saves = True
        self._popen.send_signal(signal.SIGTERM)

    def end(self, patience: float = SECONDS_TO_END) -> None:
        """Kill the whole group: a training process may have left workers behind."""
        until = time.monotonic() + (math.inf if self._saves and patience else patience)
        while self.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        with suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        self.wait()


def free_gpus() -> list[str]:
    """Indices of the unused GPUs among those that CUDA_VISIBLE_DEVICES allows."""
    query = [
        "nvidia-smi",
        "--query-gpu=index,memory.used,memory.total",
        "--format=csv,noheader,nounits",
    ]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [line.split(", ") for line in answer.stdout.splitlines() if line]
    free = [index for index, *memory in rows if _is_free(*memory)]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return free
    words = (word.strip() for word in visible.split(","))
    return [index for index in words if index in free or not index.isdigit()]


def _is_free(used: str, total: str) -> bool:
    """Whether so little is in use; a GPU whose memory cannot be read counts as free."""
    try:
        return float(used) < FREE_SHARE * float(total)
    except ValueError:
        return True
