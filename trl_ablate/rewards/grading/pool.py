"""Scheduling of comparisons over worker processes: assign, receive, kill, replace, repeat."""

import math
import os
import signal
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

from trl_ablate.rewards.grading.process import WorkerProcess

_ATTEMPTS = 3  # a comparison whose worker died is retried at most twice
_FAILED_STARTS = 3


@dataclass
class Outcome:
    """The result of one request: the worker's verdict, or None and whether it timed out."""

    verdict: Any = None
    timed_out: bool = False
    attempts: int = 0


class WorkerPool:
    """Worker processes that compare one batch at a time. They start with the first requests: each
    takes a second or two of CPU time to load sympy, and many trainings never need one.

    `program` is the script that the workers run, and its further arguments; by default the one
    that compares answers. A pool belongs to the process that created it: a forked child must call
    `abandon_to_parent` and create its own.

    Attributes:
        restarts: number of workers that were replaced so far.
    """

    def __init__(
        self,
        size: int,
        timeout: float,
        memory_limit: int,
        start_timeout: float,
        program: Sequence[str] = (),
    ) -> None:
        self.restarts = 0
        self.owner = os.getpid()
        self._size = size
        self._timeout = timeout
        self._memory_limit = memory_limit
        self._start_timeout = start_timeout
        self._program = program
        self._failed_starts = 0
        self._lock = threading.Lock()
        self._workers: list[WorkerProcess] = []
        # Runs at `close`, at interpreter exit or when the pool is collected, whichever is first.
        self.close = weakref.finalize(self, _end, self._workers, self.owner)

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers]

    def _start(self, requests: int) -> None:
        """Start missing workers, at most one for each request; do not wait until they are ready."""
        while len(self._workers) < min(self._size, requests):
            self._workers.append(WorkerProcess(self._timeout, self._memory_limit, self._program))

    def run(self, pairs: Sequence[tuple[str, ...]]) -> list[Outcome]:
        """The outcome of each request, such as (answer, gold); returns when all are known."""
        if not pairs:
            return []
        with self._lock:
            batch = _Batch(pairs)
            try:
                self._start(batch.unfinished)
                while batch.unfinished:
                    self._hand_out(batch)
                    self._listen(batch)
            except BaseException:
                _end(self._workers, self.owner)  # or the next batch would receive their reports
                raise
            return batch.outcomes

    def abandon_to_parent(self) -> None:
        """In a forked child: forget the parent's workers without ending them."""
        for worker in self._workers:
            worker.forget()
        self._workers.clear()

    def _hand_out(self, batch: "_Batch") -> None:
        for worker in list(self._workers):
            if worker.ready and worker.item is None and batch.queue:
                item = batch.queue.popleft()
                if not worker.ask(item, *batch.pairs[item]):
                    batch.queue.appendleft(item)
                    self._replace(worker, batch)

    def _listen(self, batch: "_Batch") -> None:
        """Receive reports, then replace workers that missed their deadline."""
        now = time.monotonic()
        patience = min(self._deadline(worker) for worker in self._workers) - now
        pipes = [worker.fileno() for worker in self._workers]
        readable = wait(pipes, None if math.isinf(patience) else max(0.0, patience))
        for worker in list(self._workers):
            if worker.fileno() in readable:
                self._take_in(worker, batch)
            elif self._deadline(worker) <= now:
                self._replace_hung(worker, batch)

    def _deadline(self, worker: WorkerProcess) -> float:
        if not worker.ready:
            return worker.since + self._start_timeout
        return math.inf if worker.item is None else worker.since + self._timeout

    def _take_in(self, worker: WorkerProcess, batch: "_Batch") -> None:
        events = worker.listen()
        if events is None:
            self._replace(worker, batch)
            return
        for event in events:
            if event is not None:
                batch.settle(*event)
            else:
                self.restarts += 1
                self._recover(worker, batch)

    def _recover(self, worker: WorkerProcess, batch: "_Batch") -> None:
        """Time out or retry the item that the worker was comparing when it died."""
        item, worker.item = worker.item, None
        if item is None:
            return
        if worker.exit_code == -signal.SIGALRM:  # its own alarm came before our deadline
            batch.time_out(item)
        else:
            batch.try_again(item)

    def _replace_hung(self, worker: WorkerProcess, batch: "_Batch") -> None:
        if worker.item is None:
            self._replace(worker, batch)
        else:
            batch.time_out(worker.item)
            worker.restart()
            self.restarts += 1

    def _replace(self, worker: WorkerProcess, batch: "_Batch") -> None:
        """Replace a worker that ended; raise if the last few did not even get ready."""
        self._recover(worker, batch)
        self._failed_starts = 0 if worker.started else self._failed_starts + 1
        self._workers.remove(worker)
        worker.end()
        if self._failed_starts >= _FAILED_STARTS:
            self._failed_starts = 0
            raise RuntimeError(
                f"{_FAILED_STARTS} grader processes in a row ended before they were ready, or took "
                f"longer than {self._start_timeout:g} s; see their output above, check that "
                "math-verify, or what your own reward imports, is installed for this Python, and "
                "that the machine has processor time left."
            )
        self.restarts += 1
        self._start(batch.unfinished)


class _Batch:
    """The comparisons of one call: waiting and done."""

    def __init__(self, pairs: Sequence[tuple[str, ...]]) -> None:
        self.pairs = pairs
        self.outcomes = [Outcome() for _ in pairs]
        self.queue = deque(range(len(pairs)))
        self.unfinished = len(pairs)

    def settle(self, number: int, verdict: Any) -> None:
        self.outcomes[number].verdict = verdict
        self.unfinished -= 1

    def time_out(self, number: int) -> None:
        self.outcomes[number].timed_out = True
        self.unfinished -= 1

    def try_again(self, number: int) -> None:
        self.outcomes[number].attempts += 1
        if self.outcomes[number].attempts < _ATTEMPTS:
            self.queue.appendleft(number)
        else:
            self.unfinished -= 1


def _end(workers: list[WorkerProcess], owner: int) -> None:
    if os.getpid() != owner:
        return
    for worker in workers:
        worker.ask_to_quit()
    while workers:
        workers.pop().end()
