"""Which questions a task uses: conditions, levels, pass rates, evaluation sets."""

from decimal import Decimal

import pytest

from tests.unit.data.test_questions import ROWS, load, numbered, write_lines
from trl_ablate import miniature
from trl_ablate.data.filters import conditions, filtered, of_these
from trl_ablate.data.questions import load_questions
from trl_ablate.errors import ConfigurationError
from trl_ablate.estimates import pass_rates
from trl_ablate.task import TaskArguments
from trl_ablate.training.building import evaluation_sets

KEPT = [
    ("level >= 2", [1, 2]), ("level > 1 and level < 3", [1]), ("level <= 1", [0]),
    ("level == 2", [1]), ("level != 2", [0, 2]), ("source == null", [1]),
    ("source == book", [0]), ('"source" == "book"', [0]),
    ("source in [book, web]", [0, 2]), ("source not in [book, web]", [1]),
    ("tags contains b", [0, 1]), ('question contains "and"', []),
    ("question contains +2", [1]), ("question contains 02", []),
    ("source != Counting & Probability", [0, 1, 2]), (["level >= 2", "source == web"], [2]),
    (None, [0, 1, 2]),
]  # fmt: skip


@pytest.mark.parametrize(("condition", "kept"), KEPT)
def test_conditions(condition, kept):
    assert filtered(ROWS, condition, "mine") == [ROWS[index] for index in kept]


def test_the_number_in_a_text_is_compared_and_a_value_is_no_python():
    rows = [{"level": f"Level {n}"} for n in range(1, 6)]
    assert filtered(rows, "level >= 4", "math") == rows[3:]
    rows = [{"level": "Level-5", "ok": "True"}, {"level": "-5", "ok": "False"}]  # as of a CSV file
    for condition in ("level > 3", "level >= 5", "ok != false", "ok == true", "ok in [true]"):
        assert filtered(rows, condition, "mine") == rows[:1]
    assert filtered([{"n": 10**400}, {"n": 1}], "n > 3", "mine") == [{"n": 10**400}]
    ids = [{"id": 2**53 + n, "price": Decimal(n) / 2} for n in range(3)]
    for condition in ("id == 9007199254740993", "id in [9007199254740993]", "price == 0.5"):
        assert filtered(ids, condition, "mine") == ids[1:2]
    assert filtered(ids, f"id > {2**53} and price <= 0.5", "mine") == ids[1:2]
    (one,) = conditions("question == __import__('os').system('true')")
    assert one.value == "__import__('os').system('true')"
    (one,) = conditions("author not in [\"Smith, John\", 'Doe' , O'Hara]")
    assert one.value == ["Smith, John", "Doe", "O'Hara"]


@pytest.mark.parametrize(
    ("condition", "sentence"),
    [
        ("level", "is not a condition; write COLUMN OPERATOR VALUE"),
        ("level => 3", "is not a condition|has '> 3'"),
        ("level >=", "has no value at its end"),
        ("level >= high", "has 'high' after >=; give a number"),
        ("source in book", "needs a list after in; write"),
        ("source != web AND level >= 3", "has 'web AND level >= 3' after !=; join"),
        ("source == 'book' || source == 'web'", "join conditions with `and`"),
        ("level in [1, 2", r"has '\[1, 2' after in; .* end a list"),
        ("level in [1], source in [web]", "after in; .* end a list"),
        ("lvl >= 3", "names the column 'lvl', which dataset 'mine' does not have; it has question"),
        ("source > 3", "compares column 'source' with a number, but a row has 'book'"),
    ],
)
def test_a_wrong_condition_is_refused(condition, sentence):
    with pytest.raises(ConfigurationError, match=sentence):
        filtered(ROWS, condition, "mine")


def test_levels_and_subjects_in_any_spelling_before_the_size(tmp_path):
    source = write_lines(tmp_path / "a.jsonl", *numbered(10))
    for levels in ([5], ["5"], ["Level 5"]):
        assert load(source, levels=levels)["level"] == ["Level 5", "Level 5"]
    assert of_these("level", [0], [{"level": 0}, {"level": 1}, {}], "mine") == [{"level": 0}]
    assert load(source, subjects=["algebra"], train_size=2)["subject"] == ["Algebra", "Algebra"]
    assert load(source, filter="level >= 5", train_size=2)["question"][:] == ["4+1?", "9+1?"]
    for given, sentence in (
        ({"levels": [7]}, r"levels=\['7'\].*1, 2, 3, 4, 5"),
        ({"subjects": ["Topology"]}, r"subjects=\['topology'\].*algebra, geometry"),
        ({"filter": "level > 5"}, "no usable rows left.*levels, subjects and filter"),
    ):
        with pytest.raises(ConfigurationError, match=sentence):
            load(source, **given)
    with pytest.raises(ConfigurationError, match="prompt_column is 'p', but miniature/words makes"):
        load("miniature/words", prompt_column="p")


