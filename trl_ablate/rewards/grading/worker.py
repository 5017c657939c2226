"""The program of a worker process, which compares answers or calls a user's reward function.

It is a plain script, so that it imports neither this package nor torch to compare answers. It loads
what the work needs once (almost a second), then forks: the fork works; the original process, the
watcher, passes requests to it, measures their time, and forks again when the fork has ended. So a
request that hangs costs its deadline and a few milliseconds, not another start. This fork is safe,
unlike one of the training process: there is one thread and no GPU. The deadline of a comparison is
processor time where the system tells it (Linux), so that no verdict depends on the load.

The pool sends a request, the arguments of a call, and gets `(result, whether it timed out, how many
forks were replaced)`; the result is None if there is none. The first message is `"ready"`.

Both processes end with their parent, even if SIGKILL ends it. The watcher checks every second that
its parent is still the same; on Linux the kernel kills the fork once the watcher is gone.
"""

import ctypes
import gc
import logging
import os
import pickle
import resource
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from itertools import count
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, NoReturn

ATTEMPTS = 3  # of a request whose fork, or worker, died
PATIENCE = 20
"""Deadlines for which the clock of a comparison may run, whatever its processor time is."""
COMPARISONS_PER_CACHE_CLEARING = 500
LONGEST_TEXT = 600
OUT_OF_MEMORY = 3  # the exit code of a fork
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

Work = Callable[..., Any]


def comparing() -> Work:
    """Whether math-verify finds an answer and a reference equal."""
    from math_verify import LatexExtractionConfig, parse, verify
    from sympy.core.cache import clear_cache

    config, compared = (LatexExtractionConfig(boxed_match_priority=0),), count(1)

    def parsed(text: str) -> list[Any]:
        # The whole text is parsed as one expression. Searching inside the text would let an answer
        # list several guesses and have one of them picked.
        box = rf"\boxed{{{text}}}"
        return parse(box, config, "no_fallback", extraction_mode="first_match", parsing_timeout=0)

    parsed_gold = lru_cache(2048)(parsed)

    def compare(answer: str, gold: str) -> bool:
        if next(compared) % COMPARISONS_PER_CACHE_CLEARING == 0:
            clear_cache()
        try:
            wanted = parsed_gold(gold)
            given = parsed(answer) if wanted else []
            return bool(given) and bool(
                verify(wanted, given, allow_set_relation_comp=True, timeout_seconds=None)
            )
        except MemoryError:
            raise
        except Exception:  # sympy may raise anything; the two were not shown to be equal
            return False

    for pair in WARM_UP:
        compare(*pair)
    return compare


def rewarding(spec: dict[str, Any]) -> Work:
    """The reward of one row by a user's function: `{"reward": number or null}`, `{"error": text}`
    if it raised, or `{"wrong": text}` if it returned something else than one reward."""
    from trl_ablate.errors import RewardError
    from trl_ablate.named_code import waited_for
    from trl_ablate.reward_specs import GYM_SCORE, RewardSpec
    from trl_ablate.rewards.gym import make_scorers_harmless
    from trl_ablate.rewards.own.calling import LOGS, checked, in_this_process, not_logged
    from trl_ablate.rewards.own.chosen import calls_of

    calls = calls_of(RewardSpec(**spec))
    if spec["path"] == GYM_SCORE:
        make_scorers_harmless()  # imports it, which takes too long for the deadline of a row

    def reward(packed: bytes) -> dict[str, Any]:
        row = {**pickle.loads(packed), **dict.fromkeys(LOGS, not_logged)}
        completion = row["completions"][0] if "completions" in row else None
        try:
            with in_this_process(calls.name, calls.file):
                output = waited_for(calls.function(**calls.arguments(row)))
        except Exception as error:
            return {"error": calls.failure(error, completion)[:LONGEST_TEXT]}
        try:
            return {"reward": checked(calls.name, output, [completion])[0]}
        except RewardError as error:
            return {"wrong": str(error)[:LONGEST_TEXT]}

    return reward


