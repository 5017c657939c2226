"""Tasks of reasoning-gym: their questions by config, size and seed, and their own scorers."""

import inspect
import re
import sys

import pytest

from trl_ablate.data.questions import load_questions
from trl_ablate.errors import ConfigurationError
from trl_ablate.estimates import success
from trl_ablate.rewards import MathGrader
from trl_ablate.rewards.gym import READS, score, with_entries
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


def places(found, count=1):
    """Where a scorer finds its questions; each of them `count` times."""
    return {name: found[name][:] * count for name in ("gym", "gym_index")}


def test_config_size_and_seed_are_those_of_the_task(reasoning_gym):
    gym = {"min_terms": 3, "max_terms": 3, "size": 7, "seed": 5}
    theirs = reasoning_gym.create_dataset("chain_sum", **gym)
    found = rows(gym=gym)
    assert found["question"] == [one["question"] for one in theirs]
    assert found["answer"] == [one["answer"] for one in theirs]
    assert set(found["num_terms"]) == {3}
    assert len(rows(gym=gym, train_size=4)) == 4
    assert rows(gym={"seed": 1}, train_size=4)["question"] != rows(train_size=4)["question"]
    longer = rows(train_size=40, filter="num_terms >= 5")  # filters read the numbers of a question
    assert 0 < len(longer) < 40 and min(longer["num_terms"]) >= 5


COMPOSITE = {"datasets": [{"name": "chain_sum", "config": {"seed": 1}}, {"name": "gcd"}]}


@pytest.mark.parametrize("gym", [{}, {"dataset": "reasoning_gym/composite", "gym": COMPOSITE}])
def test_an_evaluation_has_other_questions(gym):
    train, test = rows(**gym, train_size=50), rows("eval", **gym, eval_size=50)
    assert len(test) == 50 and not set(train["question"]) & set(test["question"])


def test_the_tasks_own_scorer_is_the_reward():
    (spec,) = TaskArguments(**SETTINGS).own_rewards
    assert (spec.name, spec.kwargs) == ("reasoning_gym", {"form": "question_only"})
    assert TaskArguments(**SETTINGS, reward_funcs=["reasoning_gym"]).own_rewards == [spec]
    found = rows(gym={"size": 3})
    texts = [rf"so \boxed{{{answer}}}" for answer in found["answer"]]
    texts[1] = "no box"
    given = {**places(found), **spec.kwargs}
    assert score([], texts, [], **given) == [1.0, 0.0, 1.0]
    assert score([], [r"\boxed{7000}"] * 3, [], **given)[0] < 1


def test_a_set_is_graded_apart_where_its_rewards_are_others():
    for main, one, apart in (
        ({"reward_funcs": ["reasoning_gym", "mine.brief"]}, {"gym": {"min_terms": 8}}, []),
        ({}, "reasoning_gym/gcd", []),
        ({}, "gsm8k", ["one"]),
        ({"dataset": "gsm8k"}, "reasoning_gym/gcd", ["one"]),
    ):
        assert TaskArguments(**SETTINGS | main, eval_sets={"one": one}).sets_with_rewards == apart


@pytest.mark.slow
def test_the_own_answers_of_every_task_earn_full_reward():
    from reasoning_gym.factory import DATASETS

    short = set()
    for name in sorted(DATASETS):
        gym = {"datasets": COMPOSITE["datasets"]} if name == "composite" else None
        found = rows(dataset=f"reasoning_gym/{name}", gym=gym, train_size=1, template="r1_zero")
        texts = [f" </think> <answer> {answer} </answer>" for answer in found["answer"]]
        short |= {name} if score([], texts, [], **places(found)) != [1.0] else set()
        assert (found["answer"][0] is None) == (name in WITHOUT_ANSWERS)
    assert short == WITHOUT_ANSWERS and len(DATASETS) == 106


@pytest.mark.parametrize(
    ("name", "answer", "worth"),
    [
        ("string_insertion", lambda row: str(list(row["answer"])), 0.1),
        ("countdown", lambda row: f" ({row['answer']}) / 1**1", 0.05),
        ("countdown", lambda row: f"-(-({row['answer']}))", 1.0),
        ("simple_integration", lambda row: f"{row['answer']} + x*X", 0.0),
        ("polynomial_multiplication", lambda row: f"1*({row['answer']})", 1.0),
        ("maze", lambda row: row["answer"], 1.0),
    ],
)
def test_harmless_answers_score_as_in_the_package(name, answer, worth):
    found = rows(dataset=f"reasoning_gym/{name}", train_size=3)
    texts = [f"</think> <answer> {answer(row)} </answer>" for row in found]
    assert score([], texts, [], **places(found)) == [worth] * 3


