"""Data sets of the user: every kind of file, all columns, conditions, prompts that rows bring."""

import json
import logging

import pyarrow
import pyarrow.parquet
import pytest
from datasets import Dataset, DatasetDict

from trl_ablate.data.choice import Selection, Source, evaluation_set, selection_of, source_of
from trl_ablate.data.filters import conditions, filtered
from trl_ablate.data.questions import load_questions, to_prompts
from trl_ablate.errors import ConfigurationError
from trl_ablate.task import TaskArguments

ROWS = [
    {"question": "1+1?", "answer": "2", "level": 1, "tags": ["a", "b"], "source": "book"},
    {"question": "2+2?", "answer": "4", "level": 2, "tags": ["b"], "source": None},
    {"question": "3+3?", "answer": "6", "level": 3, "tags": [], "source": "web"},
]


def load(name, filter=None, size=None, **given):
    return load_questions(Source(str(name), "train", **given), Selection(size, filter=filter))


def written(folder, kind):
    path = folder / f"train.{kind}"
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    elif kind == "json":
        path.write_text(json.dumps(ROWS, indent=1))
    elif kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    elif kind == "arrow":
        table = pyarrow.Table.from_pylist(ROWS)
        with pyarrow.ipc.new_file(path, table.schema) as file:
            file.write_table(table)
    elif kind == "saved":
        Dataset.from_list(ROWS).save_to_disk(path)
    else:
        path = folder / "splits"
        DatasetDict({"train": Dataset.from_list(ROWS)}).save_to_disk(path)
    return path


@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet", "arrow", "saved", "splits"])
def test_every_kind_of_file_keeps_all_columns(tmp_path, kind):
    data = load(written(tmp_path, kind))
    assert data.column_names == ["question", "answer", "level", "tags", "source"]
    assert data[0] == {**ROWS[0], "level": "1"}
    assert data["source"][:] == ["book", None, "web"]


def test_the_stream_that_datasets_writes_is_read(tmp_path):
    Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved")
    (arrow,) = (tmp_path / "saved").glob("*.arrow")
    assert load(arrow)["tags"][:] == [["a", "b"], ["b"], []]


def test_csv_columns_become_numbers_only_if_nothing_is_lost(tmp_path):
    path = tmp_path / "train.csv"
    path.write_text('question,answer,level,code,share\n"1, 1?",2,1,007,0.50\n2?,4,,8,1\n')
    data = load(path)
    assert data[0] == {
        "question": "1, 1?", "answer": "2", "level": "1", "code": "007", "share": "0.50",
    }  # fmt: skip
    assert data["level"][:] == ["1", None]


