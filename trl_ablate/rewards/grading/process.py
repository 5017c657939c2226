"""The training process's handle on one worker: start it, send requests, read reports, kill it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

WORKER_SCRIPT = Path(__file__).with_name("worker.py")
_SECONDS_TO_QUIT = 2.0


class WorkerProcess:
    """A child process that runs `worker.py` or `program`, and the request it is working on.

    It is started as a separate script and not with `multiprocessing`, which would fork a process
    that uses a GPU and threads, or run the user's `__main__` a second time.

    Attributes:
        ready: whether it has loaded math-verify and accepts a request.
        item: the caller's number of the current request; None while idle.
        since: when that request was sent; while not ready, when the worker was (re)started.
        started: whether it has been ready at least once.
        exit_code: exit code of its last fork.
    """

    def __init__(self, timeout: float, memory_limit: int, program: Sequence[str] = ()) -> None:
        script, *more = program or (str(WORKER_SCRIPT),)
        arguments = [str(os.getpid()), str(timeout), str(memory_limit), *more]
        # One hash seed for all workers: the order of sympy's sets, and so verdicts, depend on it.
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        self._process = subprocess.Popen(
            [sys.executable, script, *arguments],
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
        """The file descriptor on which reports arrive."""
        return self._stdout.fileno()

    def ask(self, item: int, *request: str) -> bool:
        """Send one request, such as an answer and a gold answer; False if the worker has ended."""
        self._ticket += 1
        line = memoryview(json.dumps([self._ticket, *request]).encode() + b"\n")
        try:
            while line:
                line = line[self._stdin.write(line) or 0 :]
        except (BrokenPipeError, ConnectionResetError):
            return False
        self.item = item
        self.since = time.monotonic()
        return True

    def listen(self) -> list[tuple[int, Any] | None] | None:
        """Read reports (call when readable): verdicts, and a None for each unexpected fork death.

        Returns None instead of a list if the worker itself has ended. If a fork dies, its item
        stays in `item` until the next request.
        """
        chunk = os.read(self.fileno(), 65536)
        if not chunk:
            return None
        *lines, self._unread = (self._unread + chunk).split(b"\n")
        return [event for line in lines for event in self._take_in(json.loads(line))]

    def _take_in(self, message: list[Any]) -> list[tuple[int, Any] | None]:
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
        """Kill the current comparison; a new fork reports ready within milliseconds."""
        self._restarting = True
        self.ready = False
        self.item = None
        self.since = time.monotonic()
        self._process.send_signal(signal.SIGUSR1)

    def ask_to_quit(self) -> None:
        """Send SIGTERM without waiting; `end` waits."""
        self._process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """End the worker and wait until the system has reaped it."""
        self.ask_to_quit()
        try:
            self._process.wait(_SECONDS_TO_QUIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._close_pipes()

    def forget(self) -> None:
        """In a forked child: drop the parent's worker without killing it or waiting for it."""
        self._close_pipes()
        self._process.returncode = 0

    def _close_pipes(self) -> None:
        self._stdin.close()
        self._stdout.close()
