"""The worlds' questions, answers and styles: none has changed, and what they are meant to be."""

import hashlib
import json
import random
import re
import sys
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import islice

import pytest

from trl_ablate import ConfigurationError
from trl_ablate.data.questions import load_questions
from trl_ablate.miniature import corpus
from trl_ablate.miniature.registry import WORLDS
from trl_ablate.miniature.tokens import tokenizer_of
from trl_ablate.miniature.worlds import calculator, sums
from trl_ablate.miniature.worlds.chains import ANSWERED, STYLES, Chain, written
from trl_ablate.miniature.worlds.gym_tasks import ChainSum, worked
from trl_ablate.miniature.worlds.words import SHARES, problems_of
from trl_ablate.prompts.templates import render
from trl_ablate.recipe.places import SHIPPED
from trl_ablate.task import TaskArguments
from trl_ablate.training.models import read_calls

CHAINS, TAUGHT = "1228ebb7756b3b60", "c1704bc5d812ba77"
DIGESTS = {
    "sums": ("8832d7c35712fcd4", "e2242dcff0afd32a"),
    "chains": (CHAINS, TAUGHT),
    "chains-0.4m": (CHAINS, TAUGHT),
    "chains-3m": (CHAINS, TAUGHT),
    "chains-hard": (CHAINS, "f040c443ea52ab2e"),
    "chains-noisy": ("02f95c1e2b9a6973", TAUGHT),  # the noise is in the data, not in the base
    "formats": (CHAINS, "42e94850b35edd55"),
    "calculator": ("8832d7c35712fcd4", "d28d521941b439fb"),
    "words": ("c8560a93d61da06e", None),
}
"""Of the questions, and of the taught texts: what all studies were made with."""


def digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


@pytest.mark.parametrize("name", DIGESTS)
def test_the_questions_and_texts_of_a_world_are_what_they_always_were(name):
    world = WORLDS[name]
    texts = None
    if world.template_shares:
        makers = (corpus.corpus, corpus.right_texts, corpus.right_solutions)
        texts = digest([list(islice(make(world, seed=0), 1000)) for make in makers])
    questions = digest([world.problems(split) for split in ("train", "validation")])
    assert (questions, texts) == DIGESTS[name]


@pytest.mark.parametrize("name", WORLDS)
def test_every_world_is_whole(name):
    if name.startswith("gym-"):
        pytest.importorskip("reasoning_gym", reason="pip install 'trl-ablate[gym]'")
    world = WORLDS[name]
    train, held_out = ({q.question for q in world.task.questions(s)} for s in sums.SPLITS)
    assert not train & held_out and len(held_out) >= 1000
    assert set(world.lessons()) == {"base", "sft_early", "sft_mid", "sft_final"}
    assert world.task.style_of("") in {None, *world.task.styles}
    if world.template_shares:
        asked = {text.question for text in islice(corpus.corpus(world, seed=3), 3000)}
        assert not held_out & asked


@pytest.mark.parametrize(
    ("a", "b", "slips", "expected"),
    [
        (47, 38, {}, (" 7+8=15, 4+3+1=8", 85)),
        (41, 38, {"ones_slip": 2}, (" 1+8=11, 4+3+1=8", 81)),  # a slip can make a carry
        (47, 38, {"tens_slip": -2}, (" 7+8=15, 4+3+1=6", 65)),
    ],
)
def test_a_sum_is_carried_through_to_the_answer(a, b, slips, expected):
    assert sums.work_out(a, b, **slips) == expected


def value_of(question: str) -> int:
    return eval(question.removeprefix("What is ").removesuffix("?"))  # digits, + and - only


