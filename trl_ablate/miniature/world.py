"""What a world of the miniature is: its questions, its answers, its lessons and its model's shape.

A world is one small file with a `World` in it; `worlds/sums.py` and `worlds/chains.py` are two. All
else, from the templates to the cache, is the same for every world.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol, get_args

from trl_ablate.prompts.templates import TemplateName

Split = Literal["train", "validation"]
Stage = Literal["base", "sft_early", "sft_mid", "sft_final"]


class Question(NamedTuple):
    """A question and its reference answer; `level` is its difficulty, if the world has levels."""

    question: str
    answer: str
    level: str | None = None


class Solution(NamedTuple):
    """A way to answer a question: its written steps, empty in a direct answer, and the answer."""

    question: str
    steps: str
    answer: int


class Lesson(NamedTuple):
    """Number of steps and learning rates; the rates warm up first and fall to zero at the end."""

    steps: int
    texts_per_step: int
    matrix_rate: float
    other_rate: float
    warmup: int = 20
    cooldown_share: float = 0.4
    groups: int = 1
    """In how many groups of similar length the texts of a step go through the model."""

    def rate_factor(self, step: int) -> float:
        rising = (step + 1) / self.warmup if self.warmup else 1.0
        falling = (self.steps - step) / (self.cooldown_share * self.steps or 1.0)
        return min(1.0, rising, falling if self.cooldown_share else 1.0)


class Shape(NamedTuple):
    """The size of the world's Qwen2."""

    width: int
    layers: int
    heads: int
    inner_width: int
    context: int = 512


SFT_LESSON = Lesson(
    steps=0, texts_per_step=32, matrix_rate=1e-3, other_rate=2e-4, warmup=0, cooldown_share=0.0
)
SFT_LESSONS: dict[Stage, Lesson] = {
    "sft_early": SFT_LESSON._replace(steps=8),
    "sft_mid": SFT_LESSON._replace(steps=20),
    "sft_final": SFT_LESSON._replace(steps=45),
}


class Task(Protocol):
    """The questions of a world, and how they are answered."""

    @property
    def styles(self) -> tuple[str, ...]:
        """The styles of an answer, whose shares are logged; empty if all answers are alike."""
        ...

    def style_of(self, completion: str) -> str | None:
        """The style of a completion; None if it is in none."""
        ...

    def questions(self, split: Split) -> list[Question]:
        """All questions of a split, in a fixed order. No question is in both splits."""
        ...

    def attempt(self, rng: random.Random) -> Solution:
        """A training question, answered as the base model is to do it: in any style, with slips."""
        ...

    def right(self, rng: random.Random) -> Solution: ...


@dataclass(frozen=True)
class World:
    """A task and the model that is taught to do it badly."""

    name: str
    files: tuple[str, ...]
    """The files that define the world, such as `__file__`: they are part of the cache key."""
    task: Task
    template_shares: Mapping[TemplateName, float]
    """How often the base model is taught with each template."""
    format_shares: Mapping[TemplateName, float]
    """How often an answer has the format that its template asks for."""
    lesson: Lesson
    """How the base model is taught, on attempts."""
    shape: Shape
    first_lesson: Lesson | None = None
    """What the base model is taught before that, on right solutions: a model that has first seen
    what is right needs a fraction of the texts."""
    sft_lessons: Mapping[Stage, Lesson] = field(default_factory=SFT_LESSONS.copy)
    seed: int = 0
    """Of the base's first weights and of its texts: with another, another base of the same task."""
    usual_sizes: Mapping[Split, int] = field(default_factory=dict)
    """Questions of a split that are used if no size is given; without an entry, all."""

    def lessons(self) -> dict[Stage, Lesson]:
        return {"base": self.lesson, **self.sft_lessons}

    def problems(self, split: Split, size: int | None = None, seed: int = 0) -> list[Question]:
        """`size` different questions of the split, or all; a shorter list is the beginning of a
        longer one."""
        if split not in get_args(Split):
            raise ValueError(f"split is {split!r}; allowed are 'train' and 'validation'")
        questions = list(self.task.questions(split))
        size = len(questions) if size is None else size
        if size > len(questions):
            raise ValueError(
                f"size is {size}; the {split} set of {self.name} has {len(questions)} problems"
            )
        random.Random(seed).shuffle(questions)
        return questions[:size]
