"""This machine: one process per free GPU, or one on the CPU unless more are asked for."""

import math
import os
import signal
import subprocess
import time
from argparse import Namespace, _ArgumentGroup
from collections.abc import Sequence
from contextlib import suppress

from trl_ablate.study.engines import SECONDS_TO_END, THREAD_VARIABLES, TRAIN, Job
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
        command: what starts a training; the arguments follow.
    """

    in_place = True

    def __init__(
        self,
        jobs: int | None = None,
        *,
        on_gpu: bool = False,
        command: Sequence[str] = TRAIN,
    ):
        self._gpus = free_gpus() if on_gpu else []
        self._slots = jobs or max(1, len(self._gpus))
        self._command = command

    @property
    def slots(self) -> int:
        return self._slots

    def start(self, job: Job, slot: int) -> "LocalProcess":
        environment = {**os.environ, **self._share_of_the_machine(slot)}
        with job.log.open("ab") as log:
            popen = subprocess.Popen(
                [*self._command, *job.words, "--output_dir", str(job.directory)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                pass_fds=(job.lock,),
                start_new_session=True,  # Ctrl-C reaches the runner alone, which then ends its runs
            )
        return LocalProcess(popen)

    def _share_of_the_machine(self, slot: int) -> dict[str, str]:
        """CPU threads so that all slots fill the cores, unless they are set already; and a GPU."""
        cores = len(os.sched_getaffinity(0))
        threads = str(max(1, cores // self._slots))
        shares = {name: threads for name in THREAD_VARIABLES if name not in os.environ}
        if self._gpus:
            shares["CUDA_VISIBLE_DEVICES"] = self._gpus[slot % len(self._gpus)]
        return shares


class LocalProcess:
    """A child that leads its own process group."""

    def __init__(self, popen: subprocess.Popen):
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