@pytest.mark.parametrize(
    ("name", "answers"),
    [
        ("game_of_life_halting", ["abc"]),
        ("puzzle24", ["6*4*1*1", "24"]),
        ("prime_factorization", ["abc", "2, 3", "I do not know"]),
    ],
)
def test_no_answer_is_right_of_every_question_or_ungraded_for_its_form(name, answers):
    found = rows(dataset=f"reasoning_gym/{name}", train_size=20)
    for answer in answers:
        texts = [rf"\boxed{{{answer}}}"] * 20
        earned = score([], texts, [], **places(found), form="question_only")
        assert None not in earned and sum(earned) <= 1


def test_the_questions_of_two_seeds_are_others():
    first, second = ({*rows(subset_seed=seed, train_size=40)["question"]} for seed in (0, 1))
    assert not first & second


def test_a_part_of_the_score_is_no_success():
    """Countdown gives 0.05 for any number; `pass@k` and `pass_rate` count full scores alone."""
    columns = {}
    reward = with_entries(lambda **given: [0.05, 1.0, None])
    scores = reward(gym=[], gym_index=[], log_extra=columns.__setitem__)
    marks = zip(scores, columns["answer_reward"], strict=True)
    found = [success({"reward": score, "answer_reward": mark}) for score, mark in marks]
    assert found == [False, True, None]


HOSTILE = "open({0!r}, 'w')", "exit()", "9**9**9**9", "__import__('pathlib').Path({0!r}).touch()"
SLY = "oracle_answer", "oracle_answer.split()", "[i for i in oracle_answer]"


@pytest.mark.parametrize("name", READS)
def test_no_answer_is_executed(tmp_path, name):
    """It gets what the scorer gives for a text that it cannot read, at once."""
    found = rows(dataset=f"reasoning_gym/{name.partition('.')[2]}", train_size=1)
    ran = tmp_path / "ran"
    texts = [f"\\boxed{{{text.format(str(ran))}}}" for text in (*HOSTILE, *SLY, "?!")]
    earned = score([], texts, [], **places(found, len(texts)), form="question_only")
    assert set(earned) == {earned[-1]} and earned[-1] in (0.0, 0.01)
    assert not ran.exists()


def test_every_scorer_that_runs_an_answer_is_known():
    from reasoning_gym.factory import DATASETS

    def runs(kind):
        source = inspect.getsource(kind.score_answer)
        return re.search(r"\b(?:eval|exec|parse_expr|sympify|getattr)\((?!entry)", source)

    modules = {kind.__module__ for kind, _ in DATASETS.values() if runs(kind)}
    assert modules == {f"reasoning_gym.{name}" for name in READS}


@pytest.mark.slow
def test_scorers_run_in_workers_that_are_killed():
    """The task decides what a formula is worth, and that may take for ever."""
    countdown = {**SETTINGS, "dataset": "reasoning_gym/countdown"}
    (spec,) = TaskArguments(**countdown).own_rewards
    (function,) = chosen_rewards([spec], Tools(MathGrader(1), None, str, workers=1)).functions
    found, metrics = rows(**countdown, train_size=2), {}
    texts = [f"\\boxed{{{found['answer'][0]}}}", r"\boxed{gamma(99999999)}"]
    ids = {"prompts": texts, "completion_ids": [[1]] * 2, "log_metric": metrics.__setitem__}
    assert function(completions=texts, **ids, **places(found)) == [1.0, None]
    assert metrics["grader/reasoning_gym/timeouts"] == 1.0


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"dataset": "reasoning_gym/chain_sun"}, "is not a task .*did you mean 'chain_sum'"),
        ({"gym": {"terms": 3}}, "refuses gym .*unexpected keyword argument 'terms'"),
        ({"gym": {"min_terms": 9, "max_terms": 2}}, "refuses gym .*min_terms"),
        ({"dataset": "reasoning_gym/graph_color", "reward": "question_only"},
         "has questions without an answer, which the rewards of this recipe compare; name its"),
        ({"gym": {"size": 0}}, "gym: size is 0; give a whole number from 1 on"),
        ({"gym": {"seed": "x"}}, "gym: seed is x; give a whole number from 0 on"),
    ],
)  # fmt: skip
def test_wrong_settings_are_refused_in_a_sentence(settings, sentence):
    with pytest.raises(ConfigurationError, match=sentence):
        rows(**settings)


def test_without_the_package_one_command_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym.composite", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'trl-ablate\[gym\]'"):
        rows()
