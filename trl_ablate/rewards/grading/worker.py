"""The program of a grader's child process: run math-verify, one comparison at a time.

`WorkerProcess` starts it as a plain script. The training process never imports it, and it imports
neither this package nor torch. It loads and warms up math-verify once (almost a second), then
forks: the fork compares; the original process, the watcher, forks again when the fork has ended.
So a comparison that hangs costs its deadline and a few milliseconds, not another start. This fork
is safe, unlike a fork of the training process: there is one thread and no GPU.

Protocol: one JSON document per line (ASCII, so that null bytes and lone surrogates are safe).
Input: `[ticket, answer, gold]`. Output: `["ready"]` from each new fork; `[ticket, true | false |
null]` for a request, where null means that the comparison ran out of memory; `["ended", code]`
when a fork has ended. SIGUSR1 kills the fork, SIGTERM ends both processes.

Both processes end with their parent, even if SIGKILL ends it. The watcher notices that the pipe
was closed, and checks every second that its parent is still the same. On Linux the kernel kills
the fork together with the watcher; an idle fork also checks for its watcher every second. For each
comparison the fork sets a kernel alarm, whose default action does not need Python.
"""

import ctypes
import gc
import json
import logging
import os
import resource
import select
import signal
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, Protocol

ALARM_GRACE_SECONDS = 2.0
CACHED_GOLDS = 2048
COMPARISONS_PER_CACHE_CLEARING = 500
OUT_OF_MEMORY_EXIT = 3
PR_SET_PDEATHSIG = 1

