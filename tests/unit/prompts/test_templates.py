"""The templates: prompt texts, stop strings, and whether their parts fit together."""

from typing import get_args

import pytest

from trl_ablate.errors import ConfigurationError
from trl_ablate.prompts.templates import TEMPLATES, TemplateName, prompt_text, render

R1_ZERO = (
    "A conversation between User and Assistant. The User asks a question, and the Assistant "
    "solves it. The Assistant first thinks about the reasoning process in the mind and then "
    "provides the User with the answer. The reasoning process is enclosed within <think> "
    "</think> and answer is enclosed within <answer> </answer> tags, respectively, i.e., "
    "<think> reasoning process here </think> <answer> answer here </answer>.\n"
    "User: What is 1+1?\nAssistant: <think>"
)


def test_r1_zero_is_word_for_word():
    assert render("r1_zero", "What is 1+1?") == R1_ZERO


def test_short_r1_zero():
    assert render("r1_zero", "1+1?", "short") == "User: 1+1?\nAssistant: <think>"


@pytest.mark.parametrize("style", ["full", "short"])
def test_question_only_is_the_question(style):
    assert render("question_only", "What is 1+1?", style) == "What is 1+1?"


@pytest.mark.parametrize("style", ["full", "short"])
@pytest.mark.parametrize("tag", ["reasoning", "think"])
def test_xml_templates_are_a_system_prompt_and_a_question(tag, style):
    system, user = render(f"{tag}_xml", "What is 1+1?", style)
    assert system["role"] == "system"
    assert user == {"role": "user", "content": "What is 1+1?"}
    for part in (f"<{tag}>", f"</{tag}>\n<answer>", "</answer>"):
        assert part in system["content"]


def test_short_system_prompts_are_shorter():
    for name in ("reasoning_xml", "think_xml"):
        assert len(prompt_text(name, "short")) < len(prompt_text(name)) / 3


@pytest.mark.parametrize("name", TEMPLATES)
def test_braces_and_backslashes_in_a_question_stay(name):
    question = r"Let $\{x, {0}\}$ and {question} be sets \n. %s"
    prompt = render(name, question)
    text = prompt if isinstance(prompt, str) else prompt[-1]["content"]
    assert question in text


def test_every_template_has_a_name_stop_strings_and_weighted_rewards():
    assert tuple(TEMPLATES) == get_args(TemplateName)
    for name, template in TEMPLATES.items():
        assert template.name == name
        assert len(template.rewards) == len(template.reward_weights) > 0
        assert template.stop == (() if name == "question_only" else ("</answer>",))
    assert sum(TEMPLATES["reasoning_xml"].reward_weights) == 3.0
    assert sum(TEMPLATES["r1_zero"].reward_weights) == 1.0


def test_unknown_names_list_the_known_ones():
    with pytest.raises(ConfigurationError, match="'r1zero'.*r1_zero, question_only"):
        render("r1zero", "1+1?")
    with pytest.raises(ConfigurationError, match="'tiny'.*full, short"):
        render("r1_zero", "1+1?", "tiny")
