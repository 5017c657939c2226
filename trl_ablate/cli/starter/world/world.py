"""A world of one's own: which of two numbers is larger? Answered at once, or after a comparison.

A world is its questions, the styles in which they are answered, the slips that the base model is
taught to make, its lesson and its shape. Where the styles differ in length and in how often they
are right, settings of GRPO that weigh length or success act on them.
"""

import random
import re

from trl_ablate.miniature.world import Lesson, Question, Shape, Solution, World

STYLE_SHARES = {"direct": 0.7, "compared": 0.3}
"""How the base model answers. More direct answers: less reward to begin with."""
SLIPS = {"tens": 0.05, "ones": 0.3}
"""How often a comparison of the base model is wrong, by level."""

UNORDERED = [(a, b) for a in range(100) for b in range(a)]
random.Random(0).shuffle(UNORDERED)
PAIRS = [pair for a, b in UNORDERED for pair in ((a, b), (b, a))]
HELD_OUT = 2000
"""Pairs, of which none is a training pair the other way round."""


def level(a, b):
    """Which digit decides."""
    return "ones" if a // 10 == b // 10 else "tens"


def question(a, b):
    return f"Which is larger, {a} or {b}?"


def comparison(larger, smaller):
    return f" {larger}>{smaller}"


class Larger:
    """The questions, and how they are answered."""

    styles = tuple(STYLE_SHARES)
    """Their shares, rewards and lengths are logged as `style/direct` and so on."""

    def style_of(self, completion):
        return "compared" if re.match(r"\s*\d+>", completion) else "direct"

    def questions(self, split):
        """All questions of a split, in a fixed order; no question is in both."""
        pairs = PAIRS[:HELD_OUT] if split == "validation" else PAIRS[HELD_OUT:]
        return [Question(question(a, b), str(max(a, b)), level(a, b)) for a, b in pairs]

    def attempt(self, rng):
        """A training question as the base model is to answer it: in any style, with slips."""
        a, b = rng.choice(PAIRS[HELD_OUT:])
        (style,) = rng.choices(list(STYLE_SHARES), list(STYLE_SHARES.values()))
        if style == "direct":
            return Solution(question(a, b), "", rng.choice((a, b)))
        smaller, larger = sorted((a, b))
        if rng.random() < SLIPS[level(a, b)]:
            smaller, larger = larger, smaller
        return Solution(question(a, b), comparison(larger, smaller), larger)

    def right(self, rng):
        """A training question with a right solution."""
        a, b = rng.choice(PAIRS[HELD_OUT:])
        return Solution(question(a, b), comparison(max(a, b), min(a, b)), max(a, b))


WORLD = World(
    name="larger",
    files=(__file__,),
    task=Larger(),
    template_shares={"r1_zero": 1.0},
    format_shares={"r1_zero": 0.6},
    first_lesson=Lesson(steps=80, texts_per_step=64, matrix_rate=0.02, other_rate=4e-3),
    lesson=Lesson(steps=60, texts_per_step=64, matrix_rate=0.01, other_rate=2e-3),
    shape=Shape(width=64, layers=2, heads=2, inner_width=192),
)
