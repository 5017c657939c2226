"""One worker process as the training process sees it: started, fed, listened to, killed."""

import json
import os
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

WORKER_SCRIPT = Path(__file__).with_name("worker.py")


class WorkerProcess:
    """A child that runs `worker.py`.

    Started as a script of its own rather than through `multiprocessing`: no fork of a process that
    holds a GPU and threads, and no second run of the user's `__main__`.

    Attributes:
        ready: it has loaded math-verify and takes requests.
        pending: the ids it was sent and has not reported, oldest first; it works on the oldest.
        since: when it began to work on that one (or was started, while it is not ready).
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
        self.ready = False
        self.pending: deque[int] = deque()
        self.since = time.monotonic()

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        """What to wait on for reports."""
        return self._stdout.fileno()

    @property
    def returncode(self) -> int | None:
        """As in `subprocess`: None while it runs, minus the signal that killed it."""
        return self._process.returncode

    def send(self, number: int, answer: str, gold: str) -> bool:
        """Asks for one comparison; False if the worker is gone. Two requests fit into the pipe."""
        line = json.dumps([number, answer, gold]).encode() + b"\n"
        try:
            self._stdin.write(line)
        except (BrokenPipeError, ConnectionResetError):
            return False
        if not self.pending:
            self.since = time.monotonic()
        self.pending.append(number)
        return True

    def receive(self) -> list[tuple[int, bool | None]] | None:
        """The reports that have come in (call when readable); None if the worker has ended."""
        chunk = os.read(self.fileno(), 65536)
        if not chunk:
            return None
        *lines, self._unread = (self._unread + chunk).split(b"\n")
        reports: list[tuple[int, bool | None]] = []
        for line in lines:
            message = json.loads(line)
            if message == "ready":
                self.ready = True
            else:
                reports.append((message[0], message[1]))
                self.pending.remove(message[0])
        self.since = time.monotonic()
        return reports

    def kill(self) -> None:
        """Ends it at once, and waits until the system has taken it away."""
        self._process.kill()
        self._close_pipes()
        self._process.wait()

    def forget(self) -> None:
        """Drops a parent's worker in a forked child, which must neither kill nor wait for it."""
        self._close_pipes()
        self._process.returncode = 0

    def _close_pipes(self) -> None:
        self._stdin.close()
        self._stdout.close()
