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

from trl_ablate.run.identity import cores
from trl_ablate.study.engines import SECONDS_TO_END, THREAD_VARIABLES, TRAIN, Job
from trl_ablate.study.engines.warm import IMPORTS_OF_A_TRAINING as IMPORTS
from trl_ablate.study.engines.warm import SUPPORTED, ForkServer, WarmProcess
from trl_ablate.study.planned import Plan

PACKAGE = Path(__file__).resolve().parents[2]
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
        most = min(MOST_AT_ONCE, cores()) if of_one_core else 1
        self._of_one_core = of_one_core
        self.slots = jobs or len(self._gpus) or most
        self._command = command
        self._imports = warm or ()
        self._forks = warm is not None and SUPPORTED and not on_gpu
        self._server: ForkServer | None = None
        self._code = 0.0

    def start(self, job: Job, slot: int) -> "LocalProcess":
        words = [*self._command[1:], *job.words, "--output_dir", str(job.directory)]
        environment = {**os.environ, **self._share_of_the_machine(slot)}
        with job.log.open("ab") as log:
            if self._forks:
                server = self._server_with(environment)
                process = server.start(
                    interpret, words, stdout=log.fileno(), stderr=log.fileno(), keep=[job.lock]
                )
            else:
                process = subprocess.Popen(
                    [self._command[0], *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    env=environment, pass_fds=(job.lock,),
                    start_new_session=True,  # Ctrl-C reaches only the runner, which ends its runs
                )  # fmt: skip
            return LocalProcess(process)

    def _server_with(self, environment: dict[str, str]) -> ForkServer:
        """The fork server. It starts with the first run, and again if it was killed or the code has
        changed. All slots share its environment; none has a GPU."""
        if self._server is None or self._server.has_ended() or self._code != newest_change():
            self._code = newest_change()
            self._server = ForkServer(self._imports, {**environment, "CUDA_VISIBLE_DEVICES": ""})
        return self._server

    def _share_of_the_machine(self, slot: int) -> dict[str, str]:
        """Environment variables: a share of the CPU threads, unless they are set, and a GPU."""
        own = 1 if self._of_one_core else cores()
        threads = str(max(1, own // self.slots))
        shares = {name: threads for name in THREAD_VARIABLES if name not in os.environ}
        if self._gpus:
            shares["CUDA_VISIBLE_DEVICES"] = self._gpus[slot % len(self._gpus)]
        return shares


def newest_change() -> float:
    """Time of the last change of a file of this package. A run's record describes the code on the
    disk, so a server that has imported older code must not start the run."""
    return max(file.stat().st_mtime for file in PACKAGE.rglob("*.py"))


def interpret(words: list[str]) -> None:
    """Run `-m MODULE …` or `SCRIPT …` in a forked process, as the interpreter would."""
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")


class LocalProcess:
    """A process that leads its own group."""

    def __init__(self, popen: subprocess.Popen | WarmProcess):
        self._popen, self._saves = popen, False
        self.poll, self.wait = popen.poll, popen.wait

    def ask_to_end(self) -> None:
        if self.poll() is None:
            self._popen.send_signal(signal.SIGINT)

    def ask_to_save(self) -> None:
        self._saves = True
        if self.poll() is None:
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
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return []
    if answer.returncode != 0:
        return []
    rows = [line.split(", ") for line in answer.stdout.splitlines() if line]
    free = [index for index, *memory in rows if _is_free(*memory)]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return free
    return [index for index in visible.split(",") if index in free or not index.isdigit()]


def _is_free(used: str, total: str) -> bool:
    """Whether so little is in use; a GPU whose memory cannot be read counts as free."""
    try:
        return float(used) < FREE_SHARE * float(total)
    except ValueError:
        return True
