"""This machine: one process per free GPU, or one on the CPU unless more are asked for.

On the CPU runs are forked from a process that has imported what they need (`warm`), and start in
tenths of a second. A run on a GPU starts cold: libraries look at the GPU while they are imported,
and a process that has cannot be forked; its hours make up for the seconds.
"""

import math
import os
import runpy
import signal
import subprocess
import sys
import time
from argparse import Namespace, _ArgumentGroup
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from trl_ablate.study.engines import SECONDS_TO_END, THREAD_VARIABLES, TRAIN, Job
from trl_ablate.study.engines.warm import IMPORTS_OF_A_TRAINING, SUPPORTED, ForkServer
from trl_ablate.study.plan import Plan

FREE_SHARE = 0.05
"""A GPU of whose memory less than this is in use counts as free."""


def add_options(group: _ArgumentGroup) -> None:
    """None but `--jobs`, which every engine has."""


def make(options: Namespace, plan: Plan) -> "LocalEngine":
    return LocalEngine(options.jobs, on_gpu=plan.for_gpu)


class LocalEngine:
    """Processes of this machine.

    Args:
        jobs: how many at once; None: one per free GPU, or one without a GPU.
        on_gpu: whether the runs want a GPU. Slots take the free GPUs in turn.
        command: what starts a training, the interpreter first; the arguments follow.
        warm: modules to import once for all runs; None: start every run cold.
    """

    in_place = True

    def __init__(
        self,
        jobs: int | None = None,
        *,
        on_gpu: bool = False,
        command: Sequence[str] = TRAIN,
        warm: Sequence[str] | None = IMPORTS_OF_A_TRAINING,
    ):
        self._gpus = free_gpus() if on_gpu else []
        self._slots = jobs or max(1, len(self._gpus))
        self._command = command
        self._warm = warm if SUPPORTED and not on_gpu else None
        self._server: ForkServer | None = None

    @property
    def slots(self) -> int:
        return self._slots

    def start(self, job: Job, slot: int) -> "LocalProcess":
        words = [*job.words, "--output_dir", str(job.directory)]
        environment = {**os.environ, **self._share_of_the_machine(slot)}
        with job.log.open("ab") as log:
            if self._warm is not None:
                return LocalProcess(self._fork(self._warm, words, environment, log.fileno(), job))
            popen = subprocess.Popen(
                [*self._command, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                pass_fds=(job.lock,),
                start_new_session=True,  # Ctrl-C reaches the runner alone, which then ends its runs
            )
        return LocalProcess(popen)

    def _fork(
        self, modules: Sequence[str], words: list[str], environment: dict[str, str], log: int,
        job: Job,
    ) -> "Started":  # fmt: skip
        """A process of the fork server, which is started with the first run, and anew where it was
        killed. All slots have one environment, as none has a GPU."""
        if self._server is None or self._server.has_ended():
            hidden = {"CUDA_VISIBLE_DEVICES": ""}
            self._server = ForkServer(modules, {**environment, **hidden})
        return self._server.start(
            interpret, [*self._command[1:], *words], stdout=log, stderr=log, keep=[job.lock]
        )

    def _share_of_the_machine(self, slot: int) -> dict[str, str]:
        """CPU threads so that all slots fill the cores, unless they are set already; and a GPU."""
        cores = len(os.sched_getaffinity(0))
        threads = str(max(1, cores // self._slots))
        shares = {name: threads for name in THREAD_VARIABLES if name not in os.environ}
        if self._gpus:
            shares["CUDA_VISIBLE_DEVICES"] = self._gpus[slot % len(self._gpus)]
        return shares


def interpret(words: list[str]) -> None:
    """In a forked process: what the interpreter does with `-m MODULE …` or with `SCRIPT …`."""
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")


class Started(Protocol):
    """What `subprocess.Popen` and `WarmProcess` have in common."""

    pid: int

    def poll(self) -> int | None: ...

    def wait(self) -> int: ...

    def send_signal(self, number: int, /) -> None: ...


class LocalProcess:
    """A process that leads its own group."""

    def __init__(self, popen: Started):
        self._popen = popen
        self._saves = False

    def poll(self) -> int | None:
        return self._popen.poll()

    def wait(self) -> int:
        return self._popen.wait()

    def ask_to_end(self) -> None:
        if self._popen.poll() is None:
            self._popen.send_signal(signal.SIGINT)

    def ask_to_save(self) -> None:
        self._saves = True
        if self._popen.poll() is None:
            self._popen.send_signal(signal.SIGTERM)

    def end(self, patience: float = SECONDS_TO_END) -> None:
        """The group is killed whole: a training process may have left workers behind."""
        until = time.monotonic() + (math.inf if self._saves and patience else patience)
        while self._popen.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        with suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait()


def free_gpus() -> list[str]:
    """Indices of the GPUs that nobody uses, of those that CUDA_VISIBLE_DEVICES lets us see."""
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
    rows = [
        [cell.strip() for cell in line.split(",")] for line in answer.stdout.splitlines() if line
    ]
    free = [index for index, used, total in rows if float(used) < FREE_SHARE * float(total)]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return free
    return [index for index in visible.split(",") if index in free or not index.isdigit()]