def test_answers_are_read_only_where_a_reward_of_ours_compares_them(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text('{"question": "1+1?", "answer": "so #### 2"}\n{"question": "2?"}\n')
    data = load(path, needs_answers=False)
    assert data["answer"][:] == ["so #### 2", None]
    with pytest.raises(ConfigurationError, match="line 2: no column 'answer' or 'solution'"):
        load(path)


def test_a_solution_stays_as_it_was_beside_its_final_answer(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps({"problem": "1+1?", "solution": r"It is \boxed{2}."}) + "\n")
    assert load(path)[0] == {
        "question": "1+1?", "answer": "2", "problem": "1+1?", "solution": r"It is \boxed{2}.",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("condition", "kept"),
    [
        ("level >= 2", [1, 2]),
        ("level > 1 and level < 3", [1]),
        ("level == 2", [1]),
        ("level != 2", [0, 2]),
        ("source == book", [0]),
        ("source == 'book'", [0]),
        ("source == null", [1]),
        ("source in [book, web]", [0, 2]),
        ("source not in [book, web]", [1]),
        ("tags contains b", [0, 1]),
        ('question contains "and"', []),
        ("question contains +2", [1]),
        (["level >= 2", "source == web"], [2]),
        (None, [0, 1, 2]),
    ],
)
def test_conditions(condition, kept):
    assert filtered(ROWS, condition, "mine") == [ROWS[index] for index in kept]


def test_the_number_in_a_text_is_compared():
    rows = [{"level": f"Level {n}"} for n in range(1, 6)]
    assert filtered(rows, "level >= 4", "math") == rows[3:]


@pytest.mark.parametrize(
    ("condition", "sentence"),
    [
        ("level", "is not a condition; write COLUMN OPERATOR VALUE"),
        ("__import__('os')", "is not a condition"),
        ("level => 3", "is not a condition|has '> 3'"),
        ("level >= high", "has 'high' after >=; give a number"),
        ("source in book", "needs a list after in; write"),
        ("lvl >= 3", "names the column 'lvl', which dataset 'mine' does not have; it has question"),
        ("source > 3", "compares column 'source' with a number, but a row has 'book'"),
    ],
)
def test_a_wrong_condition_is_refused(condition, sentence):
    with pytest.raises(ConfigurationError, match=sentence):
        filtered(ROWS, condition, "mine")


def test_a_condition_is_no_python():
    (one,) = conditions("question == __import__('os').system('true')")
    assert one.value == "__import__('os').system('true')"


def test_a_filter_comes_before_the_size(tmp_path):
    path = written(tmp_path, "jsonl")
    assert load(path, "level >= 2", 2)["question"][:] == ["2+2?", "3+3?"]
    with pytest.raises(
        ConfigurationError, match="no usable rows left.*levels, subjects and filter"
    ):
        load(path, "level > 3")


def test_prompts_of_the_rows_stay_as_they_are(tmp_path):
    messages = [{"role": "system", "content": "Add."}, {"role": "user", "content": "1+1?"}]
    path = tmp_path / "train.json"
    path.write_text(json.dumps([{"prompt": messages, "gold": 2}, {"prompt": messages, "gold": 3}]))
    data = load(path, prompt_column="prompt", columns=(None, "gold"), needs_answers=False)
    assert data["answer"][:] == [2, 3] and data["gold"][:] == [2, 3]
    assert to_prompts(data, None)["prompt"][0] == messages
    path.write_text(json.dumps([{"prompt": [{"text": "1+1?"}]}]))
    with pytest.raises(
        ConfigurationError, match="item 1: column 'prompt' contains.*neither a text"
    ):
        load(path, prompt_column="prompt", needs_answers=False)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.csv", b"question,answer\n1?,2,3\n", "line 2: 3 fields, but the first line names 2"),
        ("a.csv", b"question,question\n1?,2\n", "give each a name of its own"),
        ("a.csv", b"question,answer\n\xff,2\n", "not UTF-8 text .byte"),
        ("a.csv", b"question,answer\n,2\n", "line 2: no value in column 'question'"),
        ("a.json", b'[{"question": "1?", "answer": "2"}, 3]', "item 2: a JSON int, not an object"),
        ("a.json", b'[{"question": "1?", ', "line 1: not JSON"),
        ("a.parquet", b"PAR1 no", "is not a Parquet file"),
        ("a.arrow", b"ARROW no", "is not an Arrow file"),
        ("a.jsonl", b'{"question": "", "answer": "2"}\n', "line 1: empty question"),
        ("a.jsonl", b'{"question": "1?", "answer": "2", "prompts": 1}\n', "is called 'prompts'"),
        (
            "a.jsonl",
            b'{"question": "1?", "answer": "2", "x": 1}\n'
            b'{"question": "1?", "answer": "2", "x": "a"}\n',
            "column 'x' mixes values",
        ),
    ],
)  # fmt: skip
def test_bad_data_are_refused_in_one_sentence(tmp_path, name, content, sentence):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigurationError, match=sentence) as raised:
        load(tmp_path / name)
    assert "\n" not in str(raised.value)


def test_repeated_rows_are_reported(tmp_path, caplog):
    path = tmp_path / "train.json"
    path.write_text(json.dumps([ROWS[0], ROWS[1], {**ROWS[0], "level": 9}, ROWS[1]]))
    with caplog.at_level(logging.WARNING):
        assert len(load(path)) == 4
    assert "1 of 4 rows repeat an earlier row in every column, the first is '2+2?'" in caplog.text


def test_a_missing_column_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match="line 1: no column 'q'; the row has 'question'"):
        load(written(tmp_path, "jsonl"), columns=("q", None))


