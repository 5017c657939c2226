"""Tasks of reasoning-gym: their questions by config, size and seed, and their own scorers."""

import sys

import pytest

from trl_ablate.data.questions import load_questions
from trl_ablate.errors import ConfigurationError
from trl_ablate.rewards.gym import score
from trl_ablate.task import TaskArguments

SETTINGS = {"dataset": "reasoning_gym/chain_sum", "template": "question_only"}

WITHOUT_ANSWERS = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}
"""Tasks that name no answer (0.1.25): many are right, and their scorers check the one given."""


@pytest.fixture(scope="module", autouse=True)
def reasoning_gym():
    return pytest.importorskip(
        "reasoning_gym", reason="reasoning-gym is not installed: pip install 'trl-ablate[gym]'"
    )


def rows(part="train", **settings):
    return load_questions(TaskArguments(**{**SETTINGS, **settings}), part)


def test_config_size_and_seed_are_those_of_the_task(reasoning_gym):
    gym = {"min_terms": 3, "max_terms": 3, "size": 7, "seed": 5}
    theirs = reasoning_gym.create_dataset("chain_sum", **gym)
    found = rows(gym=gym)
    assert found["question"] == [one["question"] for one in theirs]
    assert found["answer"] == [one["answer"] for one in theirs]
    assert set(found["num_terms"]) == {3}
    assert len(rows(gym=gym, train_size=4)) == 4
    assert rows(gym={"seed": 1}, train_size=4)["question"] != rows(train_size=4)["question"]


def test_an_evaluation_has_other_questions():
    train, test = rows(train_size=200), rows("eval", eval_size=200)
    assert len(test) == 200 and not set(train["question"]) & set(test["question"])


def test_filters_read_the_numbers_of_a_question():
    found = rows(train_size=40, filter="num_terms >= 5")
    assert 0 < len(found) < 40 and min(found["num_terms"]) >= 5


def test_the_tasks_own_scorer_is_the_reward():
    task = TaskArguments(**SETTINGS)
    (spec,) = task.own_rewards
    assert (spec.name, spec.kwargs) == ("reasoning_gym", {"form": "question_only"})
    (named,) = TaskArguments(**SETTINGS, reward_funcs=["reasoning_gym"]).own_rewards
    assert named == spec
    found = rows(gym={"size": 3})
    texts = [rf"so \boxed{{{answer}}}" for answer in found["answer"]]
    texts[1] = "no box"
    given = {"gym": found["gym"], "gym_index": found["gym_index"], **spec.kwargs}
    assert score([], texts, [], **given) == [1.0, 0.0, 1.0]
    assert score([], [r"\boxed{7000}"] * 3, [], **given)[0] < 1


def short_of_full(names):
    """The tasks of which an answer of their own does not earn full reward, in a template's form."""
    short = set()
    for name in names:
        settings = {"dataset": f"reasoning_gym/{name}", "train_size": 2}
        if name == "composite":
            settings["gym"] = {"datasets": [{"name": "chain_sum"}, {"name": "gcd", "weight": 2}]}
        found = rows(**settings)
        texts = [f" </think> <answer> {answer} </answer>" for answer in found["answer"]]
        if score([], texts, [], found["gym"], found["gym_index"]) != [1.0, 1.0]:
            short.add(name)
        assert (found["answer"] == [None, None]) == (name in WITHOUT_ANSWERS)
    return short


def test_own_answers_earn_full_reward():
    names = ["composite", "countdown", "graph_color", "knights_knaves", "maze", "mini_sudoku"]
    assert short_of_full(names) == {"graph_color"}


@pytest.mark.slow
def test_the_own_answers_of_every_task_earn_full_reward():
    from reasoning_gym.factory import DATASETS

    assert short_of_full(sorted(DATASETS)) == WITHOUT_ANSWERS
    assert len(DATASETS) == 106


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"dataset": "reasoning_gym/chain_sun"}, "is not a task .*did you mean 'chain_sum'"),
        ({"gym": {"terms": 3}}, "refuses gym .*unexpected keyword argument 'terms'"),
        ({"gym": {"min_terms": 9, "max_terms": 2}}, "refuses gym .*min_terms"),
        ({"gym": {"size": 0}}, "gym: size is 0; give a whole number from 1 on"),
        ({"gym": {"seed": "x"}}, "gym: seed is x; give a whole number from 0 on"),
    ],
)
def test_wrong_settings_are_refused_in_a_sentence(settings, sentence):
    with pytest.raises(ConfigurationError, match=sentence):
        rows(**settings)


def test_without_the_package_one_command_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym.composite", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'trl-ablate\[gym\]'"):
        rows()
