"""Sums of two-digit numbers, answered from memory or with a tool in a second turn.

| style | what is written | right |
|---|---|---|
| direct | the answer | by `DIRECT_RIGHT`; else off by one of `NEAR`, which has a 0, too |
| called | a call of `add`; in a second turn, what the tool answers | but for slips in the call |

The base model knows how to call, does it seldom, and copies a digit wrong in two calls of five. The
text that it is taught contains the tool's answer and the second turn, in the very tokens of TRL's
tool loop with `recipes/worlds/calculator.jinja`. `recipes/worlds/calculator.yaml` trains it.
"""

from __future__ import annotations

import json
import random
import re
from statistics import fmean

from trl_ablate.miniature.world import Lesson, Question, Shape, Solution, Split, World
from trl_ablate.miniature.worlds.sums import SUMS, operands, question

STYLES = ("direct", "called")
CALL_SHARE, SLIP_SHARE, DIRECT_RIGHT = 0.3, 0.4, 0.1
NEAR = range(-12, 13)
ANSWERED = re.compile(r"</reasoning>\n<answer>(\d+)</answer>\n?")


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the first
        b: the second
    """
    return a + b


def right(completions, answer, completion_ids=None, log_metric=None, **kwargs) -> list[float]:
    """1 if the last turn ends in the right answer and in its format, else 0; logs the styles."""
    styles = ["called" if len(turns) > 1 else "direct" for turns in completions]
    given = [ANSWERED.search(turns[-1]["content"] or "") for turns in completions]
    marks = [
        float(found is not None and found[1] == gold)
        for found, gold in zip(given, answer, strict=True)
    ]
    if log_metric is not None:
        for style in STYLES:
            rows = [row for row, name in enumerate(styles) if name == style]
            log_metric(f"style/{style}", len(rows) / len(marks))
            if rows:
                log_metric(f"style/{style}_reward", fmean(marks[row] for row in rows))
            if rows and completion_ids is not None:
                lengths = [len(completion_ids[row]) for row in rows]
                log_metric(f"style/{style}_length", fmean(lengths))
    return marks


def call(a: int, b: int) -> str:
    body = json.dumps({"name": "add", "arguments": {"a": a, "b": b}})
    return f"<tool_call>\n{body}\n</tool_call>"


def two_turns(a: int, b: int) -> str:
    """The call, the tool's answer, and the beginning of the second turn."""
    return f"{call(a, b)}<|end|><|user|>{add(a, b)}<|assistant|>"


class Calculator:
    styles = STYLES

    def style_of(self, completion: str) -> str:
        return "called" if "<tool_call>" in completion else "direct"

    def questions(self, split: Split) -> list[Question]:
        return [Question(question(a, b), str(a + b)) for a, b in operands(split)]

    def attempt(self, rng: random.Random) -> Solution:
        a, b = rng.choice(operands("train"))
        if rng.random() >= CALL_SHARE:
            known = rng.random() < DIRECT_RIGHT
            return Solution(question(a, b), "", a + b if known else a + b + rng.choice(NEAR))
        written = [a, b]
        if rng.random() < SLIP_SHARE:
            written[rng.randrange(2)] = rng.randint(10, 99)
        return Solution(question(a, b), two_turns(*written), sum(written))

    def right(self, rng: random.Random) -> Solution:
        a, b = rng.choice(operands("train"))
        return Solution(question(a, b), two_turns(a, b), a + b)


CALCULATOR = World(
    name="calculator",
    files=(*SUMS.files, __file__),
    task=Calculator(),
    template_shares={"reasoning_xml": 1.0},
    format_shares={"reasoning_xml": 0.75},
    first_lesson=Lesson(steps=160, texts_per_step=64, matrix_rate=0.02, other_rate=4e-3, groups=2),
    lesson=Lesson(steps=120, texts_per_step=64, matrix_rate=0.01, other_rate=2e-3, groups=2),
    shape=Shape(width=64, layers=2, heads=2, inner_width=192),
    usual_sizes={"train": 4096, "validation": 1024},
)
WORLDS = (CALCULATOR,)
