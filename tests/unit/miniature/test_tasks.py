"""The worlds' questions, answers and styles: the digests hold every question and every taught text,
and so all shares of styles, slips and levels that studies were made with."""

import hashlib
import json
import random
import re
import sys
from itertools import islice
from runpy import run_path

import pytest

from trl_ablate import ConfigurationError
from trl_ablate.cli.new import STARTER
from trl_ablate.data.questions import load_questions
from trl_ablate.miniature import corpus
from trl_ablate.miniature.registry import WORLDS
from trl_ablate.miniature.tokens import tokenizer_of
from trl_ablate.miniature.worlds import calculator, sums, words
from trl_ablate.miniature.worlds.gym_tasks import ChainSum, worked
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


@pytest.mark.parametrize("name", sorted(WORLDS.keys() - DIGESTS.keys()))
def test_a_world_whose_questions_no_digest_holds_is_whole(name):
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


def test_word_problems_share_no_words_and_no_set_of_numbers_that_matter():
    train, held_out = (words.PHRASES[split] for split in sums.SPLITS)
    assert all(not set(said) & set(other) for said, other in zip(train, held_out, strict=True))
    ours, theirs = (
        {
            tuple(sorted(re.findall(r"\d+", one.question)))
            for one in words.problems_of(split)
            if one.level != "1d"  # one of its numbers does not matter
        }
        for split in sums.SPLITS
    )
    assert theirs and not ours & theirs


STYLES = {
    ("chains", "direct"): (
        " </think> <answer>2</answer>", "<think></think>\n<answer>2</answer>", "",
    ),
    ("chains", "terse"): (
        " +5=9-7=2 </think> <answer>2</answer>", "<reasoning>-1=3</reasoning>\n<answer>3</answer>",
    ),
    ("chains", "full"): (
        " 4+5=9, 9-7=2 \\boxed{2}", "<think>4+5=9</think>\n<answer>9</answer>",
    ),
    ("chains", None): (" so 4+5=9",),
    ("words", "direct"): ("Ann has 12 apples, so \\boxed{12}",),
    ("words", "worked"): ("7 + 5, \\boxed{12}", "$3 \\times 4$", "x = 12"),
    ("gym-chain_sum", "steps"): (" 3-4=-1, -1+8=7",),
    ("gym-chain_sum", "direct"): (" <answer>7</answer>",),
}  # fmt: skip


@pytest.mark.parametrize(("world", "style"), STYLES)
def test_the_style_of_a_completion(world, style):
    for completion in STYLES[world, style]:
        assert WORLDS[world].task.style_of(completion) == style, completion


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


def test_chain_sums_are_worked_out_and_need_the_package(monkeypatch):
    question = "State the final answer to the following arithmetic problem: 3 - 4 + 8 ="
    assert worked(question, random.Random(0), 0.0) == (" 3-4=-1, -1+8=7", 7)
    steps, answer = worked(question, random.Random(0), 1.0)
    assert answer != 7 and steps.endswith(f"={answer}")
    task = ChainSum()
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


def test_the_world_to_begin_with_holds_out_both_orders_of_a_pair():
    world = run_path(str(STARTER / "world" / "world.py"))["Larger"]()
    train, held_out = (
        {frozenset(re.findall(r"\d+", asked.question)) for asked in world.questions(split)}
        for split in ("train", "validation")
    )
    assert len(held_out) == 1000 and not train & held_out
