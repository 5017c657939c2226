"""What holds in every world; `pytest` in this folder runs it in seconds, and teaches no model."""

import random
from collections import Counter

from world import WORLD

from trl_ablate.miniature.tokens import tokenizer_of

TASK = WORLD.task
LONGEST_ANSWER = 60
"""Tokens; `max_completion_length` of the profile."""


def attempts(count):
    rng = random.Random(0)
    return [TASK.attempt(rng) for _ in range(count)]


def test_no_question_is_both_trained_on_and_held_out():
    train, held_out = (
        {each.question for each in TASK.questions(split)} for split in ("train", "validation")
    )
    assert train and len(held_out) >= 1000  # for a standard error of at most 0.015
    assert not train & held_out
    assert {each.question for each in attempts(2000)} <= train


def test_a_right_solution_has_the_reference_answer():
    answers = {each.question: each.answer for each in TASK.questions("train")}
    rng = random.Random(0)
    for _ in range(500):
        solution = TASK.right(rng)
        assert str(solution.answer) == answers[solution.question]


def test_the_base_model_is_taught_every_style_and_is_right_at_times():
    answers = {each.question: each.answer for each in TASK.questions("train")}
    tried = attempts(2000)
    shares = Counter(TASK.style_of(f"{each.steps} {each.answer}") for each in tried)
    assert shares.keys() == set(TASK.styles)
    right = sum(answers[each.question] == str(each.answer) for each in tried) / len(tried)
    assert 0.05 < right < 0.9


def test_an_answer_fits_into_the_longest_completion():
    tokenizer = tokenizer_of(WORLD)
    for each in attempts(300):
        text = f"{each.steps} </think> <answer>{each.answer}</answer>"
        assert len(tokenizer(text).input_ids) < LONGEST_ANSWER