class Watcher:
    """The original process: keeps one fork running while the parent lives."""

    def __init__(
        self,
        pool: Connection,
        work: Work,
        parent: int,
        timeout: float,
        memory_limit: int,
        by_processor: bool,
    ) -> None:
        self._pool, self._work, self._memory_limit = pool, work, memory_limit
        self._parent, self._timeout, self._by_processor = parent, timeout, by_processor
        self._fork()
        signal.signal(signal.SIGTERM, lambda *_: self._quit())

    def run(self) -> None:
        """Answer requests until the parent closes the connection, ends, or sends SIGTERM."""
        with suppress(EOFError, OSError):
            self._pool.send("ready")
            while True:
                self._pool.send(self._answered(self._pool.recv()))
        self._quit()

    def _fork(self) -> None:
        """Start the process that works. It may die at any time, and is then replaced."""
        self._connection, theirs = Pipe()
        self._used = False
        self._pid = os.fork()
        if self._pid == 0:
            self._connection.close()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            if sys.platform == "linux":
                ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            with suppress(ValueError, OSError):  # without a limit (macOS), the deadline protects
                resource.setrlimit(resource.RLIMIT_AS, (self._memory_limit, self._memory_limit))
            try:
                while True:
                    theirs.send(self._work(*theirs.recv()))
            except MemoryError:
                os._exit(OUT_OF_MEMORY)
            except EOFError:
                os._exit(0)
        theirs.close()

    def _end_fork(self) -> int:
        """Kill it; the exit code, or the signal below 0."""
        os.kill(self._pid, signal.SIGKILL)
        self._connection.close()
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])

    def _answered(self, request: tuple[Any, ...]) -> tuple[Any, bool, int]:
        for replaced in range(ATTEMPTS):
            was_used, self._used = self._used, True
            with suppress(OSError):  # it has died, as its connection shows
                self._connection.send(request)
            try:
                return self._result(), False, replaced
            except (EOFError, OSError) as error:  # a TimeoutError is an OSError
                timed_out, code = isinstance(error, TimeoutError), self._end_fork()
                self._fork()
                # If earlier requests used a part of the memory, another fork may have enough.
                if timed_out or (code == OUT_OF_MEMORY and not was_used):
                    return None, timed_out, replaced + 1
        return None, False, ATTEMPTS

    def _result(self) -> Any:
        most = self._timeout * (PATIENCE if self._by_processor else 1)
        end, used = time.monotonic() + most, self._processor_time()
        while (
            end > time.monotonic() and (left := self._timeout + used - self._processor_time()) > 0
        ):
            ready = wait([self._pool, self._connection], min(1.0, left, end - time.monotonic()))
            if self._connection in ready:
                return self._connection.recv()
            if ready or os.getppid() != self._parent:
                self._quit()
        raise TimeoutError

    def _processor_time(self) -> float:
        """Seconds that the fork has used; constant where they do not count."""
        # As clock_getcpuclockid of the C library makes the number of a process's clock
        return time.clock_gettime((~self._pid << 3) | 2) if self._by_processor else 0.0

    def _quit(self) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with suppress(OSError):  # the fork has just ended
            self._end_fork()
        os._exit(0)


def main(pool: str, parent: str, timeout: str, memory_limit: str) -> None:
    """Arguments: the file descriptor of the connection, the parent's process id, seconds, bytes.
    Over the connection comes `{"path": [...], "reward": {...}}` for a user's function, or None for
    math-verify."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to handle
    logging.disable(logging.CRITICAL)
    connection = Connection(int(pool))
    if own := connection.recv():
        sys.path[:] = own["path"]
    work = rewarding(own["reward"]) if own else comparing()
    gc.freeze()  # forks share memory pages until one of the processes writes to them
    os.dup2(1, 2)  # to nowhere, with what math-verify's parser prints about malformed text
    by_processor = not own and sys.platform == "linux"
    Watcher(connection, work, int(parent), float(timeout), int(memory_limit), by_processor).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