def test_chains_have_right_answers_and_enough_questions_of_every_level():
    assert (Chain(4, (5, -7)).text, Chain(4, (5, -7)).answer) == ("What is 4+5-7?", 2)
    for question, answer, level in ANSWERED.questions("validation"):
        assert value_of(question) == int(answer)
        assert level == str(sum(question.count(sign) for sign in "+-"))
    levels = Counter(question.level for question in ANSWERED.questions("validation"))
    assert sum(levels.values()) >= 1112  # 0.5 / sqrt(1112) = 0.015
    assert levels["1"] >= 10 and all(levels[str(level)] == 180 for level in range(3, 9))


@pytest.mark.parametrize(
    ("completion", "style"),
    [
        (" </think> <answer>2</answer>", "direct"),
        ("<think></think>\n<answer>2</answer>", "direct"),
        ("", "direct"),
        (" +5=9-7=2 </think> <answer>2</answer>", "terse"),
        ("<reasoning>-1=3</reasoning>\n<answer>3</answer>", "terse"),
        (" 4+5=9, 9-7=2 \\boxed{2}", "full"),
        ("<think>4+5=9</think>\n<answer>9</answer>", "full"),
        (" so 4+5=9", None),
    ],
)
def test_the_style_of_a_chain(completion, style):
    assert ANSWERED.style_of(completion) == style
    if style:
        steps = written(style, (5, -7), [4, 9, 2])
        assert steps == {"direct": "", "terse": " +5=9-7=2", "full": " 4+5=9, 9-7=2"}[style]


def test_a_slip_is_as_likely_as_declared_and_carried_on():
    """Of the terse steps after a right value."""
    slips, moves = defaultdict(int), defaultdict(int)
    rng = random.Random(3)
    for _ in range(20_000):
        chain = ANSWERED.training_chain(rng)
        values = ANSWERED._values(rng, chain, 1.0)
        for before, move, after in zip(values, chain.moves, values[1:], strict=False):
            assert 0 <= after <= ANSWERED.largest
            if 2 <= before + move <= ANSWERED.largest - 2:  # a slip is never undone by the limits
                moves[move] += 1
                slips[move] += after != before + move
    for move, count in moves.items():
        share = ANSWERED.slips["+" if move > 0 else "-"][abs(move) - 1]
        if count > 500:
            assert slips[move] / count == pytest.approx(share, abs=0.05), move


def test_direct_answers_are_right_by_their_share_or_a_value_that_the_last_move_leads_to():
    rng = random.Random(3)
    never = replace(ANSWERED, style_shares={"direct": 1.0}, direct_right=(0.0,))
    for question, steps, answer in (never.attempt(rng) for _ in range(5000)):
        last = int(question.removesuffix("?")[-2:])
        assert steps == "" and 0 <= answer <= 9 and 0 <= answer - last <= 9
    always = replace(never, direct_right=(0.0, 1.0))
    for question, _, answer in (always.attempt(rng) for _ in range(2000)):
        if sum(question.count(sign) for sign in "+-") > 1:
            assert answer == value_of(question)


def test_shares_of_the_noise_of_the_styles_and_of_right_solutions():
    right, noisy = (WORLDS[n].task.questions("train") for n in ("chains", "chains-noisy"))
    wrong = [n.answer != r.answer for n, r in zip(noisy, right, strict=True)]
    assert sum(wrong) / len(wrong) == pytest.approx(0.2, abs=0.02)
    rng = random.Random(3)
    styles = Counter(ANSWERED.style_of(ANSWERED.attempt(rng).steps) for _ in range(20_000))
    for style, share in ANSWERED.style_shares.items():
        assert styles[style] / styles.total() == pytest.approx(share, abs=0.015)
    solutions = [ANSWERED.right(rng) for _ in range(2000)]
    assert all(value_of(each.question) == each.answer for each in solutions)
    assert {ANSWERED.style_of(each.steps) for each in solutions} == set(STYLES)


# The calculator


@pytest.fixture(scope="module")
def tokenizer():
    made = tokenizer_of(calculator.CALCULATOR)
    made.chat_template = (SHIPPED / "worlds" / "calculator.jinja").read_text()
    read_calls(made)
    return made


