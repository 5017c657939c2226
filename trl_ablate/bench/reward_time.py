"""Grading: the pool of workers against one process that calls math-verify.

The batches are like those of a rollout: eight answers per question, half of them right, with spaces
around the right ones.
"""

import logging
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from trl_ablate.bench.modes import Grading
from trl_ablate.bench.synthetic import recorded
from trl_ablate.bench.timing import Result, alternate, ratio, timed
from trl_ablate.rewards import MathGrader

FORMS: list[Callable[[int, int], str]] = [
    lambda a, b: f"{a}",
    lambda a, b: f"-{a}",
    lambda a, b: f"{a}.{b}",
    lambda a, b: rf"\frac{{{a}}}{{{b}}}",
    lambda a, b: rf"-\frac{{{a}}}{{{b}}}",
    lambda a, b: rf"{a}\sqrt{{{b}}}",
    lambda a, b: rf"{a}\pi",
    lambda a, b: f"({a}, {b})",
    lambda a, b: f"[{a}, {a + b})",
    lambda a, b: f"{a}x^2 + {b}x",
    lambda a, b: rf"{a}^\circ",
    lambda a, b: rf"{a}\%",
]
"""Typical forms of answers to competition problems."""


def rollout_batch(
    golds: Sequence[str], count: int, numbers: random.Random
) -> tuple[list[str], list[str]]:
    """`count` answers and their references, eight per question (the last may have fewer), every
    second one right."""
    chosen = [numbers.choice(golds) for _ in range(math.ceil(count / 8))]
    references = [gold for gold in chosen for _ in range(8)][:count]
    answers = [
        f" {gold} " if place % 2 else numbers.choice(golds) for place, gold in enumerate(references)
    ]
    return answers, references


def golds_of(file: Path | None, numbers: random.Random) -> list[str]:
    """The `answer` of every line of a JSONL file; without a file, random answers in `FORMS`."""
    if file:
        return recorded(file, "answer", str)
    return [form(numbers.randint(1, 99), numbers.randint(2, 99)) for form in FORMS * 50]


def bench(asked: Grading) -> Result:
    """What `trl-ablate bench reward` publishes. The first two batches are not counted."""
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    numbers = random.Random(0)
    golds = golds_of(asked.answers, numbers)
    batches = [rollout_batch(golds, asked.count, numbers) for _ in range(asked.rounds + 2)]
    with MathGrader(workers=asked.workers) as grader:
        ways = {
            "math-verify, one process": lambda number: _one_by_one(*batches[number]),
            f"trl_ablate, {asked.workers} workers": lambda number: grader.grade(*batches[number]),
        }
        found = alternate(ways, asked.rounds, warmup=2)
    rows = [
        {**timed(name, "s", one.seconds), "answers/s": asked.count / median(one.seconds)}
        for name, one in found.items()
    ]
    theirs, mine = (sum(one.returned, []) for one in found.values())
    facts = {
        "ratio": ratio(*(one.seconds for one in found.values())),
        "answers": len(mine),
        "verdicts that differ": sum(a != b for a, b in zip(theirs, mine, strict=True)),
    }
    return f"grading {asked.count} answers", rows, facts


def _one_by_one(answers: list[str], golds: list[str]) -> list[bool]:
    from math_verify import parse, verify

    return [
        verify(parse(rf"\boxed{{{gold}}}"), parse(rf"\boxed{{{answer}}}"))
        for answer, gold in zip(answers, golds, strict=True)
    ]
