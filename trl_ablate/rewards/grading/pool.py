"""Worker processes that answer requests, whatever a request does to them."""

import os
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Pipe, wait
from pathlib import Path
from typing import Any

from trl_ablate.rewards.grading.worker import ATTEMPTS, PATIENCE

WORKER_SCRIPT = Path(__file__).with_name("worker.py")
_FAILED_STARTS = 3
_GRACE_SECONDS = 5.0
"""Beyond what the worker itself allows a request: then it hangs or was stopped."""
_SECONDS_TO_QUIT = 2.0


@dataclass
class Outcome:
    """The result of one request: the worker's verdict, or None and whether it timed out."""

    verdict: Any = None
    timed_out: bool = False
    attempts: int = 0


class Worker:
    """A child process that runs `worker.py`, and the request that it is working on.

    It is started as a separate script and not with `multiprocessing`, which would fork a process
    that uses a GPU and threads, or run the user's `__main__` a second time.
    """

    def __init__(self, arguments: Sequence[str], own: Any, start_timeout: float) -> None:
        self.connection, theirs = Pipe()
        number = theirs.fileno()
        # One hash seed for all workers: the order of sympy's sets, and so verdicts, depend on it.
        # The script's own folder must not hide modules (-P).
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(WORKER_SCRIPT), str(number), str(os.getpid()), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONHASHSEED": "0"},
            pass_fds=[number],
        )
        theirs.close()
        with suppress(OSError):  # it has ended, as the connection will show
            self.connection.send(own)  # may have secrets, which a command line would show
        self.ready = False
        self.item: int | None = None
        self.deadline = time.monotonic() + start_timeout

    def end(self) -> None:
        """End the worker and wait until the system has reaped it."""
        self.process.terminate()
        try:
            self.process.wait(_SECONDS_TO_QUIT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.connection.close()


class WorkerPool:
    """Worker processes that answer one batch at a time. They start with the first requests: each
    takes a second or two of CPU time to load sympy, and many trainings never need one.

    A pool belongs to the process that created it: a forked child must create its own.

    Attributes:
        own: what the workers call, if not math-verify; see `worker.py`.
        restarts: number of workers, or of their forks, that were replaced so far.
    """

    def __init__(
        self,
        size: int,
        timeout: float,
        memory_limit: int,
        start_timeout: float,
        own: Mapping[str, Any] | None = None,
    ) -> None:
        self.restarts = 0
        self.owner = os.getpid()
        self.lock = threading.RLock()
        self._size, self._start_timeout = size, start_timeout
        self._allowed = ATTEMPTS * timeout * (1 if own else PATIENCE) + _GRACE_SECONDS
        self._arguments, self._own = (str(timeout), str(memory_limit)), own
        self._failed_starts = 0
        self._workers: list[Worker] = []
        # Runs at `close`, at interpreter exit or when the pool is collected, whichever is first.
        self.close = weakref.finalize(self, _end, self._workers, self.owner)

    @property
    def pids(self) -> list[int]:
        return [worker.process.pid for worker in self._workers]

    def run(self, requests: Sequence[Sequence[Any]]) -> list[Outcome]:
        """The outcome of each request, such as (answer, gold); returns when all are known."""
        outcomes = [Outcome() for _ in requests]
        queue = deque(range(len(requests)))
        with self.lock:
            try:
                while left := len(queue) + sum(one.item is not None for one in self._workers):
                    while len(self._workers) < min(self._size, left):
                        worker = Worker(self._arguments, self._own, self._start_timeout)
                        self._workers.append(worker)
                    for worker in self._workers:
                        if worker.ready and worker.item is None and queue:
                            worker.item = queue.popleft()
                            worker.deadline = time.monotonic() + self._allowed
                            with suppress(OSError):  # it has ended, as its connection will show
                                worker.connection.send(requests[worker.item])
                    for item, report in self._reports():
                        outcome = outcomes[item]
                        if report is not None:
                            outcome.verdict, outcome.timed_out, forks = report
                            self.restarts += forks
                            continue
                        outcome.attempts += 1
                        if outcome.attempts < ATTEMPTS:
                            queue.appendleft(item)
            except BaseException:
                _end(self._workers, self.owner)  # or the next batch would receive their reports
                raise
        return outcomes

    def _reports(self) -> Iterator[tuple[int, Any]]:
        """What workers report of their items; None of one that ended or missed its deadline."""
        busy = [one for one in self._workers if one.item is not None or not one.ready]
        patience = max(0.0, min(worker.deadline for worker in busy) - time.monotonic())
        reported = wait([worker.connection for worker in busy], patience)
        for worker in busy:
            report = None
            if worker.connection in reported:
                with suppress(EOFError, OSError):
                    report = worker.connection.recv()
            elif worker.deadline > time.monotonic():
                continue
            if report is None:
                self._remove(worker)
            elif report == "ready":
                worker.ready, self._failed_starts = True, 0
                continue
            item, worker.item = worker.item, None
            if item is not None:
                yield item, report

    def _remove(self, worker: Worker) -> None:
        """End a worker; raise if the last few did not even get ready."""
        self._workers.remove(worker)
        worker.end()
        self.restarts += 1
        self._failed_starts += not worker.ready
        if self._failed_starts >= _FAILED_STARTS:
            self._failed_starts = 0
            raise RuntimeError(
                f"{_FAILED_STARTS} grader processes in a row ended before they were ready, or took "
                f"longer than {self._start_timeout:g} s; see their output above, check that "
                "math-verify, or what your own reward imports, is installed for this Python, and "
                "that the machine has processor time left."
            )


def _end(workers: list[Worker], owner: int) -> None:
    if os.getpid() != owner:
        return
    for worker in workers:
        worker.process.terminate()
    while workers:
        workers.pop().end()
