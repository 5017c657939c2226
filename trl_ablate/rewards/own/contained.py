"""Keeps a user's function from ending this program, and from returning in a second process.

A process that the function forks may do work, and ends with this program. One that comes back from
the function would train in the same folder: it is ended, and the next call is an error.
"""

import ctypes
import mmap
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from trl_ablate.errors import REWARD_RAISED, RewardError
from trl_ablate.named_code import line_of, one_line

PR_SET_PDEATHSIG = 1
_END = os._exit
_CAME_BACK = mmap.mmap(-1, 1)
"""A byte that forked processes share with this one."""
_calls = 0
"""How many calls are running."""


@contextmanager
def in_this_process(name: str, file: str | None) -> Iterator[None]:
    """Raise a `RewardError` if the function `name` exits, or has come back in a forked process."""
    global _calls
    own = os.getpid()

    def end(code: int = 0) -> None:
        if os.getpid() == own:
            raise SystemExit(code)
        _END(code)

    os._exit, _calls = end, _calls + 1  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
        if os.getpid() != own:
            _CAME_BACK[0] = 1
    except SystemExit as error:
        if os.getpid() != own:
            _END(error.code if isinstance(error.code, int) else 0 if error.code is None else 1)
        line, where = line_of(error, file)
        sentence = REWARD_RAISED.format(name=name, error=one_line(error), line=line, file=where)
        raise RewardError(sentence) from error
    finally:
        if os.getpid() != own:
            _END(1)
        os._exit, _calls = _END, _calls - 1
    if _CAME_BACK[0]:
        _CAME_BACK[0] = 0
        raise RewardError(
            f"reward function '{name}' forks, and the new process came back from it; end that "
            "process with os._exit, or use multiprocessing, then rerun with --resume"
        )


def _end_with_this_process() -> None:
    if _calls and sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


os.register_at_fork(after_in_child=_end_with_this_process)
