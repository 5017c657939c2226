"""A real terminal of 80 columns, in which a forked process prints."""

import fcntl
import os
import pty
import re
import struct
import sys
import termios
import traceback
from collections.abc import Callable
from contextlib import suppress

CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def in_terminal(act: Callable[[], object]) -> list[str]:
    """What the function prints, line by line; a line that is drawn again is there each time."""
    process, terminal = pty.fork()
    if process == 0:
        _be_in_terminal(act)
    written = b""
    with suppress(OSError):  # Linux ends a terminal without processes with an error
        while part := os.read(terminal, 65536):
            written += part
    os.close(terminal)
    text = CONTROLS.sub("", written.decode())
    assert os.waitpid(process, 0)[1] == 0, text
    return re.split(r"\r*\n|\r", text)


def _be_in_terminal(act: Callable[[], object]) -> None:
    try:
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            os.environ.pop(name, None)
        os.environ["TERM"] = "xterm"
        with os.fdopen(1, "w", closefd=False) as sys.stdout:
            act()
        os._exit(0)
    except BaseException:
        os.write(2, traceback.format_exc().encode())
        os._exit(1)
