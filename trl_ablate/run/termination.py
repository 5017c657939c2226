"""SIGTERM, from the first moment of a program to its last. No torch.

Schedulers send it some time before they kill. Where nothing is lost by it, as while a model is
being loaded, it ends the program at once, as Ctrl-C does. In training it is only noted, and
`preemption.py` ends the run behind the next optimizer step.

A launcher hands it on or not: `torchrun` does, and kills what has not ended after 30 seconds;
`accelerate launch` with one process ends and leaves the training to itself. So a training asks the
kernel for a SIGTERM when its launcher ends. It does so only where its parent is a launcher, and not
a shell: `nohup python scripts/train.py … &` goes on when the shell has ended. What the parent is
stands in its command line; the variables that launchers set are no proof, since whatever is started
below a launcher, or below a shell that exports them, has them too.
"""

import ctypes
import os
import signal
import sys
from itertools import pairwise
from pathlib import Path

LAUNCHERS = ("accelerate", "accelerate-launch", "torchrun", "deepspeed")
LAUNCHER_MODULES = (
    "accelerate.commands.launch",
    "accelerate.commands.accelerate_cli",
    "deepspeed.launcher.launch",
    "torch.distributed.launch",
    "torch.distributed.run",
)
PR_SET_PDEATHSIG = 1


class Terminated(KeyboardInterrupt):
    """SIGTERM, where it ends the program at once."""


class Termination:
    """What SIGTERM does to this program: it ends it, or is only noted.

    Attributes:
        came: whether there was one.
        noted_only: whether the program goes on, having to look at `came` itself.
    """

    def __init__(self):
        self.came = False
        self.noted_only = False

    def listen(self) -> "Termination":
        """Be what answers the signal from now on."""
        signal.signal(signal.SIGTERM, self._answer)
        return self

    def _answer(self, *_: object) -> None:
        first, self.came = not self.came, True
        if first and not self.noted_only:  # a second one would disturb the end that has begun
            raise Terminated


def end_with_launcher() -> None:
    """Have the kernel send SIGTERM to this process when the launcher that started it has ended."""
    parent = os.getppid()
    if sys.platform != "linux" or not is_launcher(_command_line(parent)):
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it has ended before the kernel knew
        signal.raise_signal(signal.SIGTERM)


def is_launcher(command_line: list[str]) -> bool:
    """Whether a program starts trainings and is answerable for them: `python …/torchrun …`, or
    `python -m torch.distributed.run …`."""
    scripts = {Path(word).name for word in command_line[:3]}
    modules = {word for flag, word in pairwise(command_line) if flag == "-m"}
    return not scripts.isdisjoint(LAUNCHERS) or not modules.isdisjoint(LAUNCHER_MODULES)


def _command_line(pid: int) -> list[str]:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []
    return [os.fsdecode(word) for word in words[:-1]]
