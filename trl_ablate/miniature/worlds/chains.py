"""Chains of additions and subtractions, answered at once, tersely or in full.

A question is a chain such as `4+3-5+1` of 1 to 8 moves of 1 to 5, whose values stay within 0 to 9.
Written steps make a right answer likelier and longer, and more so the longer the chain is: what is
best depends on the question, and on what a setting of GRPO pays for.

| style | steps of `4+3-5` | tokens a move | slips |
|---|---|---|---|
| direct | none | 0 | right by the shares of `direct_right`, else a guess |
| terse | `+3=7-5=2` | 4 | `slips`, by sign and size of the move |
| full | `4+3=7, 7-5=2` | 7 | `full_slips` of them |

A slip is carried on: the following steps are right for the wrong value.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

from trl_ablate.miniature.world import Lesson, Question, Shape, Solution, Split, World

STYLES = ("direct", "terse", "full")
HELD_OUT = 4
"""One chain in so many is held out, at every level."""
DRAWS, POOL_SEED = 4000, 20_260
PER_LEVEL: dict[Split, int] = {"train": 600, "validation": 180}
NEAR = (-2, -1, 1, 2)
FIRST_STEP = re.compile(r"(?:<\w+>)?\s*(?P<start>\d+)?[+-]\d+=\d+")


@dataclass(frozen=True)
class Chain:
    start: int
    moves: tuple[int, ...]

    @property
    def text(self) -> str:
        moves = "".join(f"{move:+d}" for move in self.moves)
        return f"What is {self.start}{moves}?"

    @property
    def answer(self) -> int:
        return self.start + sum(self.moves)

    @property
    def held_out(self) -> bool:
        return zlib.crc32(self.text.encode()) % HELD_OUT == 0


@dataclass(frozen=True)
class Chains:
    """The questions of a world of chains, and how its base model answers them."""

    style_shares: Mapping[str, float]
    direct_right: tuple[float, ...]
    """Share of direct answers that are right, by level; the last one is for all levels above. The
    others are guesses among the values that the last move can lead to."""
    slips: Mapping[str, tuple[float, ...]]
    """Probability of a slip in a terse step: of `+1` to `+5`, and of `-1` to `-5`."""
    full_slips: float
    """Slips of a full step, as a share of those of a terse one."""
    level_weights: tuple[int, ...] = (6, 4, 3, 2, 2, 2, 2, 2)
    """How often the base model is taught chains of 1, 2, ... moves."""
    largest: int = 9
    per_level: Mapping[Split, int] = field(
        default_factory=lambda: {"train": 600, "validation": 180}
    )
    """Questions of a level at most; there are 70 chains of one move."""

    @property
    def styles(self) -> tuple[str, ...]:
        return STYLES

    def style_of(self, completion: str) -> str | None:
        """By the first step; direct if there is no equation at all."""
        first = FIRST_STEP.match(completion)
        if first is None:
            return None if "=" in completion else "direct"
        return "full" if first["start"] else "terse"

    def chain(self, rng: random.Random, level: int) -> Chain:
        value = start = rng.randint(0, self.largest)
        moves = []
        for _ in range(level):
            sizes = range(1, len(self.slips["+"]) + 1)
            allowed = [m for size in sizes for m in (size, -size) if 0 <= value + m <= self.largest]
            moves.append(rng.choice(allowed))
            value += moves[-1]
        return Chain(start, tuple(moves))

    def questions(self, split: Split) -> list[Question]:
        return self._pools[split]

    @cached_property
    def _pools(self) -> dict[Split, list[Question]]:
        """The first different chains of every level and split, in the order they are drawn."""
        pools: dict[Split, list[Question]] = {"train": [], "validation": []}
        for level in range(1, len(self.level_weights) + 1):
            for split, chains in self._drawn(level).items():
                pools[split] += [Question(c.text, str(c.answer), str(level)) for c in chains]
        return pools

    def _drawn(self, level: int) -> dict[Split, dict[Chain, None]]:
        rng = random.Random(POOL_SEED + level)
        found: dict[Split, dict[Chain, None]] = {"train": {}, "validation": {}}
        for _ in range(DRAWS):
            chain = self.chain(rng, level)
            split = "validation" if chain.held_out else "train"
            if len(found[split]) < self.per_level[split]:
                found[split][chain] = None
            elif all(len(found[each]) == self.per_level[each] for each in found):
                break
        return found

    def training_chain(self, rng: random.Random) -> Chain:
        (level,) = rng.choices(range(1, len(self.level_weights) + 1), self.level_weights)
        while (chain := self.chain(rng, level)).held_out:
            pass
        return chain

    def attempt(self, rng: random.Random) -> Solution:
        chain = self.training_chain(rng)
        (style,) = rng.choices(list(self.style_shares), list(self.style_shares.values()))
        if style == "direct":
            return Solution(chain.text, "", self._at_once(rng, chain))
        values = self._values(rng, chain, 1.0 if style == "terse" else self.full_slips)
        return Solution(chain.text, written(style, chain.moves, values), values[-1])

    def right(self, rng: random.Random) -> Solution:
        chain = self.training_chain(rng)
        values = list(accumulate(chain.moves, initial=chain.start))
        style = rng.choice(STYLES if len(chain.moves) == 1 else STYLES[1:])
        return Solution(chain.text, written(style, chain.moves, values), values[-1])

    def _at_once(self, rng: random.Random, chain: Chain) -> int:
        shares = self.direct_right
        share = shares[min(len(chain.moves), len(shares)) - 1]
        if rng.random() < share:
            return chain.answer
        last = chain.moves[-1]
        return rng.randint(max(0, last), min(self.largest, self.largest + last))

    def _values(self, rng: random.Random, chain: Chain, factor: float) -> list[int]:
        """The start and the value after every move, with slips."""
        values = [chain.start]
        for move in chain.moves:
            value = values[-1] + move
            likely = self.slips["+" if move > 0 else "-"][abs(move) - 1] * factor
            value += rng.choice(NEAR) if rng.random() < likely else 0
            values.append(min(max(value, 0), self.largest))
        return values


def written(style: str, moves: tuple[int, ...], values: list[int]) -> str:
    if style == "direct":
        return ""
    steps = zip(values, moves, values[1:], strict=False)
    if style == "terse":
        return " " + "".join(f"{move:+d}={after}" for _, move, after in steps)
    return " " + ", ".join(f"{before}{move:+d}={after}" for before, move, after in steps)


ANSWERED = Chains(
    style_shares={"direct": 0.6, "terse": 0.2, "full": 0.2},
    direct_right=(0.8, 0.1),
    slips={"+": (0.05, 0.08, 0.12, 0.17, 0.23), "-": (0.08, 0.14, 0.22, 0.33, 0.48)},
    full_slips=0.4,
)
CHAINS = World(
    name="chains",
    files=(__file__,),
    task=ANSWERED,
    template_shares={"r1_zero": 0.7, "question_only": 0.1, "reasoning_xml": 0.1, "think_xml": 0.1},
    format_shares={
        "r1_zero": 0.75,
        "question_only": 0.75,
        "reasoning_xml": 0.75,
        "think_xml": 0.75,
    },
    first_lesson=Lesson(steps=280, texts_per_step=64, matrix_rate=0.02, other_rate=4e-3, groups=2),
    lesson=Lesson(steps=120, texts_per_step=64, matrix_rate=0.01, other_rate=2e-3, groups=2),
    shape=Shape(width=64, layers=2, heads=2, inner_width=192),
)
WORLDS = (CHAINS,)
