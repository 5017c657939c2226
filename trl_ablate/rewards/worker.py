"""What runs in a grader's child process: math-verify, one comparison after the other.

Started as a plain script by `WorkerProcess`, never imported by the training process; it imports
neither this package nor torch, so a fresh worker is ready in about half a second.

Protocol, one JSON document a line (ASCII, so that null bytes and lone surrogates travel safely):
out `"ready"`; in `[id, answer, gold]`; out `[id, true | false | null]`, null meaning that the
comparison itself ran out of memory.

The parent owns the deadline and kills a worker that misses it. Three things make sure that none
outlives a parent that is gone, even one killed by SIGKILL: end of input ends an idle worker; an
idle worker also looks every second whether its parent is still the same; and while it compares, a
kernel alarm with its default action, which needs no cooperation from Python, ends it soon after
the deadline.
"""

import json
import logging
import os
import resource
import select
import signal
import sys
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

ALARM_GRACE_SECONDS = 2.0
CACHED_GOLDS = 2048
COMPARISONS_PER_CACHE_CLEARING = 500
OUT_OF_MEMORY_EXIT = 3

WARM_UP = (
    (r"\frac{1}{2}x+\sqrt{3}", r"\frac{x}{2}+3^{\frac12}"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1\\3\end{pmatrix}"),
    (r"[1,2)\cup(3,\infty)", r"[1,2)\cup(4,\infty)"),
    (r"x=2^{-3}, y=\pi", r"0.125, 3.14"),
    (r"\sin 30^\circ", r"x^2+y^2=1"),
)


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

    def compare(self, answer: str, gold: str) -> bool:
        """Whether math-verify finds the two equal; an answer it cannot read is not equal."""
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
        # The whole text is one expression: nothing is searched for inside it, so that an answer
        # cannot list several guesses and have one picked.
        return self._parse(
            rf"\boxed{{{text}}}", self._config, fallback_mode="no_fallback", parsing_timeout=None
        )


def address_space() -> int:
    """Bytes of address space this process holds, where the system tells."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 0


def requests(parent: int) -> Iterator[list[Any]]:
    """The parent's requests, until it closes the pipe or is gone."""
    pending = b""
    while True:
        readable, _, _ = select.select([0], [], [], 1.0)
        if not readable:
            if os.getppid() != parent:
                return
            continue
        chunk = os.read(0, 65536)
        if not chunk:
            return
        *lines, pending = (pending + chunk).split(b"\n")
        yield from (json.loads(line) for line in lines)


def serve(reports: int, parent: int, timeout: float, memory_limit: int) -> None:
    """Answers requests until there are no more."""
    comparer = Comparer()
    for answer, gold in WARM_UP:
        comparer.compare(answer, gold)
    # What math-verify's parser prints about malformed text belongs nowhere.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    limit_memory(memory_limit)
    os.write(reports, b'"ready"\n')
    for number, answer, gold in requests(parent):
        signal.setitimer(signal.ITIMER_REAL, timeout + ALARM_GRACE_SECONDS)
        before = address_space()
        try:
            verdict: bool | None = comparer.compare(answer, gold)
        except MemoryError:
            # A worker that was already half full may have died of its past: the parent then gives
            # the same comparison to a fresh one.
            if before > memory_limit // 2:
                os._exit(OUT_OF_MEMORY_EXIT)
            verdict = None
        except Exception:  # whatever sympy raises on this text, it did not show the two equal
            verdict = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        os.write(reports, json.dumps([number, verdict]).encode() + b"\n")
        if verdict is None:
            os._exit(OUT_OF_MEMORY_EXIT)


def limit_memory(limit: int) -> None:
    """Caps the address space; a system without that limit (macOS) keeps the deadline alone."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    except (ValueError, OSError):
        logging.getLogger(__name__).debug("no limit on the address space here")


def main(arguments: list[str]) -> None:
    """Arguments: the parent's process id, the deadline in seconds, the memory limit in bytes."""
    parent, timeout, memory_limit = int(arguments[0]), float(arguments[1]), int(arguments[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to handle
    logging.disable(logging.CRITICAL)
    reports = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    serve(reports, parent, timeout, memory_limit)


if __name__ == "__main__":
    sys.path.pop(0)  # this file's folder, put there by Python: none of its modules is wanted here
    main(sys.argv[1:])