WARM_UP = (
    (r"\frac{1}{2}x+\sqrt{3}", r"\frac{x}{2}+3^{\frac12}"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1\\3\end{pmatrix}"),
    (r"[1,2)\cup(3,\infty)", r"[1,2)\cup(4,\infty)"),
    (r"x=2^{-3}, y=\pi", r"0.125, 3.14"),
    (r"\sin 30^\circ", r"x^2+y^2=1"),
    (r"\frac{2x-7}{(x+1)(x-2)}", r"\frac{x-3\sqrt{x-2}}{4}"),
    (r"(3,\frac{\pi}{2},-1)", r"\{-1,0\}"),
    (r"-2\leq x<7", r"f(x)>12_3"),
    (r"\text{A}", r"3\sqrt{5}+2\pi"),
    (r"\log_2 8", r"5!+\binom{5}{2}"),
)


class Work(Protocol):
    """What a fork does with a request."""

    def warm_up(self) -> None: ...

    compare: Callable[..., Any]


class Comparer:
    """math-verify with a bounded cache of parsed reference answers."""

    def __init__(self) -> None:
        from math_verify import LatexExtractionConfig, parse, verify
        from sympy.core.cache import clear_cache

        self._config = (LatexExtractionConfig(boxed_match_priority=0),)
        self._parse = parse
        self._verify = verify
        self._clear_cache = clear_cache
        self._golds: OrderedDict[str, list[Any]] = OrderedDict()
        self._comparisons = 0

    def warm_up(self) -> None:
        for answer, gold in WARM_UP:
            self.compare(answer, gold)

    def compare(self, answer: str, gold: str) -> bool:
        """Whether math-verify finds the two equal; an answer that it cannot parse is not equal."""
        self._comparisons += 1
        if self._comparisons % COMPARISONS_PER_CACHE_CLEARING == 0:
            self._clear_cache()
        parsed_gold = self._parsed_gold(gold)
        parsed_answer = self._parsed(answer) if parsed_gold else []
        if not parsed_answer:
            return False
        return bool(
            self._verify(
                parsed_gold, parsed_answer, allow_set_relation_comp=True, timeout_seconds=None
            )
        )

    def _parsed_gold(self, gold: str) -> list[Any]:
        if gold not in self._golds:
            if len(self._golds) >= CACHED_GOLDS:
                self._golds.popitem(last=False)
            self._golds[gold] = self._parsed(gold)
        self._golds.move_to_end(gold)
        return self._golds[gold]

    def _parsed(self, text: str) -> list[Any]:
        # The whole text is parsed as one expression. Searching inside the text would let an answer
        # list several guesses and have one of them picked.
        return self._parse(
            rf"\boxed{{{text}}}", self._config, fallback_mode="no_fallback", parsing_timeout=0
        )


def address_space() -> int:
    """Bytes of address space of this process; 0 where the system does not report it."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 0


class Watcher:
    """The original process: keeps one fork running while the parent lives."""

    def __init__(
        self, comparer: Work, reports: int, parent: int, timeout: float, memory_limit: int
    ) -> None:
        self._reports = reports
        self._parent = parent
        self._timeout = timeout
        self._memory_limit = memory_limit
        self._comparer = comparer
        self._fork = 0

    def run(self) -> None:
        """Run until the parent closes the pipe, ends, or sends SIGTERM."""
        self._comparer.warm_up()
        gc.freeze()  # forks share memory pages until one of the processes writes to them
        # Discard what math-verify's parser prints about malformed text.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        signal.signal(signal.SIGUSR1, lambda *_: self._kill_fork())
        signal.signal(signal.SIGTERM, lambda *_: self._quit())
        while True:
            code = self._watch_one_fork()
            self._discard_requests()
            report(self._reports, ["ended", code])

    def _watch_one_fork(self) -> int:
        """Fork, wait for the fork to end, return its exit code (if killed, minus the signal)."""
        lifeline, held_by_fork = os.pipe()
        watcher = os.getpid()
        self._fork = os.fork()
        if self._fork == 0:
            os.close(lifeline)
            Fork(self._comparer, self._reports, watcher).serve(self._timeout, self._memory_limit)
            os._exit(0)
        os.close(held_by_fork)
        poll = select.poll()
        poll.register(0, 0)  # no event mask: reports only a hang-up
        poll.register(lifeline, 0)
        while lifeline not in (ended := [number for number, _ in poll.poll(1000)]):
            if ended or os.getppid() != self._parent:
                self._quit()
        os.close(lifeline)
        fork, self._fork = self._fork, 0
        return os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])

    def _kill_fork(self) -> None:
        if self._fork:
            os.kill(self._fork, signal.SIGKILL)

    def _quit(self) -> None:
        if self._fork:
            os.kill(self._fork, signal.SIGKILL)
            os.waitpid(self._fork, 0)
        os._exit(0)

    def _discard_requests(self) -> None:
        """Drop requests that the fork did not read; the parent resends when a fork is ready."""
        while select.select([0], [], [], 0)[0]:
            if not os.read(0, 65536):
                self._quit()


class Fork:
    """The process that compares. It may die at any time; the watcher replaces it."""

    def __init__(self, comparer: Work, reports: int, watcher: int) -> None:
        self._comparer = comparer
        self._reports = reports
        self._watcher = watcher

    def serve(self, timeout: float, memory_limit: int) -> None:
        """Answer requests until the pipe closes or memory runs out."""
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        die_with_parent()
        limit_memory(memory_limit)
        report(self._reports, ["ready"])
        for ticket, *request in self._requests():
            signal.setitimer(signal.ITIMER_REAL, timeout + ALARM_GRACE_SECONDS)
            verdict = self._compare(*request, memory_limit=memory_limit)
            signal.setitimer(signal.ITIMER_REAL, 0)
            report(self._reports, [ticket, verdict])
            if verdict is None:
                return

    def _compare(self, *request: str, memory_limit: int) -> Any:
        before = address_space()
        try:
            return self._comparer.compare(*request)
        except MemoryError:
            # If half of the memory was used before, earlier comparisons may be the cause. Exit
            # without a report; the parent then sends the same comparison to a new fork.
            if before > memory_limit // 2:
                os._exit(OUT_OF_MEMORY_EXIT)
            return None
        except Exception:  # sympy may raise anything; the two were not shown to be equal
            return False

    def _requests(self) -> Iterator[list[Any]]:
        """The parent's requests, until it closes the pipe or the watcher ends."""
        pending = b""
        while os.getppid() == self._watcher:
            if not select.select([0], [], [], 1.0)[0]:
                continue
            chunk = os.read(0, 65536)
            if not chunk:
                return
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                try:
                    request = json.loads(line)
                except ValueError:  # the rest of a request whose start an earlier fork has read
                    continue
                if isinstance(request, list):
                    yield request


def report(reports: int, message: list[Any]) -> None:
    """Write one line. Such a short line is written atomically, even if another process writes."""
    os.write(reports, json.dumps(message).encode() + b"\n")


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the one that forked it ends (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def limit_memory(limit: int) -> None:
    """Limit the address space. Without that limit (macOS), only the deadline protects."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    except (ValueError, OSError):
        logging.getLogger(__name__).debug("this system cannot limit the address space")


def main(arguments: list[str], work: Callable[[], Work] = Comparer) -> None:
    """Arguments: the parent's process id, the timeout in seconds, the memory limit in bytes."""
    parent, timeout, memory_limit = int(arguments[0]), float(arguments[1]), int(arguments[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to handle
    logging.disable(logging.CRITICAL)
    reports = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    Watcher(work(), reports, parent, timeout, memory_limit).run()


if __name__ == "__main__":
    sys.path.pop(0)  # this file's folder, added by Python: its modules must not be imported
    main(sys.argv[1:])
