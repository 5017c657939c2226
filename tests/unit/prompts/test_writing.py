"""Prompts from the user's own files, and with a system prompt."""

import pytest

from trl_ablate.errors import ConfigurationError
from trl_ablate.prompts.templates import render
from trl_ablate.prompts.writing import prompt_writer

ROW = {"question": r"What is \frac{1}{2}?", "level": 3, "hint": None}


def written(tmp_path, text, name="prompt.txt", system=None, columns=tuple(ROW)):
    (tmp_path / name).write_text(text)
    return prompt_writer(str(tmp_path / name), "full", system, columns)(ROW)


def test_a_text_file_takes_any_column(tmp_path):
    text = "Level {level}: {question} Answer as \\boxed{}, or {{question}} {1}.\n"
    assert written(tmp_path, text) == (
        r"Level 3: What is \frac{1}{2}? Answer as \boxed{}, or {question} {1}."
    )


def test_a_jinja_file_has_the_columns_as_variables(tmp_path):
    text = "{% if level > 2 %}Hard: {% endif %}{{ question }}"
    assert written(tmp_path, text, "p.jinja") == r"Hard: What is \frac{1}{2}?"


def test_a_system_prompt_makes_messages(tmp_path):
    user = {"role": "user", "content": "Q: " + ROW["question"]}
    found = written(tmp_path, "Q: {question}", system="Add.")
    assert found == [{"role": "system", "content": "Add."}, user]
    assert written(tmp_path, "Q: {question}", system="") == [user]
    system, user = prompt_writer("think_xml", "full", "Mine.", list(ROW))(ROW)
    assert (system["content"], user["content"]) == ("Mine.", ROW["question"])


@pytest.mark.parametrize("name", ["r1_zero", "question_only", "reasoning_xml", "think_xml"])
def test_our_templates_are_written_as_before(name):
    write = prompt_writer(name, "full", None, list(ROW))
    assert write(ROW) == render(name, ROW["question"])


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
    ],
)
def test_a_wrong_file_is_refused_in_one_sentence(tmp_path, text, name, sentence):
    with pytest.raises(ConfigurationError, match=sentence) as raised:
        written(tmp_path, text, name)
    assert "\n" not in str(raised.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match="no template file .*none.txt"):
        prompt_writer(str(tmp_path / "none.txt"), "full", None, ["question"])
    (tmp_path / "bytes.txt").write_bytes(b"\xff{question}")
    with pytest.raises(ConfigurationError, match="not UTF-8"):
        prompt_writer(str(tmp_path / "bytes.txt"), "full", None, ["question"])
