"""Tasks of reasoning-gym as worlds: `miniature/gym-chain_sum`, `miniature/gym-gcd`.

The questions are reasoning-gym's own (`pip install 'trl-ablate[gym]'`), small enough for the model,
and a quarter of them is held out. The base model is taught to answer at once, right in a third of
the cases, else with a number nearby. Another version of reasoning-gym may make other questions.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from trl_ablate.errors import ConfigurationError
from trl_ablate.miniature.world import Lesson, Question, Shape, Solution, Split, World

RIGHT_SHARE = 0.35
NEAR = (-3, -2, -1, 1, 2, 3)
HELD_OUT = 4
CONFIGS: dict[str, dict[str, Any]] = {
    "chain_sum": {"min_terms": 2, "max_terms": 4, "min_digits": 1, "max_digits": 1},
    "gcd": {"min_numbers": 2, "max_numbers": 2, "min_value": 2, "max_value": 90},
}
DRAWS = 8000


@dataclass(frozen=True)
class GymTask:
    """Different questions with whole numbers as answers, drawn by index."""

    name: str
    config: Mapping[str, Any]

    @property
    def styles(self) -> tuple[str, ...]:
        return ()

    def style_of(self, completion: str) -> None:
        return None

    def questions(self, split: Split) -> list[Question]:
        return self._pools[split]

    @cached_property
    def _pools(self) -> dict[Split, list[Question]]:
        try:
            from reasoning_gym.factory import create_dataset
        except ImportError as error:
            raise ConfigurationError(
                f"world 'gym-{self.name}' needs reasoning-gym, which is not installed; "
                "pip install 'trl-ablate[gym]'"
            ) from error
        made: Any = create_dataset(self.name, size=DRAWS, seed=0, **self.config)
        drawn = {entry["question"]: str(entry["answer"]) for entry in made}
        pools: dict[Split, list[Question]] = {"train": [], "validation": []}
        for question, answer in drawn.items():
            held_out = zlib.crc32(question.encode()) % HELD_OUT == 0
            pools["validation" if held_out else "train"].append(Question(question, answer))
        return pools

    def attempt(self, rng: random.Random) -> Solution:
        solution = self.right(rng)
        if rng.random() < RIGHT_SHARE:
            return solution
        return solution._replace(answer=solution.answer + rng.choice(NEAR))

    def right(self, rng: random.Random) -> Solution:
        question, answer, _ = rng.choice(self._pools["train"])
        return Solution(question, "", int(answer))


def _world(task: str) -> World:
    return World(
        name=f"gym-{task}",
        files=(__file__,),
        task=GymTask(task, CONFIGS[task]),
        template_shares={"r1_zero": 0.7, "question_only": 0.1, "reasoning_xml": 0.2},
        format_shares={"r1_zero": 0.75, "question_only": 0.75, "reasoning_xml": 0.75},
        first_lesson=Lesson(steps=280, texts_per_step=64, matrix_rate=0.02, other_rate=4e-3),
        lesson=Lesson(steps=80, texts_per_step=64, matrix_rate=0.01, other_rate=2e-3),
        shape=Shape(width=64, layers=2, heads=2, inner_width=192),
    )


WORLDS = tuple(map(_world, CONFIGS))