def test_evaluation_sets_with_their_own_settings():
    task = TaskArguments(
        dataset="mine.jsonl", question_column="q", filter="level > 1", eval_size=9,
        reward_funcs=["answer"],
        eval_sets={
            "hard": {"filter": "level >= 4", "size": 5},
            "other": {"dataset": "o.csv", "split": "test", "reward_funcs": ["trl.rewards.x"]},
        },
    )  # fmt: skip
    source, selection = evaluation_set(task, "hard")
    assert (source, selection.filter) == (source_of(task, "eval"), "level >= 4")
    assert (selection.size, selection_of(task, "eval").size) == (5, 9)
    source, selection = evaluation_set(task, "other")
    assert source == Source("o.csv", "test", needs_answers=False)
    assert selection == Selection(9, 0)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"sise": 3}, "'mine' has the unknown key 'sise'; use dataset"),
        ({"size": "3"}, "size of 'mine' is '3'; give a whole number"),
        ({"size": 0}, "eval_size is 0"),
        ({"reward_funcs": ["anser"]}, "did you mean 'answer'"),
    ],
)
def test_a_wrong_evaluation_set_is_refused(given, sentence):
    with pytest.raises(ConfigurationError, match=sentence):
        TaskArguments(eval_sets={"mine": given})


def rated(folder, **rates):
    file = folder / "rates.jsonl"
    rows = [{"question": f"{n[1:]}+{n[1:]}?", "pass_rate": rate} for n, rate in rates.items()]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def test_questions_are_chosen_by_their_pass_rate(tmp_path):
    file = rated(tmp_path, q1=0.0, q2=0.5, q3=None)
    task = TaskArguments(
        dataset=str(written(tmp_path, "jsonl")), pass_rate={"file": file, "between": [0.1, 0.9]}
    )
    data = load_questions(source_of(task, "train"), selection_of(task, "train"))
    assert data["question"][:] == ["2+2?"]
    assert selection_of(task, "eval").pass_rate is None


def test_the_miniature_is_chosen_from_before_its_size_is_drawn(tmp_path):
    alls = load("miniature/sums", size=200)["question"][:]
    file = tmp_path / "rates.jsonl"
    file.write_text(
        "".join(json.dumps({"question": q, "pass_rate": 0.5}) + "\n" for q in alls[5:9])
    )
    chosen = load_questions(
        Source("miniature/sums", "train"), Selection(2, pass_rate=(str(file), 0.1, 0.9))
    )
    assert chosen["question"][:] == alls[5:7]
    even = load("miniature/sums", "answer == 100", 3)
    assert even["answer"][:] == ["100"] * 3


@pytest.mark.parametrize(
    ("rates", "between", "sentence"),
    [
        ({"q9": 0.5}, [0, 1], "has none of the 3 questions"),
        ({"q1": 0.5}, [0.6, 1], "none of 1 questions .* has a rate between 0.6 and 1"),
        ({"q1": "often"}, [0, 1], "line 1, has no question and pass_rate"),
    ],
)
def test_wrong_pass_rates_are_refused(tmp_path, rates, between, sentence):
    task = TaskArguments(
        dataset=str(written(tmp_path, "jsonl")),
        pass_rate={"file": rated(tmp_path, **rates), "between": between},
    )
    with pytest.raises(ConfigurationError, match=sentence):
        load_questions(source_of(task, "train"), selection_of(task, "train"))


@pytest.mark.parametrize(
    "given",
    [{}, {"file": "a"}, {"file": 1, "between": [0, 1]}, {"file": "a", "between": [1, 0]},
     {"file": "a", "between": [0.1]}, {"file": "a", "between": ["0", "1"]}],
)  # fmt: skip
def test_a_wrong_pass_rate_setting_is_refused(given):
    with pytest.raises(ConfigurationError, match="pass_rate"):
        TaskArguments(pass_rate=given)


def test_a_folder_as_the_hub_has_it_is_read_as_load_dataset_reads_it(tmp_path, monkeypatch):
    from datasets import Dataset

    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "mine" / "data").mkdir(parents=True)
    for part, rows in enumerate((["1+1", "1+2"], ["1+3"])):
        made = Dataset.from_dict({"question": rows, "answer": [2, 3][: len(rows)]})
        made.to_parquet(tmp_path / "mine" / "data" / f"train-0000{part}-of-00002.parquet")
    found = load_questions(Source(str(tmp_path / "mine"), "train"))
    assert found["question"] == ["1+1", "1+2", "1+3"]