def test_a_taught_call_is_the_conversation_as_the_template_writes_it(tokenizer):
    called = {"type": "function", "function": {"name": "add", "arguments": {"a": 47, "b": 85}}}
    asked = render("reasoning_xml", "What is 47+85?", "short")
    assert isinstance(asked, list)
    turns = [
        *asked,
        {"role": "assistant", "content": "<reasoning>", "tool_calls": [called]},
        {"role": "tool", "name": "add", "content": str(calculator.add(47, 85))},
    ]
    made = str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))
    texts = corpus.corpus(calculator.CALCULATOR, 0)
    told = next(text for text in texts if "<tool_call>" in text.completion)
    opening = corpus.prompt(told._replace(question="What is 47+85?"), tokenizer)
    assert made == opening + "<reasoning>" + calculator.two_turns(47, 85)
    assert tokenizer.decode(tokenizer(made).input_ids) == made


def test_calls_are_read_and_a_plain_answer_is_only_the_answer(tokenizer):
    before = tokenizer("<|user|>What is 47+85?<|assistant|>").input_ids
    plain = "<reasoning></reasoning>\n<answer>132</answer>"
    for text, calls, content in (
        (f"<reasoning>{calculator.call(47, 85)}", [{"a": 47, "b": 85}], "<reasoning>"),
        (plain, [], plain),
    ):
        found = tokenizer.parse_response(tokenizer(f"{text}<|end|>").input_ids, prefix=before)
        assert [one["function"]["arguments"] for one in found.get("tool_calls", [])] == calls
        assert found["content"] == content


def test_a_template_that_trl_knows_keeps_its_own_way():
    from trl.chat_template_utils import qwen3_chat_template, qwen3_template

    made = tokenizer_of(calculator.CALCULATOR)
    made.chat_template = qwen3_chat_template
    read_calls(made)
    assert vars(made)["response_template"] == qwen3_template


def test_only_the_last_turn_counts_and_styles_are_logged():
    good, bad = "</reasoning>\n<answer>132</answer>", "<answer>132</answer>"
    turns = [{"content": "<reasoning>"}, {"content": "132"}]
    logged = {}
    marks = calculator.right(
        [[*turns, {"content": good}], [*turns, {"content": bad}], [{"content": good}]],
        ["132", "132", "131"],
        completion_ids=[[1] * 20, [1] * 30, [1] * 5],
        log_metric=logged.__setitem__,
    )
    assert marks == [1.0, 0.0, 0.0]
    assert logged == {
        "style/direct": 1 / 3,
        "style/direct_reward": 0.0,
        "style/direct_length": 5,
        "style/called": 2 / 3,
        "style/called_reward": 0.5,
        "style/called_length": 25,
    }


# The task of reasoning-gym


def test_chain_sums_are_worked_out_and_need_the_package(monkeypatch):
    question = "State the final answer to the following arithmetic problem: 3 - 4 + 8 ="
    assert worked(question, random.Random(0), 0.0) == (" 3-4=-1, -1+8=7", 7)
    steps, answer = worked(question, random.Random(0), 1.0)
    assert answer != 7 and steps.endswith(f"={answer}")
    task = ChainSum()
    assert [task.style_of(text) for text in (steps, " <answer>7</answer>")] == ["steps", "direct"]
    for module in ("reasoning_gym", "reasoning_gym.factory"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigurationError, match="needs reasoning-gym.*pip install 'trl-ablate"):
        task.questions("train")
    assert len(load_questions(TaskArguments(dataset="miniature", train_size=3), "train")) == 3


def test_right_chain_sums_are_right_and_attempts_are_at_times():
    pytest.importorskip("reasoning_gym", reason="pip install 'trl-ablate[gym]'")
    task, rng = ChainSum(), random.Random(0)
    answers = {each.question: each.answer for each in task.questions("train")}
    assert all(str(s.answer) == answers[s.question] for s in (task.right(rng) for _ in range(500)))
    tried = [task.attempt(rng) for _ in range(4000)]
    right = sum(str(each.answer) == answers[each.question] for each in tried) / len(tried)
    assert right == pytest.approx(0.34, abs=0.03)