# Evaluation sets


def test_an_evaluation_set_has_its_own_data_and_settings(tmp_path):
    source = write_lines(tmp_path / "mine.jsonl", *ROWS)
    other = write_lines(tmp_path / "other.jsonl", {"q": "9?", "a": 9}, {"q": "8?", "a": 8})
    task = TaskArguments(
        dataset=source, filter="level > 1", eval_size=9, subset_seed=5, skip_bad_rows=True,
        reward_funcs=["answer"],
        eval_sets={
            "hard": {"filter": "level >= 3"},
            "other": {"dataset": other, "split": "test", "size": 1, "question_column": "q",
                      "answer_column": "a", "reward": "question_only"},
        },
    )  # fmt: skip
    for name, asked in (("hard", "3+3?"), ("other", "8?")):
        assert load_questions(task.evaluation_task(name), "eval")["question"][:] == [asked]
    assert load_questions(task, "eval")["question"][:] == ["2+2?", "3+3?"]
    assert task.evaluation_task("other").filter is None
    assert not task.evaluation_task("other").own_rewards  # its `reward` replaces reward_funcs


def test_further_sets_are_drawn_like_the_main_one_and_leave_it_as_it_is(tmp_path):
    mine = write_lines(tmp_path / "mine.jsonl", *numbered(20))
    common = {"dataset": "miniature", "eval_size": 5, "prompt_style": "short"}
    alone, both = (
        evaluation_sets(TaskArguments(**common, **more), miniature.tokenizer())
        for more in ({}, {"eval_sets": {"mine": mine}, "eval_split": "test"})
    )
    assert [*both] == ["", "mine"]
    assert [both[""].to_list()] == [one.to_list() for one in alone.values()]
    assert len(both["mine"]) == 5 and all(row["question"] in row["prompt"] for row in both["mine"])


# Pass rates


def of_rates(tmp_path, rates, between, dataset=None):
    rows = [{"question": question, "pass_rate": rate} for question, rate in rates.items()]
    pass_rate = {"file": write_lines(tmp_path / "rates.jsonl", *rows), "between": between}
    source = dataset or write_lines(tmp_path / "train.jsonl", *ROWS)
    return TaskArguments(dataset=source, pass_rate=pass_rate, train_size=2)


def test_questions_are_chosen_by_their_pass_rate_before_the_size(tmp_path):
    task = of_rates(tmp_path, {"1+1?": 0.0, "2+2?": 0.5, "3+3?": None}, [0.1, 0.9])
    assert load_questions(task, "train")["question"][:] == ["2+2?"]
    assert len(load_questions(task, "eval")) == 3
    alls = load("miniature/sums", train_size=200)["question"][:]
    task = of_rates(tmp_path, dict.fromkeys(alls[5:9], 0.5), [0.1, 0.9], "miniature/sums")
    assert load_questions(task, "train")["question"][:] == alls[5:7]
    even = load("miniature/sums", filter="answer == 100", train_size=3)
    assert even["answer"][:] == ["100"] * 3
    assert 3 < len(load("miniature/sums", filter="answer == 100")) < 4096  # the usual size


def test_a_row_without_a_question_has_the_rate_of_its_prompt(tmp_path):
    prompts = ["1+1=", [{"role": "user", "content": "2+2="}], [{"role": "user", "content": "3="}]]
    rows = [{"prompt": prompt, "answer": "2"} for prompt in prompts]
    rates = pass_rates([{**row, "reward": float(row is rows[1])} for row in rows])
    pass_rate = {"file": write_lines(tmp_path / "rates.jsonl", *rates), "between": [0.5, 1]}
    source = write_lines(tmp_path / "mine.jsonl", *rows)
    found = load(source, pass_rate=pass_rate, prompt_column="prompt")
    assert found["prompt"][:] == prompts[1:2]


@pytest.mark.parametrize(
    ("rates", "between", "sentence"),
    [
        ({"9+9?": 0.5}, [0, 1], "has none of the 3 questions"),
        ({"1+1?": 0.5}, [0.6, 1], "none of 1 questions .* has a rate between 0.6 and 1"),
        ({"1+1?": "often"}, [0, 1], "line 1, has no question and pass_rate"),
    ],
)
def test_wrong_pass_rates_are_refused(tmp_path, rates, between, sentence):
    task = of_rates(tmp_path, rates, between)
    with pytest.raises(ConfigurationError, match=sentence):
        load_questions(task, "train")


def test_a_damaged_line_of_pass_rates_is_named(tmp_path):
    task = of_rates(tmp_path, {"1+1?": 1.0}, [0, 1])
    with (tmp_path / "rates.jsonl").open("a") as file:
        file.write('{"question": "2+')
    with pytest.raises(ConfigurationError, match="line 2: not JSON.*; correct the line"):
        load_questions(task, "train")
