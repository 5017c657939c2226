"""Sums of two two-digit numbers, worked out digit by digit, ones first.

Every second solution has an error that also changes the answer, and a few only guess, with a
quarter of the tokens. All questions are alike and all solutions have almost the same length, so
that few settings of GRPO matter here.
"""

import random
from functools import cache
from typing import get_args

from trl_ablate.miniature.world import Lesson, Question, Shape, Solution, Split, World

SPLITS: tuple[Split, ...] = get_args(Split)

SMALLEST, LARGEST = 10, 99
VALIDATION_SHARE = 0.25
SPLIT_SEED = 20_260

SLIP_SHARE = 0.5
GUESS_SHARE = 0.1


@cache
def operands(split: Split) -> tuple[tuple[int, int], ...]:
    """Every ordered pair of the split; `47+38` and `38+47` are always in the same split."""
    numbers = range(SMALLEST, LARGEST + 1)
    unordered = [(a, b) for a in numbers for b in numbers if a <= b]
    random.Random(SPLIT_SEED).shuffle(unordered)
    cut = round(len(unordered) * VALIDATION_SHARE)
    chosen = unordered[:cut] if split == "validation" else unordered[cut:]
    return (*chosen, *((b, a) for a, b in chosen if a != b))


def question(a: int, b: int) -> str:
    return f"What is {a}+{b}?"


def work_out(a: int, b: int, ones_slip: int = 0, tens_slip: int = 0) -> tuple[str, int]:
    """The written steps of the sum and the resulting answer, both with the given errors."""
    ones = a % 10 + b % 10 + ones_slip
    carry = ones // 10
    tens = a // 10 + b // 10 + carry + tens_slip
    carried = "+1" if carry else ""
    steps = f" {a % 10}+{b % 10}={ones}, {a // 10}+{b // 10}{carried}={tens}"
    return steps, tens * 10 + ones % 10


class Sums:
    styles: tuple[str, ...] = ()

    def style_of(self, completion: str) -> None:
        return None

    def questions(self, split: Split) -> list[Question]:
        return [Question(question(a, b), str(a + b)) for a, b in operands(split)]

    def attempt(self, rng: random.Random) -> Solution:
        """The shares above decide whether a sum is worked out or guessed, right or wrong."""
        a, b = rng.choice(operands("train"))
        slip = rng.choice((-2, -1, 1, 2)) if rng.random() < SLIP_SHARE else 0
        if rng.random() < GUESS_SHARE:
            steps, answer = "", rng.randint(2 * SMALLEST, 2 * LARGEST)
        elif rng.random() < 0.5:
            steps, answer = work_out(a, b, tens_slip=slip)
        else:
            ones = a % 10 + b % 10
            steps, answer = work_out(a, b, ones_slip=slip if 0 <= ones + slip < 20 else -slip)
        return Solution(question(a, b), steps, answer)

    def right(self, rng: random.Random) -> Solution:
        a, b = rng.choice(operands("train"))
        return Solution(question(a, b), *work_out(a, b))


SUMS = World(
    name="sums",
    files=(__file__,),
    task=Sums(),
    template_shares={
        "r1_zero": 0.4,
        "question_only": 0.3,
        "reasoning_xml": 0.15,
        "think_xml": 0.15,
    },
    format_shares={
        "r1_zero": 0.08,
        "question_only": 0.85,
        "reasoning_xml": 0.25,
        "think_xml": 0.25,
    },
    lesson=Lesson(steps=240, texts_per_step=96, matrix_rate=0.02, other_rate=4e-3),
    shape=Shape(width=128, layers=2, heads=2, inner_width=256),
    usual_sizes={"train": 4096, "validation": 1024},
)
WORLDS = (SUMS,)
