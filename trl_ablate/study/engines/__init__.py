"""Where a run's process is started. An engine has slots, and starts one job in one of them.

local        processes of this machine
ray          tasks of a Ray cluster (`ray_tasks`)
modal        calls of a function on Modal, which continue when the runner leaves (`modal_calls`)
slurm        an array job, whose tasks each do one run with `local`
shipping     what `ray` and `modal` share: a run that travels, and its way back into the store

Each of the first four has `add_options(group)`, its options on the command line, and
`make(options, plan)`, the engine.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

PROGRAM = ("-m", "trl_ablate", "train")
"""What the Python of any machine is to run; the arguments follow."""
TRAIN = (sys.executable, *PROGRAM)
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
SECONDS_TO_END = 20.0


@dataclass(frozen=True)
class Job:
    """One run to start."""

    words: Sequence[str]
    """Arguments of `trl-ablate train`, the output folder aside."""
    directory: Path
    log: Path
    lock: int
    """Descriptor of the run's lock, which a process of this machine inherits."""
    away: Path
    """Where an engine whose runs outlive the runner notes how to find this one again."""


class Process(Protocol):
    """A started job."""

    def poll(self) -> int | None:
        """The exit code (minus the signal that killed it), or None while it runs. Once there is
        a code, the directory and the log are as the run left them."""
        ...

    def wait(self) -> int:
        """Wait for it to end by itself; the exit code."""
        ...

    def ask_to_end(self) -> None:
        """Ask it to stop, as Ctrl-C does; returns at once."""
        ...

    def ask_to_save(self) -> None:
        """Ask it to save and stop, as SIGTERM does, or as Ctrl-C where nothing of it is kept;
        returns at once."""
        ...

    def end(self, patience: float = SECONDS_TO_END) -> None:
        """Wait that many seconds for it to stop, or, if it was asked to save and `patience` is not
        0, for as long as it takes; then see to it that nothing of it touches the store any more. A
        run that is away is let go instead, as its note says how to find it."""
        ...


class Engine(Protocol):
    """Starts jobs; `slots` of them may run at once."""

    in_place: bool
    """Whether runs are done in the store's own folders, and can go on from what is there."""

    @property
    def slots(self) -> int: ...

    def start(self, job: Job, slot: int) -> Process: ...
