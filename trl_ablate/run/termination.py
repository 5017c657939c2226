"""How a program handles SIGTERM, from its start to its end. No torch.

Schedulers send SIGTERM some time before they kill a process. Where nothing is lost, such as while a
model is loaded, it ends the program at once, as Ctrl-C does. During training it is only noted, and
`Preemption` ends the run after the next optimizer step.

`accelerate launch` with one process passes no SIGTERM on: it ends and leaves the training running.
So a training asks the kernel for a SIGTERM when its launcher ends. It does this only if its parent
is a launcher, by its command line, and not a shell: `nohup python scripts/train.py … &` continues
after the shell has ended. Environment variables are no proof: every process below a launcher, or
below a shell that exports them, has them.
"""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

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
    """Raised at SIGTERM where it ends the program at once."""


class Termination:
    """Whether SIGTERM has come, and whether it ends this program or is only noted there."""

    def __init__(self):
        self.came = False
        self.noted_only = False

    def listen(self) -> "Termination":
        signal.signal(signal.SIGTERM, self._answer)
        return self

    def _answer(self, *_: object) -> None:
        first, self.came = not self.came, True
        if first and not self.noted_only:  # a second one would disturb the shutdown
            raise Terminated


@contextmanager
def held_back() -> Iterator[None]:
    """Ctrl-C and SIGTERM act at the end of the block; a second one acts at once."""
    reach_us = threading.current_thread() is threading.main_thread()
    usual = {
        number: handler
        for number in (signal.SIGINT, signal.SIGTERM)
        if reach_us and callable(handler := signal.getsignal(number))
    }
    came: list[int] = []

    def answer(number: int, frame: Any) -> None:
        came.append(number)
        if len(came) > 1:
            usual[signal.Signals(number)](number, frame)

    for number in usual:
        signal.signal(number, answer)
    try:
        yield
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])


def end_with_launcher() -> None:
    """Have the kernel send SIGTERM to this process when the launcher that started it has ended."""
    parent = os.getppid()
    if sys.platform != "linux" or not is_launcher(_command_line(parent)):
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it ended before prctl was called
        signal.raise_signal(signal.SIGTERM)


def is_launcher(command_line: list[str]) -> bool:
    """Whether a command line is that of a launcher: `python …/torchrun …`, or
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
