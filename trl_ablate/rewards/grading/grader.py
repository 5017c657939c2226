"""A grader with a pool of math-verify processes that survives any model output.

An answer cannot hang the grader, crash it or make it leak memory. math-verify's own timeout is not
used, on purpose: it is a signal in the main thread, which some inputs ignore and other threads do
not get. Instead another process measures the time and kills the one that is too slow.
"""

import os
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, get_args

from trl_ablate.errors import ConfigurationError
from trl_ablate.rewards.grading.exact import cheap_verdict, for_algebra
from trl_ablate.rewards.grading.pool import WorkerPool
from trl_ablate.rewards.grading.reading import read

OnTimeout = Literal["none", "zero"]

_CACHED = 8192
MAX_LENGTH = 1000
"""Answers with more characters are wrong, unless they equal the reference answer. The longest of
those in MATH has 159. A much longer text is not an answer but an attack on the parser; it must not
be ungraded, as that would exclude it from the loss. A reference answer that is too long is compared
as text only; any other answer to it is ungraded."""


class MathGrader:
    """Compares answers with reference answers; algebra runs in worker processes.

    Use it as a context manager or call `close()`. The workers also end when this process ends, for
    any reason. `grade` may be called from any thread; one batch is graded at a time.

    Args:
        workers: processes at most. They start when answers need algebra; each uses about 60 MiB.
        timeout: seconds that one comparison may take; a slower worker is killed and replaced.
        on_timeout: an item that timed out or crashed its workers is ungraded (`"none"`: None) or
            wrong (`"zero"`: False).
        memory_limit_mb: of a worker's address space.
        start_timeout: seconds that a worker may take to load math-verify.

    Attributes:
        timeouts, ungraded: items so far that timed out, and that could not be decided.
    """

    def __init__(
        self,
        workers: int = 2,
        timeout: float = 1.0,
        *,
        on_timeout: OnTimeout = "none",
        memory_limit_mb: int = 1024,
        start_timeout: float = 60.0,
    ) -> None:
        known = get_args(OnTimeout)
        for right, name, value, fix in (
            (workers >= 1, "workers", workers, "give 1 or more"),
            (timeout > 0, "timeout", timeout, "give seconds above 0"),
            (on_timeout in known, "on_timeout", on_timeout, f"choose one of {', '.join(known)}"),
        ):
            if not right:
                raise ConfigurationError(f"{name}={value!r} is not possible; {fix}.")
        self.timeout = timeout
        self.timeouts = self.ungraded = 0
        self._without_verdict = None if on_timeout == "none" else False
        self._pool_settings = (workers, timeout, memory_limit_mb * 2**20, start_timeout)
        self._pool = WorkerPool(*self._pool_settings)
        self._closed = False
        self._verdicts: dict[tuple[str, str], bool] = {}
        self._read = lru_cache(_CACHED)(read)

    def __enter__(self) -> "MathGrader":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def restarts(self) -> int:
        """Number of workers that were replaced so far."""
        return self._pool.restarts

    @property
    def pids(self) -> list[int]:
        """The process ids of the current workers."""
        return self._pool.pids

    def close(self) -> None:
        """End the workers. After this, `grade` raises an error."""
        self._closed = True
        self._pool.close()

    def grade(self, answers: Sequence[str | None], golds: Sequence[str]) -> list[bool | None]:
        """One verdict per pair: True (right), False (wrong), or None (ungraded).

        An answer of None (nothing was extracted) is wrong. Equal pairs are compared once.
        """
        if self._closed:
            raise RuntimeError("this MathGrader is closed")
        pairs = [
            (None if answer is None else answer.strip(), str(gold).strip())
            for answer, gold in zip(answers, golds, strict=True)
        ]
        if self._pool.owner != os.getpid():  # forked: these workers, and a held lock, are others'
            self._pool = WorkerPool(*self._pool_settings)
        with self._pool.lock:
            decided = {pair: self._decided(*pair) for pair in pairs}
            compare = [
                (answer, gold)
                for (answer, gold), verdict in decided.items()
                if answer is not None and verdict is None and len(gold) <= MAX_LENGTH
            ]
            outcomes = self._pool.run(
                [for_algebra(self._read(answer), self._read(gold)) for answer, gold in compare]
            )
            for pair, outcome in zip(compare, outcomes, strict=True):
                decided[pair] = outcome.verdict
                self.timeouts += outcome.timed_out * pairs.count(pair)
                if outcome.verdict is not None:
                    self._verdicts[pair] = outcome.verdict
                    if len(self._verdicts) > _CACHED:
                        self._verdicts.pop(next(iter(self._verdicts)))
            verdicts = [decided[pair] for pair in pairs]
            self.ungraded += verdicts.count(None)
        return [self._without_verdict if one is None else one for one in verdicts]

    def _decided(self, answer: str | None, gold: str) -> bool | None:
        """The verdict where it needs no worker."""
        if answer is None or answer == gold:
            return answer == gold
        if len(gold) > MAX_LENGTH:
            return None
        if len(answer) > MAX_LENGTH or not answer or not gold:
            return False
        if (answer, gold) in self._verdicts:
            return self._verdicts[answer, gold]
        return cheap_verdict(self._read(answer), self._read(gold))
