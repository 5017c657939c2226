"""One worker as the training process sees it: started, asked, listened to, killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

WORKER_SCRIPT = Path(__file__).with_name("worker.py")
_SECONDS_TO_QUIT = 2.0


class WorkerProcess:
    """A child that runs `worker.py`, and the one comparison it is at.

    Started as a script of its own rather than through `multiprocessing`: no fork of a process that
    holds a GPU and threads, and no second run of the user's `__main__`.

    Attributes:
        ready: it has loaded math-verify and takes a request.
        item: what it is comparing, as the caller numbered it; None while idle.
        since: when it was given that (or was started or restarted, while it is not ready).
        started: it has been ready at least once.
        exit_code: how its last fork ended.
    """

    def __init__(self, timeout: float, memory_limit: int) -> None:
        arguments = [str(os.getpid()), str(timeout), str(memory_limit)]
        # One hash seed for all workers: sympy's orders, and so its verdicts, depend on it.
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        self._process = subprocess.Popen(
            [sys.executable, str(WORKER_SCRIPT), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            bufsize=0,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._stdin = self._process.stdin
        self._stdout = self._process.stdout
        self._unread = b""
        self._ticket = 0
        self._restarting = False
        self.ready = False
        self.started = False
        self.item: int | None = None
        self.since = time.monotonic()
        self.exit_code: int | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        """What to wait on for reports."""
        return self._stdout.fileno()

    def ask(self, item: int, answer: str, gold: str) -> bool:
        """Asks for one comparison; False if the worker is gone. A request fits into the pipe."""
        self._ticket += 1
        line = json.dumps([self._ticket, answer, gold]).encode() + b"\n"
        try:
            self._stdin.write(line)
        except (BrokenPipeError, ConnectionResetError):
            return False
        self.item = item
        self.since = time.monotonic()
        return True

    def listen(self) -> list[tuple[int, bool | None] | None] | None:
        """What it has to say (call when readable): verdicts, and a None for each unexpected death.

        None instead of a list: the worker is gone for good. An item whose worker died stays in
        `item` until it is asked about again.
        """
        chunk = os.read(self.fileno(), 65536)
        if not chunk:
            return None
        *lines, self._unread = (self._unread + chunk).split(b"\n")
        return [event for line in lines for event in self._take_in(json.loads(line))]

    def _take_in(self, message: list[Any]) -> list[tuple[int, bool | None] | None]:
        self.since = time.monotonic()
        if message[0] == "ready":
            self.ready = self.started = True
        elif message[0] == "ended":
            self.ready = False
            self.exit_code = message[1]
            expected, self._restarting = self._restarting, False
            return [] if expected else [None]
        elif message[0] == self._ticket and self.item is not None:
            item, self.item = self.item, None
            return [(item, message[1])]
        return []

    def restart(self) -> None:
        """Has the comparison at work killed; a fresh fork reports ready within milliseconds."""
        self._restarting = True
        self.ready = False
        self.item = None
        self.since = time.monotonic()
        self._process.send_signal(signal.SIGUSR1)

    def ask_to_quit(self) -> None:
        """Begins the end; `end` waits for it."""
        self._process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """Ends it, and waits until the system has taken it away."""
        self.ask_to_quit()
        try:
            self._process.wait(_SECONDS_TO_QUIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._close_pipes()

    def forget(self) -> None:
        """Drops a parent's worker in a forked child, which must neither kill nor wait for it."""
        self._close_pipes()
        self._process.returncode = 0

    def _close_pipes(self) -> None:
        self._stdin.close()
        self._stdout.close()
