"""Prompts: the texts of our templates, the user's own files, and a system prompt."""

import pytest

from trl_ablate.errors import ConfigurationError
from trl_ablate.prompts.templates import TEMPLATES, prompt_text, prompt_writer, render

R1_ZERO = (
    "A conversation between User and Assistant. The User asks a question, and the Assistant "
    "solves it. The Assistant first thinks about the reasoning process in the mind and then "
    "provides the User with the answer. The reasoning process is enclosed within <think> "
    "</think> and answer is enclosed within <answer> </answer> tags, respectively, i.e., "
    "<think> reasoning process here </think> <answer> answer here </answer>.\n"
    "User: What is 1+1?\nAssistant: <think>"
)


def test_texts_are_word_for_word():
    assert render("r1_zero", "What is 1+1?") == R1_ZERO
    assert render("r1_zero", "1+1?", "short") == "User: 1+1?\nAssistant: <think>"
    for style in ("full", "short"):
        assert render("question_only", "What is 1+1?", style) == "What is 1+1?"


@pytest.mark.parametrize("style", ["full", "short"])
@pytest.mark.parametrize("tag", ["reasoning", "think"])
def test_xml_templates_are_a_system_prompt_and_a_question(tag, style):
    system, user = render(f"{tag}_xml", "What is 1+1?", style)
    assert system["role"] == "system"
    assert user == {"role": "user", "content": "What is 1+1?"}
    for part in (f"<{tag}>", f"</{tag}>\n<answer>", "</answer>"):
        assert part in system["content"]
    assert len(prompt_text(f"{tag}_xml", "short")) < len(prompt_text(f"{tag}_xml")) / 3


def test_the_message_of_the_user_may_have_more_than_the_question():
    user = {"role": "user", "content": "1+1? Reply with the number only."}
    system = {"role": "system", "content": "You are a calculator."}
    assert render("last_number", "1+1?", "short") == [system, user]
    own = prompt_writer("last_number", "short", "Mine.", ["question"])({"question": "1+1?"})
    assert own == [{**system, "content": "Mine."}, user]


@pytest.mark.parametrize("name", TEMPLATES)
def test_braces_and_backslashes_in_a_question_stay(name):
    question = r"Let $\{x, {0}\}$ and {question} be sets \n. %s"
    prompt = render(name, question)
    assert question in (prompt if isinstance(prompt, str) else prompt[-1]["content"])
    assert prompt_writer(name, "full", None, ["question"])({"question": question}) == prompt


def test_unknown_names_list_the_known_ones():
    with pytest.raises(ConfigurationError, match="'r1zero'.*r1_zero, question_only"):
        render("r1zero", "1+1?")
    with pytest.raises(ConfigurationError, match="'tiny'.*full, short"):
        render("r1_zero", "1+1?", "tiny")


# The user's own files


ASKED = r"What is \frac{1}{2}?"
ROW = {"question": ASKED, "level": 3, "hint": None}


def written(tmp_path, text, name="prompt.txt", system=None):
    if text is not None:
        (tmp_path / name).write_text(text)
    return prompt_writer(str(tmp_path / name), "full", system, tuple(ROW))(ROW)


@pytest.mark.parametrize(
    ("name", "text", "prompt"),
    [
        (
            "p.txt",
            "Level {level}: {question} Answer as \\boxed{}, or {{question}} {1}.\n",
            r"Level 3: What is \frac{1}{2}? Answer as \boxed{}, or {question} {1}.",
        ),
        ("mark.txt", "\ufeff{question}", ASKED),  # as Windows saves a text
        ("p.jinja", "{% if level > 2 %}Hard: {% endif %}{{ question }}", "Hard: " + ASKED),
    ],
)
def test_a_file_takes_any_column(tmp_path, name, text, prompt):
    assert written(tmp_path, text, name) == prompt


def test_a_system_prompt_makes_messages(tmp_path):
    user = {"role": "user", "content": "Q: " + ASKED}
    found = written(tmp_path, "Q: {question}", system="Add.")
    assert found == [{"role": "system", "content": "Add."}, user]
    assert written(tmp_path, "Q: {question}", system="") == [user]
    system, user = prompt_writer("think_xml", "full", "Mine.", list(ROW))(ROW)
    assert (system["content"], user["content"]) == ("Mine.", ASKED)


@pytest.mark.parametrize(
    ("text", "name", "sentence"),
    [
        ("Solve it.", "p.txt", "does not contain {question}"),
        ("Solve it.", "p.jinja", "does not contain {question}"),
        ("{question} {leval}", "p.txt", "column 'leval', which the data do not have; they have"),
        ("{{ question }} {{ leval }}", "p.jinja", "names the column 'leval'"),
        ("{question} {hint}", "p.txt", "'hint', which is empty for the question"),
        ("{{ question }", "p.jinja", "is not a Jinja template"),
        ("{{ question }} {{ level / 0 }}", "p.jinja", "cannot write the prompt.*ZeroDivisionError"),
        ("{{ question }} {{ ''.__class__.__mro__ }}", "p.jinja", "cannot write the prompt"),
        (None, "none.txt", "no template file .*none.txt"),
        (None, "folder.txt", "cannot be read: Is a directory"),
        (None, "bytes.txt", "not UTF-8"),
    ],
)
def test_a_wrong_file_is_refused_in_one_sentence(tmp_path, text, name, sentence):
    (tmp_path / "folder.txt").mkdir()
    (tmp_path / "bytes.txt").write_bytes(b"\xff{question}")
    with pytest.raises(ConfigurationError, match=sentence) as raised:
        written(tmp_path, text, name)
    assert "\n" not in str(raised.value)
