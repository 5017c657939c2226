"""The world of chains: its questions, its three styles and their slips."""

import random
from collections import Counter, defaultdict
from dataclasses import replace

import pytest

from trl_ablate.miniature.worlds.chains import ANSWERED, STYLES, Chain, written

RNG_SEED = 3


def value_of(question: str) -> int:
    return eval(question.removeprefix("What is ").removesuffix("?"))  # digits, + and - only


def attempts(count: int = 20_000, chains=ANSWERED):
    rng = random.Random(RNG_SEED)
    return [chains.attempt(rng) for _ in range(count)]


@pytest.mark.parametrize("split", ["train", "validation"])
def test_questions_have_the_right_answers_and_levels(split):
    for question, answer, level in ANSWERED.questions(split):
        assert value_of(question) == int(answer)
        assert level == str(sum(question.count(sign) for sign in "+-"))


def test_every_value_of_a_chain_is_a_digit():
    rng = random.Random(RNG_SEED)
    for level in range(1, 9):
        for _ in range(200):
            chain = ANSWERED.chain(rng, level)
            value = chain.start
            for move in chain.moves:
                assert 1 <= abs(move) <= 5
                value += move
                assert 0 <= value <= ANSWERED.largest


def test_the_splits_share_no_question_and_the_corpus_has_no_held_out_one():
    train, held_out = ({q.question for q in ANSWERED.questions(s)} for s in ("train", "validation"))
    assert not train & held_out
    assert len(train) == len(ANSWERED.questions("train"))
    assert not held_out & {attempt.question for attempt in attempts()}
    rng = random.Random(RNG_SEED)
    assert not held_out & {ANSWERED.right(rng).question for _ in range(2000)}


def test_there_are_enough_held_out_questions_at_every_level_from_three_on():
    levels = Counter(question.level for question in ANSWERED.questions("validation"))
    assert sum(levels.values()) >= 1112  # 0.5 / sqrt(1112) = 0.015
    assert all(levels[str(level)] == 180 for level in range(3, 9))
    assert levels["1"] >= 10


@pytest.mark.parametrize(
    ("style", "expected"),
    [("direct", ""), ("terse", " +5=9-7=2"), ("full", " 4+5=9, 9-7=2")],
)
def test_the_steps_of_each_style(style, expected):
    assert written(style, (5, -7), [4, 9, 2]) == expected


@pytest.mark.parametrize(
    ("completion", "style"),
    [
        (" </think> <answer>2</answer>", "direct"),
        ("<think></think>\n<answer>2</answer>", "direct"),
        (" 2", "direct"),
        ("", "direct"),
        (" +5=9-7=2 </think> <answer>2</answer>", "terse"),
        ("<reasoning>-1=3</reasoning>\n<answer>3</answer>", "terse"),
        (" 4+5=9, 9-7=2 \\boxed{2}", "full"),
        ("<think>4+5=9</think>\n<answer>9</answer>", "full"),
        (" so 4+5=9", None),
    ],
)
def test_the_style_of_a_completion(completion, style):
    assert ANSWERED.style_of(completion) == style


def test_a_text_of_the_corpus_has_the_style_that_it_was_written_in():
    values = [4, 5, 3]
    for style in STYLES:
        assert (
            ANSWERED.style_of(written(style, (1, -2), values) + " </think> <answer>3</answer>")
            == style
        )


def test_styles_come_in_their_shares():
    styles = Counter(ANSWERED.style_of(attempt.steps) for attempt in attempts())
    for style, share in ANSWERED.style_shares.items():
        assert styles[style] / styles.total() == pytest.approx(share, abs=0.015)


def test_a_slip_is_as_likely_as_declared_and_carried_on():
    """Of the terse steps after a right value; a full one slips less often by the factor."""
    slips, moves = defaultdict(int), defaultdict(int)
    rng = random.Random(RNG_SEED)
    for _ in range(20_000):
        chain = ANSWERED.training_chain(rng)
        values = ANSWERED._values(rng, chain, 1.0)
        for before, move, after in zip(values, chain.moves, values[1:], strict=False):
            assert 0 <= after <= ANSWERED.largest
            if 2 <= before + move <= ANSWERED.largest - 2:  # a slip is never undone by the limits
                moves[move] += 1
                slips[move] += after != before + move
    for sign, factor in (("+", 1), ("-", -1)):
        for size, share in enumerate(ANSWERED.slips[sign], start=1):
            move = factor * size
            if moves[move] > 500:
                assert slips[move] / moves[move] == pytest.approx(share, abs=0.05), move


def test_direct_answers_are_right_by_their_share_or_a_value_that_the_last_move_leads_to():
    never = replace(ANSWERED, style_shares={"direct": 1.0}, direct_right=(0.0,))
    for question, steps, answer in attempts(5000, never):
        last = int(question.removesuffix("?")[-2:])
        assert steps == "" and 0 <= answer <= 9 and 0 <= answer - last <= 9
    always = replace(never, direct_right=(0.0, 1.0))
    for question, _, answer in attempts(2000, always):
        if sum(question.count(sign) for sign in "+-") > 1:
            assert answer == value_of(question)


def test_right_solutions_are_right_and_mostly_written():
    rng = random.Random(RNG_SEED)
    solutions = [ANSWERED.right(rng) for _ in range(2000)]
    assert all(value_of(each.question) == each.answer for each in solutions)
    assert {ANSWERED.style_of(each.steps) for each in solutions} == set(STYLES)


def test_a_chain_reads_as_one_writes_it():
    assert Chain(4, (5, -7)).text == "What is 4+5-7?"
    assert Chain(4, (5, -7)).answer == 2
