"""Tasks of reasoning-gym: their questions by config, size and seed, and their own scorers."""

import inspect
import re
import sys

import pytest

from trl_ablate.data.questions import load_questions
from trl_ablate.errors import ConfigurationError
from trl_ablate.rewards import MathGrader
from trl_ablate.rewards.gym import READS, score
from trl_ablate.rewards.own.chosen import Tools, chosen_rewards
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


COMPOSITE = {"datasets": [{"name": "chain_sum", "config": {"seed": 1}}, {"name": "gcd"}]}


@pytest.mark.parametrize("gym", [{}, {"dataset": "reasoning_gym/composite", "gym": COMPOSITE}])
def test_an_evaluation_has_other_questions(gym):
    train, test = rows(**gym, train_size=50), rows("eval", **gym, eval_size=50)
    assert len(test) == 50 and not set(train["question"]) & set(test["question"])


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


@pytest.mark.parametrize(
    ("main", "one", "apart"),
    [
        ({"reward_funcs": ["reasoning_gym", "mine.brief"]}, {"gym": {"min_terms": 8}}, []),
        ({}, "reasoning_gym/gcd", []),
        ({}, "gsm8k", ["one"]),
        ({"dataset": "gsm8k"}, "reasoning_gym/gcd", ["one"]),
    ],
)
def test_a_set_is_graded_apart_where_its_rewards_are_others(main, one, apart):
    task = TaskArguments(**SETTINGS | main, eval_sets={"one": one})
    assert task.sets_with_rewards == apart


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


HOSTILE = "open({0!r}, 'w')", "exit()", "9**9**9**9", "__import__('pathlib').Path({0!r}).touch()"


@pytest.mark.parametrize("name", READS)
def test_no_answer_is_executed(tmp_path, name):
    """It gets what the scorer gives for a text that it cannot read, at once."""
    found = rows(dataset=f"reasoning_gym/{name.partition('.')[2]}", train_size=1)
    sly = ("oracle_answer", "oracle_answer.split()", "[i for i in oracle_answer]")
    texts = [f"\\boxed{{{text.format(str(tmp_path / 'ran'))}}}" for text in (*HOSTILE, *sly, "?!")]
    given = {name: found[name][:] * len(texts) for name in ("gym", "gym_index")}
    scores = score([], texts, [], **given, form="question_only")
    assert set(scores) == {scores[-1]} and scores[-1] in (0.0, 0.01)
    assert not (tmp_path / "ran").exists()


def test_every_scorer_that_runs_an_answer_is_known():
    from reasoning_gym.factory import DATASETS

    def runs(kind):
        source = inspect.getsource(kind.score_answer)
        return re.search(r"\b(?:eval|exec|parse_expr|sympify|getattr)\((?!entry)", source)

    modules = {kind.__module__ for kind, _ in DATASETS.values() if runs(kind)}
    assert modules == {f"reasoning_gym.{name}" for name in READS}


@pytest.mark.parametrize(
    ("name", "answer", "worth"),
    [
        ("string_insertion", lambda row: str(list(row["answer"])), 0.1),
        ("spiral_matrix", lambda row: str(row["answer"].split()), 0.1),
        ("countdown", lambda row: f" ({row['answer']}) / 1**1", 0.05),
        ("countdown", lambda row: f"-(-({row['answer']}))", 1.0),
        ("simple_integration", lambda row: f"{row['answer']} + 7 - sin(pi/2)**2", 1.0),
        ("simple_integration", lambda row: f"{row['answer']} + x*X", 0.0),
        ("polynomial_multiplication", lambda row: f"1*({row['answer']})", 1.0),
    ],
)
def test_harmless_answers_score_as_before(name, answer, worth):
    found = rows(dataset=f"reasoning_gym/{name}", train_size=3)
    texts = [f"</think> <answer> {answer(row)} </answer>" for row in found]
    assert score([], texts, [], found["gym"], found["gym_index"]) == [worth] * 3


@pytest.mark.slow
def test_scorers_run_in_workers_that_are_killed():
    """The task decides what a formula is worth, and that may take for ever."""
    (spec,) = TaskArguments(**SETTINGS | {"dataset": "reasoning_gym/puzzle24"}).own_rewards
    (function,) = chosen_rewards([spec], Tools(MathGrader(1), None, str, workers=1)).functions
    found, metrics = rows(dataset="reasoning_gym/puzzle24", train_size=2), {}
    given = {name: found[name][:] for name in ("gym", "gym_index")}
    texts = [f"\\boxed{{{found['answer'][0]}}}", r"\boxed{gamma(99999999)}"]
    ids = {"prompts": texts, "completion_ids": [[1]] * 2, "log_metric": metrics.__setitem__}
    assert function(completions=texts, **ids, **given) == [1.0, None]
    assert metrics["grader/reasoning_gym/timeouts"] == 1.0


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"dataset": "reasoning_gym/chain_sun"}, "is not a task .*did you mean 'chain_sum'"),
        ({"gym": {"terms": 3}}, "refuses gym .*unexpected keyword argument 'terms'"),
        ({"gym": {"min_terms": 9, "max_terms": 2}}, "refuses gym .*min_terms"),
        (
            {"dataset": "reasoning_gym/graph_color", "reward": "question_only"},
            "has questions without an answer, which the rewards of this recipe compare; name its",
        ),
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
