"""The world with a tool: what is taught is what TRL's tool loop makes, token by token."""

import random
from collections import Counter
from itertools import islice

import pytest

from trl_ablate.miniature.corpus import corpus, prompt
from trl_ablate.miniature.tokens import tokenizer_of
from trl_ablate.miniature.worlds.calculator import CALCULATOR, add, call, right, two_turns
from trl_ablate.prompts.templates import render
from trl_ablate.recipe.places import SHIPPED
from trl_ablate.training.models import read_calls

TASK = CALCULATOR.task
RECIPE = SHIPPED / "worlds" / "calculator.yaml"


@pytest.fixture(scope="module")
def tokenizer():
    made = tokenizer_of(CALCULATOR)
    made.chat_template = (RECIPE.with_suffix(".jinja")).read_text()
    read_calls(made)
    return made


def messages(a: int, b: int) -> list[dict]:
    called = {"name": "add", "arguments": {"a": a, "b": b}}
    asked = render("reasoning_xml", f"What is {a}+{b}?", "short")
    assert isinstance(asked, list)
    return [
        *asked,
        {
            "role": "assistant",
            "content": "<reasoning>",
            "tool_calls": [{"type": "function", "function": called}],
        },
        {"role": "tool", "name": "add", "content": str(add(a, b))},
    ]


def test_the_taught_text_is_the_conversation_as_the_template_writes_it(tokenizer):
    made = str(
        tokenizer.apply_chat_template(messages(47, 85), tokenize=False, add_generation_prompt=True)
    )
    told = next(text for text in corpus(CALCULATOR, 0) if "<tool_call>" in text.completion)
    opening = prompt(told._replace(question="What is 47+85?"), tokenizer)
    assert made == opening + "<reasoning>" + two_turns(47, 85)
    assert tokenizer.decode(tokenizer(made).input_ids) == made


def test_calls_are_read_and_a_plain_answer_is_only_the_answer(tokenizer):
    before = tokenizer("<|user|>What is 47+85?<|assistant|>").input_ids
    for text, calls, content in (
        (f"<reasoning>{call(47, 85)}<|end|>", [{"a": 47, "b": 85}], "<reasoning>"),
        ("<reasoning></reasoning>\n<answer>132</answer><|end|>", [], None),
    ):
        found = tokenizer.parse_response(tokenizer(text).input_ids, prefix=before)
        arguments = [one["function"]["arguments"] for one in found.get("tool_calls", [])]
        assert arguments == calls
        expected = text.removesuffix("<|end|>") if content is None else content
        assert found["content"] == expected


def test_a_template_that_trl_knows_keeps_its_own_way():
    from trl.chat_template_utils import qwen3_chat_template, qwen3_template

    made = tokenizer_of(CALCULATOR)
    made.chat_template = qwen3_chat_template
    read_calls(made)
    assert vars(made)["response_template"] == qwen3_template


def test_only_the_last_turn_counts_and_styles_are_logged():
    good, bad = "</reasoning>\n<answer>132</answer>", "<answer>132</answer>"
    turns = [{"content": "<reasoning>"}, {"content": "132"}]
    logged = {}
    marks = right(
        [[*turns, {"content": good}], [*turns, {"content": bad}], [{"content": good}]],
        ["132", "132", "131"],
        completion_ids=[[1] * 20, [1] * 30, [1] * 5],
        log_metric=lambda name, value: logged.update({name: value}),
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


def test_what_the_base_is_taught():
    rng = random.Random(0)
    tried = [TASK.attempt(rng) for _ in range(4000)]
    styles = Counter(TASK.style_of(each.steps) for each in tried)
    assert styles["called"] / len(tried) == pytest.approx(0.3, abs=0.03)
    answers = {each.question: each.answer for each in TASK.questions("train")}
    for style, share in (("called", 0.6), ("direct", 0.1 + 0.9 / 25)):
        of_style = [each for each in tried if TASK.style_of(each.steps) == style]
        hits = [str(each.answer) == answers[each.question] for each in of_style]
        assert sum(hits) / len(hits) == pytest.approx(share, abs=0.04)
    longest = max(len(text.completion) for text in islice(corpus(CALCULATOR, 0), 500))
    assert longest < 150