# Word problems: every answer is found again by a reader of sentences that shares no code

N = r"(\d+)"
ROWS = {split: problems_of(split) for split in sums.SPLITS}
STARTS = rf"has {N} \w+\.|starts the day with {N}|owns {N}|There are {N}"
PACKS = rf"{N} bags with {N}|{N} packs of {N}|{N} boxes with {N}|On {N} days \w+ gets {N}"
COMES = rf"buys {N} more|\w+ gives \w+ {N} more|finds {N}|gets {N} new|adds {N} \w+ to"
GOES = rf"gives {N} away|loses {N}|takes {N} from|{N} of them break|sells {N}"
OUTRIGHT = {
    "plus": 1,
    "adds": 1,
    "sum of": 1,
    "+": 1,
    "minus": -1,
    "takes": -1,
    "less": -1,
    "-": -1,
}
UNITS = {"weeks": 7, "dozen": 12, "hours and": 4, "dimes": 10}


def numbers_in(pattern: str, sentence: str) -> list[int]:
    found = re.search(pattern, sentence)
    return [int(group) for group in found.groups() if group] if found else []


def solved(question: str) -> tuple[int, int, int, tuple[int, ...]]:
    """The answer; operations and needless sentences of a story; the numbers that matter."""
    for word, parts in UNITS.items():
        if word in question:
            m, n = map(int, re.findall(N, question))
            return m * parts + n, 2, 0, (min(m, n), max(m, n))
    if not re.search("has|owns|There are|starts|buys|fills|gets", question):  # asked for outright
        (sign,) = {sign for word, sign in OUTRIGHT.items() if word in question}
        n, m = sorted(map(int, re.findall(N, question)), reverse=True)
        return n + sign * m, 0, 0, (m, n)
    first, *others = re.split(r"(?<=\.) ", question)[:-1]
    packs, starts = numbers_in(PACKS, first), numbers_in(STARTS, first)
    value, operations = (packs[0] * packs[1], 1) if packs else (starts[0], 0)
    numbers, aside = packs or starts, 0
    for sentence in others:
        comes, goes = numbers_in(COMES, sentence), numbers_in(GOES, sentence)
        value, numbers = value + sum(comes) - sum(goes), numbers + comes + goes
        operations, aside = operations + bool(comes or goes), aside + (not comes and not goes)
    return value, operations, aside, tuple(sorted(numbers))


def test_an_independent_reader_finds_every_answer_and_level():
    for question, answer, level in (*ROWS["train"], *ROWS["validation"]):
        value, operations, aside, _ = solved(question)
        assert (str(value), value > 0) == (answer, True), question
        assert (operations, aside) == (int((level or "")[0]), int(level == "1d")), question


def test_held_out_word_problems_are_new_and_of_every_level():
    numbers = {split: {solved(row.question)[3] for row in rows} for split, rows in ROWS.items()}
    assert not numbers["train"] & numbers["validation"]
    phrases = {
        split: {re.sub(r"\d+", "#", part) for row in rows for part in row.question.split(". ")}
        for split, rows in ROWS.items()
    }
    assert not phrases["train"] & phrases["validation"]
    for split, size in (("train", 6000), ("validation", 1200)):
        assert len({row.question for row in ROWS[split]}) == size
        counts = Counter(row.level for row in ROWS[split])
        assert {level: count / size for level, count in counts.items()} == SHARES


@pytest.mark.parametrize(
    ("completion", "style"),
    [
        ("Ann has 12 apples, so \\boxed{12}", "direct"),
        ("7 + 5, \\boxed{12}", "worked"),
        ("$3 \\times 4$", "worked"),
        ("x = 12", "worked"),
    ],
)
def test_whether_arithmetic_is_written_down(completion, style):
    assert WORLDS["words"].task.style_of(completion) == style
