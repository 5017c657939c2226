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


def messages(system: str, user: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


def test_texts_are_word_for_word():
    assert render("r1_zero", "What is 1+1?") == R1_ZERO
    assert render("r1_zero", "1+1?", "short") == "User: 1+1?\nAssistant: <think>"
    for style in ("full", "short"):
        assert render("question_only", "What is 1+1?", style) == "What is 1+1?"
    asked = "1+1? Reply with the number only."  # more than the question
    assert render("last_number", "1+1?", "short") == messages("You are a calculator.", asked)
    own = prompt_writer("last_number", "short", "Mine.", ["question"])({"question": "1+1?"})
    assert own == messages("Mine.", asked)


@pytest.mark.parametrize("style", ["full", "short"])
@pytest.mark.parametrize("tag", ["reasoning", "think"])
def test_xml_templates_are_a_system_prompt_and_a_question(tag, style):
    text = prompt_text(f"{tag}_xml", style)
    assert render(f"{tag}_xml", "What is 1+1?", style) == messages(text, "What is 1+1?")
    assert all(part in text for part in (f"<{tag}>", f"</{tag}>\n<answer>", "</answer>"))


@pytest.mark.parametrize("name", TEMPLATES)
def test_braces_and_backslashes_in_a_question_stay(name):
    question = r"Let $\{x, {0}\}$ and {question} be sets \n. %s"
    prompt = render(name, question)
    assert question in (prompt if isinstance(prompt, str) else prompt[-1]["content"])


# The user's own files


ASKED = r"What is \frac{1}{2}?"
ROW = {"question": ASKED, "level": 3, "hint": None, "уровень": "C", "unit-price": 2, "self": 1}


def written(tmp_path, name, text, system=None):
    if text is not None:
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return prompt_writer(str(tmp_path / name), "full", system, tuple(ROW))(ROW)


@pytest.mark.parametrize(
    ("name", "text", "prompt"),
    [
        ("p.txt", "Level {level}: {question} Answer as \\boxed{}, or {{question}} {1}.\n",
         rf"Level 3: {ASKED} Answer as \boxed{{}}, or {{question}} {{1}}."),
        ("p.txt", "{question} {уровень}", f"{ASKED} C"),
        ("mark.txt", "\ufeff{question}", ASKED),  # as Windows saves a text
        ("p.jinja", "{% if level > 2 %}Hard: {% endif %}{{ question }}", "Hard: " + ASKED),
    ],
)  # fmt: skip
def test_a_file_takes_any_column(tmp_path, name, text, prompt):
    assert written(tmp_path, name, text) == prompt


def test_a_system_prompt_makes_messages(tmp_path):
    expected = messages("Add.", "Q: " + ASKED)
    assert written(tmp_path, "p.txt", "Q: {question}", system="Add.") == expected
    assert written(tmp_path, "p.txt", "Q: {question}", system="") == expected[1:]


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("p.txt", "Solve it.", "does not contain {question}"),
        ("p.jinja", "Solve it.", "does not contain {question}"),
        ("p.txt", "{question} {leval}", "column 'leval', which the data do not have; they have"),
        ("p.jinja", "{{ question }} {{ leval }}", "names the column 'leval'"),
        ("p.txt", "{question} {hint}", "'hint', which is empty for the question"),
        ("p.txt", "{question} {unit-price}", "column 'unit-price', which is not one word"),
        ("p.jinja", "{{ question }", "is not a Jinja template"),
        ("p.jinja", "{{ question }} {{ level / 0 }}", "cannot write the prompt.*ZeroDivisionError"),
        ("p.jinja", "{{ question }} {{ ''.__class__.__mro__ }}", "cannot write the prompt"),
        ("bytes.txt", b"\xff{question}", "not UTF-8"),
        ("none.txt", None, "no template file .*none.txt"),
        ("folder.txt", None, "cannot be read: Is a directory"),
    ],
)
def test_a_wrong_file_is_refused_in_one_sentence(tmp_path, name, text, sentence):
    (tmp_path / "folder.txt").mkdir()
    with pytest.raises(ConfigurationError, match=sentence) as raised:
        written(tmp_path, name, text)
    assert "\n" not in str(raised.value)
