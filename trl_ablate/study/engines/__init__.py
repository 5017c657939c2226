"""Engines start the processes of runs. An engine has slots, and starts one job per slot.

local        processes of this machine, forked on a CPU (`warm`)
ray          tasks of a Ray cluster
modal        calls of a function on Modal, which continue when the runner leaves
hf_jobs      Hugging Face Jobs, which continue, too
slurm        an array job; each task does one run with `local`
shipping     send a run away and copy its results back; calls that outlive the runner

Each except `slurm` has `make(options, plan)`, which creates the engine; `cli/engines` has the
options.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

PROGRAM = ("-m", "trl_ablate", "train")
"""Arguments for the Python of any machine; those of the run follow."""
TRAIN = (sys.executable, *PROGRAM)
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
SECONDS_TO_END = 20.0


def threads_of_run(cores: int) -> dict[str, str]:
    """Variables of a run's environment: the user's numbers of threads, or one for each core. What
    is not set is OpenMP's number, as the libraries do it: PyTorch listens to MKL's first."""
    count = os.environ.get("OMP_NUM_THREADS", str(cores))
    return {name: os.environ.get(name, count) for name in THREAD_VARIABLES}


@dataclass(frozen=True)
class Job:
    """One run to start.

    Attributes:
        words: arguments of `trl-ablate train`, without the output folder.
        lock: descriptor of the run's lock, which a process of this machine inherits.
        away: the file in which an engine whose runs outlive the runner records how to find it.
    """

    words: Sequence[str]
    directory: Path
    log: Path
    lock: int
    away: Path


class Process(Protocol):
    """A started job."""

    def poll(self) -> int | None:
        """The exit code (minus the signal that killed it), or None while it runs. When
        it returns a code, the directory and the log are complete."""
        ...

    def ask_to_end(self) -> None:
        """Ask it to stop, as Ctrl-C does; returns at once."""
        ...

    def ask_to_save(self) -> None:
        """Ask it to save and stop, as SIGTERM does; returns at once. An engine that does not keep
        the files of a stopped run only asks it to stop."""
        self.ask_to_end()

    def end(self, patience: float = SECONDS_TO_END) -> None:
        """Wait `patience` seconds for it to stop; if it was asked to save and `patience` is not 0,
        wait until it stops. Then ensure that it no longer writes to the store. A run on a remote
        service is left running instead; its note records how to find it."""
        ...


class Engine(Protocol):
    """Starts jobs; `slots` of them may run at once. `name` is that of `--engine`; `in_place`:
    whether runs work in the store's own folders, and can continue from the files there."""

    name: str
    in_place: bool

    @property
    def slots(self) -> int: ...

    def start(self, job: Job, slot: int) -> Process: ...
