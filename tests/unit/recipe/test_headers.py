"""The header of every shipped recipe: its question, a line that `trl-ablate recipes` prints."""

import re

import pytest
import yaml

from trl_ablate.recipe.places import SHIPPED

RECIPES = sorted(SHIPPED.glob("*.yaml"))
STUDIES = sorted(SHIPPED.glob("studies/*/study.yaml"))
LONGEST = 100


def question_of(text: str) -> str:
    """The first line of a recipe, without its label; every question has one line."""
    (found,) = re.findall(r"^# Question: +(.+)$", text, flags=re.MULTILINE)
    assert text.startswith("# Question: ")
    return found


def is_a_question(line: str) -> bool:
    """A short sentence: `Does it …?`, with at most a remark in brackets."""
    return len(line) <= LONGEST and bool(re.fullmatch(r"[A-Z][^?]*\?( \([^?]+\))?", line))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_begins_with_its_question(recipe):
    text = recipe.read_text(encoding="utf-8")
    assert is_a_question(question_of(text))
    assert re.search(r"^# Expectation: [A-Z1-9]", text, flags=re.MULTILINE)


@pytest.mark.parametrize("study", STUDIES, ids=lambda path: path.parent.name)
def test_a_study_has_a_question(study):
    assert is_a_question(yaml.safe_load(study.read_text(encoding="utf-8"))["question"])


def test_questions_tell_recipes_apart():
    questions = [question_of(recipe.read_text(encoding="utf-8")) for recipe in RECIPES]
    assert sorted(set(questions)) == sorted(questions)


@pytest.mark.parametrize(
    "line",
    [
        "does it help?",
        "Does it help",
        "Divide. By what?\nAnd why?",
        "Does " + "very " * 30 + "long?",
    ],
)
def test_what_is_no_question(line):
    assert not is_a_question(line)


@pytest.mark.parametrize(
    "text", ["extends: grpo.yaml\n", "# Expectation: None.\n# Question: Does it help?\n"]
)
def test_a_missing_question_is_found(text):
    with pytest.raises((ValueError, AssertionError)):
        question_of(text)
