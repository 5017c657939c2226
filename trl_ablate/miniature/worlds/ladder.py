"""Variants of the world of chains: larger models, other bases, rare success, wrong references, easy
format."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from trl_ablate.miniature.world import Lesson, Question, Shape, Split, World
from trl_ablate.miniature.worlds.chains import ANSWERED, CHAINS, Chains

FILES = (*CHAINS.files, __file__)
NOISE_SEED = 20_261


@dataclass(frozen=True)
class NoisyChains(Chains):
    """Chains with wrong reference answers in a share of the training questions."""

    wrong_share: float = 0.0

    def questions(self, split: Split) -> list[Question]:
        questions = super().questions(split)
        if split == "validation":
            return questions
        rng = random.Random(NOISE_SEED)
        return [self._wrong(rng, each) if rng.random() < self.wrong_share else each
                for each in questions]  # fmt: skip

    def _wrong(self, rng: random.Random, question: Question) -> Question:
        others = [value for value in range(self.largest + 1) if str(value) != question.answer]
        return question._replace(answer=str(rng.choice(others)))


def _larger(name: str, shape: Shape, first_steps: int, steps: int, rate: float) -> World:
    """The same task and texts for a larger model, which needs fewer of them."""
    first = Lesson(first_steps, 64, matrix_rate=rate, other_rate=rate / 5, groups=2)
    lesson = Lesson(steps, 64, matrix_rate=rate / 2, other_rate=rate / 10, groups=2)
    return replace(CHAINS, name=name, files=FILES, shape=shape, first_lesson=first, lesson=lesson)


MEDIUM = _larger("chains-0.4m", Shape(128, 2, 4, 384), first_steps=220, steps=100, rate=0.02)
LARGE = _larger("chains-3m", Shape(256, 4, 8, 768), first_steps=140, steps=80, rate=0.02)

BASE_B, BASE_C = (
    replace(CHAINS, name=name, files=FILES, seed=seed)
    for seed, name in enumerate(("chains-b", "chains-c"), 1)
)
"""The same questions for models that began with other weights and read other texts."""

HARD = replace(
    CHAINS, name="chains-hard", files=FILES, format_shares=dict.fromkeys(CHAINS.format_shares, 0.06)
)
"""A right answer in the right format is so rare that most groups of eight have none."""

NOISY = replace(
    CHAINS,
    name="chains-noisy",
    files=FILES,
    task=NoisyChains(
        ANSWERED.style_shares,
        ANSWERED.direct_right,
        ANSWERED.slips,
        ANSWERED.full_slips,
        wrong_share=0.2,
    ),
)

FORMATS = replace(
    CHAINS,
    name="formats",
    files=FILES,
    template_shares={"r1_zero": 0.1, "question_only": 0.1, "reasoning_xml": 0.4, "think_xml": 0.4},
    format_shares=dict.fromkeys(CHAINS.format_shares, 0.2),
    task=replace(ANSWERED, style_shares={"direct": 0.8, "terse": 0.1, "full": 0.1}),
)
"""For the templates that reward the format apart from the answer (`reasoning`, `think`): a format
without a right answer pays a third, and it is found first."""

WORLDS = (MEDIUM, LARGE, BASE_B, BASE_C, HARD, NOISY, FORMATS)
