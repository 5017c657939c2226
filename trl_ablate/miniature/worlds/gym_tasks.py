"""A task of reasoning-gym as a world: `miniature/gym-chain_sum`.

The questions are reasoning-gym's own (`pip install 'trl-ablate[gym]'`): sums and differences of two
to four numbers of one digit, such as `3 - 4 + 8`. A quarter of them is held out. They are answered
directly, mostly by a number nearby, or in steps, `3-4=-1, -1+8=7`, which may have a slip. Another
version of reasoning-gym may make other questions.
"""

from __future__ import annotations

import random
import re
import zlib
from functools import cached_property
from typing import Any

from trl_ablate.errors import ConfigurationError
from trl_ablate.miniature.world import Lesson, Question, Shape, Solution, Split, World

TASK = "chain_sum"
CONFIG = {"min_terms": 2, "max_terms": 4, "min_digits": 1, "max_digits": 1}
DRAWS, HELD_OUT = 8000, 4
STYLES = ("direct", "steps")
STEPS_SHARE, DIRECT_RIGHT, SLIP_SHARE = 0.4, 0.1, 0.15
NEAR = (-3, -2, -1, 1, 2, 3)
TERM = re.compile(r"([+-]?) ?(\d+)")


class ChainSum:
    styles: tuple[str, ...] = STYLES

    def style_of(self, completion: str) -> str:
        return "steps" if "=" in completion else "direct"

    def questions(self, split: Split) -> list[Question]:
        return self._pools[split]

    @cached_property
    def _pools(self) -> dict[Split, list[Question]]:
        try:
            from reasoning_gym.factory import create_dataset
        except ImportError as error:
            raise ConfigurationError(
                f"world 'gym-{TASK}' needs reasoning-gym, which is not installed; "
                "pip install 'trl-ablate[gym]'"
            ) from error
        made: Any = create_dataset(TASK, size=DRAWS, seed=0, **CONFIG)
        drawn = {entry["question"]: entry for entry in made}
        pools: dict[Split, list[Question]] = {"train": [], "validation": []}
        for text, entry in drawn.items():
            held_out = zlib.crc32(text.encode()) % HELD_OUT == 0
            level = str(entry["metadata"]["num_terms"])
            question = Question(text, str(entry["answer"]), level)
            pools["validation" if held_out else "train"].append(question)
        return pools

    def attempt(self, rng: random.Random) -> Solution:
        question, answer, _ = rng.choice(self._pools["train"])
        if rng.random() < STEPS_SHARE:
            return Solution(question, *worked(question, rng, SLIP_SHARE))
        wrong = rng.random() >= DIRECT_RIGHT
        return Solution(question, "", int(answer) + (rng.choice(NEAR) if wrong else 0))

    def right(self, rng: random.Random) -> Solution:
        question, *_ = rng.choice(self._pools["train"])
        return Solution(question, *worked(question, rng, 0.0))


def worked(question: str, rng: random.Random, slip_share: float) -> tuple[str, int]:
    """The steps and the answer; a step has a slip with this probability, and it is carried on."""
    terms = TERM.findall(question.rpartition(":")[2])
    value, steps = int(terms[0][1]), []
    for sign, size in terms[1:]:
        after = value + int(sign + size)
        after += rng.choice(NEAR) if rng.random() < slip_share else 0
        steps.append(f"{value}{sign}{size}={after}")
        value = after
    return " " + ", ".join(steps), value


WORLDS = (
    World(
        name=f"gym-{TASK}",
        files=(__file__,),
        task=ChainSum(),
        template_shares={"r1_zero": 0.8, "question_only": 0.2},
        format_shares={"r1_zero": 0.75, "question_only": 0.75},
        first_lesson=Lesson(
            steps=280, texts_per_step=64, matrix_rate=0.02, other_rate=4e-3, groups=2
        ),
        lesson=Lesson(steps=120, texts_per_step=64, matrix_rate=0.01, other_rate=2e-3, groups=2),
        shape=Shape(width=64, layers=2, heads=2, inner_width=192),
    ),
)
