"""Loading questions: sources, bad rows, subsets, prompts."""

import ctypes
import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from datasets import Dataset, DatasetDict
from datasets.exceptions import DatasetGenerationError

from trl_ablate.data.questions import check_enough, check_prompts_fit, load_questions, to_prompts
from trl_ablate.data.usable_rows import final_answer
from trl_ablate.errors import ConfigurationError
from trl_ablate.task import TaskArguments

SHARED_DATA = Path(__file__).parents[3].parent / "shared" / "data"
GOOD = {"question": "1+1?", "answer": "2"}
ROWS = [
    {"question": "1+1?", "answer": "2", "level": 1, "tags": ["a", "b"], "source": "book"},
    {"question": "2+2?", "answer": "4", "level": 2, "tags": ["b"], "source": None},
    {"question": "3+3?", "answer": "6", "level": 3, "tags": [], "source": "web"},
]


OWN_REWARD = {"reward_funcs": ["accuracy_reward"]}
"""With it, no reward of this package compares answers."""


def load(name, split="train", **settings):
    """The questions that a task with these settings trains on."""
    return load_questions(TaskArguments(dataset=str(name), train_split=split, **settings), "train")


def write_lines(path: Path, *lines: object) -> str:
    encoded = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    path.write_bytes(b"\n".join(encoded) + b"\n")
    return str(path)


def numbered(count: int) -> list[dict[str, str]]:
    subjects = ["Algebra", "Geometry"]
    return [
        {"problem": f"{i}+1?", "answer": str(i + 1), "level": f"Level {i % 5 + 1}",
         "subject": subjects[i % 2]}
        for i in range(count)
    ]  # fmt: skip


def test_final_answer():
    answers = {
        "42": "42",
        "work <<1+1=2>>\n#### 1,080": "1,080",
        r"so it is $\boxed{\frac{1}{2}}$.": r"\frac{1}{2}",
        r"first \boxed{1}, then \boxed{\{2, 3\}}": r"\{2, 3\}",
        r"which is $\boxed 7$.": "7",
        "": "",
    }
    assert {text: final_answer(text) for text in answers} == answers


# Sources


def written(folder, kind):
    path = folder / f"train.{kind}"
    table = pyarrow.Table.from_pylist(ROWS)
    if kind == "jsonl":
        write_lines(path, *ROWS)
    elif kind == "json":
        path.write_text(json.dumps(ROWS, indent=1))
    elif kind == "parquet":
        pyarrow.parquet.write_table(table, path)
    elif kind == "arrow":
        with pyarrow.ipc.new_file(path, table.schema) as file:
            file.write_table(table)
    elif kind == "splits":
        rows = {"train": ROWS, "test": ROWS[:2]}
        DatasetDict({name: Dataset.from_list(rows[name]) for name in rows}).save_to_disk(path)
    else:
        Dataset.from_list(ROWS).save_to_disk(path)
        path = next(path.glob("*.arrow")) if kind == "stream" else path
    return path


@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet", "arrow", "saved", "splits", "stream"])
def test_every_kind_of_file_keeps_all_columns(tmp_path, kind):
    path = written(tmp_path, kind)
    data = load(path)
    assert data.column_names == ["question", "answer", "level", "tags", "source"]
    assert data[0] == {**ROWS[0], "level": "1"}
    assert data["source"][:] == ["book", None, "web"]
    if kind == "splits":
        assert len(load(path, split="validation")) == 2
        with pytest.raises(ConfigurationError, match="'dev': dataset .* has train, test; give one"):
            load(path, split="dev")


def test_columns_in_their_usual_order_and_by_name(tmp_path):
    data = load(write_lines(tmp_path / "a.jsonl", *numbered(3)))
    assert data.column_names == ["question", "answer", "level", "subject", "problem"]
    assert (data[1]["question"], data[1]["problem"]) == ("1+1?", "1+1?")
    source = write_lines(tmp_path / "b.jsonl", {"q": "1+1?", "a": 2}, {"q": "1/2?", "a": 0.5})
    assert load(source, question_column="q", answer_column="a")["answer"] == ["2", "0.5"]
    answers = [0.1, 1 / 3, 12.0, 2.0**30, 2.0**-15]  # as a column of float32 gives them
    halves = [ctypes.c_float(one).value for one in answers]
    rows = [{"question": "?", "answer": one} for one in halves]
    assert load(write_lines(tmp_path / "d.jsonl", *rows))["answer"] == [
        "0.1", "0.33333334", "12.0", "1073741824.0", "3.0517578125e-05",
    ]  # fmt: skip
    worked = {"problem": "1+1?", "solution": r"It is \boxed{2}."}
    data = load(write_lines(tmp_path / "c.jsonl", worked))
    assert data[0] == {"question": "1+1?", "answer": "2", **worked}
    plain = {"problem": "1+1?", "solution": 2, "image": None, "images": []}
    data = load(write_lines(tmp_path / "e.jsonl", plain), answer_column="solution")
    assert data[0] == {"question": "1+1?", "answer": "2", "problem": "1+1?", "solution": 2}


def test_csv_columns_become_numbers_only_if_nothing_is_lost(tmp_path):
    path = tmp_path / "train.csv"
    long = "?" * 200_000
    path.write_text(f'question,answer,level,code,share\n"1, 1?",2,1,007,0.50\n{long},4,,8,1\n')
    data = load(path)
    assert data[0] == {
        "question": "1, 1?", "answer": "2", "level": "1", "code": "007", "share": "0.50",
    }  # fmt: skip
    assert data["level"][:] == ["1", None] and data["question"][1] == long


def test_a_folder_offers_its_splits(tmp_path, monkeypatch):
    write_lines(tmp_path / "train.jsonl", *numbered(3))
    write_lines(tmp_path / "test.jsonl", *numbered(2))
    assert len(load(tmp_path)) == 3
    assert len(load(tmp_path, split="validation")) == 2
    with pytest.raises(ConfigurationError, match=r"'dev'.*contains test\.jsonl, train\.jsonl"):
        load(tmp_path, split="dev")
    # In parts, as the Hub has them, it is read as `load_dataset` reads it.
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "mine" / "data").mkdir(parents=True)
    for part, rows in enumerate((["1+1", "1+2"], ["1+3"])):
        made = Dataset.from_dict({"question": rows, "answer": [2, 3][: len(rows)]})
        made.to_parquet(tmp_path / "mine" / "data" / f"train-0000{part}-of-00002.parquet")
    assert load(tmp_path / "mine")["question"] == ["1+1", "1+2", "1+3"]
    made.to_parquet(tmp_path / "mine" / "data" / "test-00000-of-00001.parquet")
    assert load(tmp_path / "mine", split="validation")["question"] == ["1+3"]


def test_a_dataset_of_the_hub_by_its_usual_split_or_a_sentence(monkeypatch):
    asked = []

    def load_dataset(name, config, split):
        asked.append((name, config, split))
        if name == "mine/train_only":
            raise ValueError(f'Unknown split "{split}".')
        if name == "mine/damaged":
            raise DatasetGenerationError("no rows")
        if name != "openai/gsm8k":
            raise ConnectionError("no network.\nmore")
        if split == "validation":
            raise ValueError('Unknown split "validation"')
        return Dataset.from_list([{"question": "0+1?", "answer": "adding gives #### 1"}])

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    assert load("gsm8k", split="validation")["answer"][:] == ["1"]
    assert asked == [("openai/gsm8k", "main", split) for split in ("validation", "test")]
    with pytest.raises(ConfigurationError, match=r"MATH-lighteval.*\(no network\); check"):
        load("math")
    for name, reason in (("train_only", 'Unknown split "test"'), ("damaged", "no rows")):
        with pytest.raises(ConfigurationError, match=f"{reason}.; check the name and the split"):
            load(f"mine/{name}", split="validation")
    for name in ("/nowhere/gone", "./gone.jsonl", "gone.parquet"):  # these are files
        with pytest.raises(ConfigurationError, match="no such file"):
            load(name)


@pytest.mark.skipif(not SHARED_DATA.is_dir(), reason=f"no MATH and GSM8K at {SHARED_DATA}")
def test_math_and_gsm8k():
    with pytest.raises(ConfigurationError, match=r"train\.jsonl, line 7037: empty answer"):
        load(SHARED_DATA / "math")
    for name, split, rows in (
        ("math", "train", 7498),  # two of the 7500 have no answer
        ("math", "validation", 5000),
        ("gsm8k", "train", 7473),
        ("gsm8k", "test", 1319),
    ):
        assert len(load(SHARED_DATA / name, split=split, skip_bad_rows=True)) == rows


def test_the_miniature():
    data = load("miniature", train_size=5, subset_seed=1)
    assert data.column_names == ["question", "answer", "level"]
    assert data[:] == load("miniature/chains", train_size=5, subset_seed=1)[:]
    assert len(load("miniature", split="test", train_size=3)) == 3
    assert load("miniature/sums", train_size=5).column_names == ["question", "answer"]
    held = load("miniature/chains", split="validation")
    assert len(held) >= 1112  # so that no standard error of a pass rate is above 0.015
    assert set(held["level"]) == set("12345678")
    hard = load("miniature/chains", split="validation", levels=["7", "Level 8"], train_size=300)
    assert set(hard["level"]) == {"7", "8"} and len(hard) == 300


@pytest.mark.parametrize(
    ("name", "given", "sentence"),
    [
        ("miniature/sums", {"levels": ["1"]}, "levels=.'1'. match no row .* none at all"),
        ("miniature", {"split": "dev"}, "'dev'"),
        ("miniature/cubes", {}, "'cubes' is no world of the miniature; it has"),
        (
            "miniature/chains", {"split": "validation", "levels": ["1"], "train_size": 30},
            "size is 30; the validation set has 18 problems",
        ),
    ],
)  # fmt: skip
def test_what_the_miniature_does_not_have(name, given, sentence):
    with pytest.raises(ConfigurationError, match=sentence):
        load(name, **given)


# Bad rows


BAD_LINES = [
    (b"{", "not JSON"),
    (b"[" * 100_000, "not JSON"),
    (b'{"question": "\xff", "answer": "2"}', r"not UTF-8 \(byte 15 of the line\)"),
    # JSON can contain half a character, but Arrow and tokenizers cannot.
    (b'{"question": "b \\uD800", "answer": "2"}', r"text with .*ud800, which is half of a surr"),
    (b"[1, 2]", "a JSON list, not an object"),
    ({"question": "1+1?"}, "no column 'answer' or 'solution'; the row has 'question'"),
    ({"question": "1+1?", "answer": None}, "no value in column 'answer'"),
    ({"question": "1+1?", "answer": ""}, "empty answer"),
    ({"question": " \n", "answer": "2"}, "empty question"),
    ({"question": "1+1?", "answer": ["2"]}, "column 'answer' contains a list, not text"),
    ({"question": "1+1?", "answer": True}, "column 'answer' contains a bool, not text"),
    ({"question": "1+1?", "answer": float("nan")}, "no value in column 'answer'"),
    ({"question": "1+1?", "answer": "so it is ####"}, "empty answer in column 'answer'"),
    ({"question": "1+1?", "solution": "it is 2"}, r"no \\boxed in column 'solution'"),
    ({"answer": "2"}, "no column 'question' or 'problem'"),
    ({"question": "1?", "answer": "2", "prompts": 1}, "a column is called 'prompts'"),
    ({"question": "1?", "answer": "2", "image": "a.png"}, "column 'image' has an image"),
]


@pytest.mark.parametrize(("line", "reason"), BAD_LINES)
def test_a_bad_row_stops_or_is_counted(tmp_path, caplog, line, reason):
    source = write_lines(tmp_path / "bad.jsonl", GOOD, b"", line, GOOD, line)
    with pytest.raises(ConfigurationError, match=rf"bad\.jsonl, line 3: {reason}.*skip_bad_rows"):
        load(source)
    with caplog.at_level(logging.WARNING, "trl_ablate.data.questions"):
        assert len(load(source, skip_bad_rows=True)) == 2
    assert "skipped 2 bad rows of 4; the first:" in caplog.text
    assert "bad.jsonl, line 3" in caplog.text


PARQUET = b"PAR1 no"
NESTED = b'{"question": "1?", "answer": "2", "x": ' + b"[" * 800 + b"]" * 800 + b"}"
MIXED = b'{"question": "1?", "answer": "2", "x": 1}\n{"question": "1?", "answer": "2", "x": "a"}\n'


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.csv", b"question,answer\n1?,2,3\n", "line 2: 3 fields, but the first line names 2"),
        ("a.csv", b"question,question\n1?,2\n", "give each a name of its own"),
        ("a.csv", b"question,answer\n\xff,2\n", "not UTF-8 text .byte"),
        ("a.csv", b"question,answer\n,2\n", "line 2: no value in column 'question'"),
        ("a.csv", b'question,answer\n"1', "is not a CSV file"),
        ("a.json", b'[{"question": "1?", "answer": "2"}, 3]', "item 2: a JSON int, not an object"),
        ("a.json", b'[{"question": "1?", ', "line 1: not JSON"),
        ("a.parquet", PARQUET, "is not a Parquet file"),
        ("a.arrow", b"ARROW no", "is not an Arrow file"),
        ("a.txt", b"1+1?", "is not a supported file type; give a file that ends in .jsonl"),
        ("a.jsonl", b"\n", "no usable rows left.*levels, subjects and filter"),
        ("a.jsonl", MIXED, "column 'x' mixes values"),
        ("a.jsonl", NESTED, "column 'x' nests 800 lists"),
        ("dataset_dict.json", b"{", "could not be read .*; save it again with save_to_disk"),
    ],
)
def test_bad_data_are_refused_in_one_sentence(tmp_path, name, content, sentence):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigurationError, match=sentence) as raised:
        load(tmp_path if name == "dataset_dict.json" else tmp_path / name)
    assert "\n" not in str(raised.value)


def test_a_row_of_parquet_has_a_number_and_a_byte_order_mark_is_no_defect(tmp_path):
    table = pyarrow.Table.from_pylist([GOOD, {"question": "?", "answer": None}])
    pyarrow.parquet.write_table(table, tmp_path / "bad.parquet")
    with pytest.raises(ConfigurationError, match=r"bad\.parquet, row 2: no value in column"):
        load(tmp_path / "bad.parquet")
    line = b'\xef\xbb\xbf{"question": "a \\ud83d\\ude00", "answer": "1"}'  # a whole pair, too
    assert load(write_lines(tmp_path / "a.jsonl", line))["question"][:] == ["a \U0001f600"]


def test_answers_are_read_only_where_a_reward_of_ours_compares_them(tmp_path):
    source = write_lines(tmp_path / "a.jsonl", {**GOOD, "answer": "so #### 2"}, {"question": "2?"})
    assert load(source, **OWN_REWARD)["answer"][:] == ["so #### 2", None]
    with pytest.raises(ConfigurationError, match="line 1: no column 'gold'; the row has 'quest"):
        load(source, answer_column="gold", **OWN_REWARD)
    with pytest.raises(ConfigurationError, match="line 2: no column 'answer' or 'solution'"):
        load(source)


# Subsets


def test_a_subset_is_the_same_in_every_run(tmp_path, caplog):
    """Pinned: another Python or another version of a library must not draw other rows."""
    source = write_lines(tmp_path / "a.jsonl", *numbered(100))
    drawn = [f"{i}+1?" for i in (8, 16, 30, 47, 60, 69, 74, 75, 77, 80)]
    assert load(source, train_size=10, subset_seed=3)["question"] == drawn
    assert load(source, train_size=10, subset_seed=4)["question"] != drawn
    with caplog.at_level(logging.WARNING, "trl_ablate.data.questions"):
        assert len(load(source, train_size=101)) == 100
    assert "101 rows asked for, 100 there are" in caplog.text


# Prompts


class WordTokenizer:
    """Counts words, which is enough to test the counting of tokens."""

    def __call__(self, text, **kwargs):
        return {"input_ids": text.split()}

    def apply_chat_template(self, conversation, **kwargs):
        return " ".join(message["content"] for message in conversation)


def test_prompts_keep_the_other_columns(tmp_path):
    data = load(write_lines(tmp_path / "a.jsonl", *numbered(2)))
    short = to_prompts(data, TaskArguments(prompt_style="short"))
    assert short.column_names == ["question", "answer", "level", "subject", "problem", "prompt"]
    assert short["prompt"][1] == "User: 1+1?\nAssistant: <think>"
    chat = to_prompts(data, TaskArguments(template="think_xml"))
    assert [message["role"] for message in chat["prompt"][0]] == ["system", "user"]


def test_prompts_of_the_rows_stay_as_they_are(tmp_path):
    messages = [{"role": "system", "content": "Add."}, {"role": "user", "content": "1+1?"}]
    rows = [{"prompt": messages, "gold": 2}, {"prompt": messages, "gold": 3}]
    source, given = write_lines(tmp_path / "a.jsonl", *rows), {"prompt_column": "prompt"}
    data = load(source, **given, answer_column="gold", **OWN_REWARD)
    assert data["answer"][:] == [2, 3] and data["gold"][:] == [2, 3]
    assert to_prompts(data, TaskArguments(**given))["prompt"][0] == messages
    source = write_lines(tmp_path / "b.jsonl", {"prompt": [{"text": "1+1?"}]})
    with pytest.raises(ConfigurationError, match="'prompt' contains.*neither a text"):
        load(source, **given, **OWN_REWARD)


@pytest.mark.parametrize("template", ["question_only", "think_xml"])
def test_questions_with_long_prompts_are_dropped_and_counted(tmp_path, caplog, template):
    long = {"question": "word " * 500, "answer": "1"}
    data = load(write_lines(tmp_path / "a.jsonl", GOOD, long, GOOD))

    def prompted(data, template, limit):
        task = TaskArguments(template=template, max_prompt_length=limit)
        return to_prompts(data, task, WordTokenizer(), "train questions")

    with caplog.at_level(logging.WARNING, "trl_ablate.data.questions"):
        kept = prompted(data, template, 400)
    assert kept["question"] == [GOOD["question"]] * 2
    assert "train questions: dropped 1 of 3 questions, 2 are left" in caplog.text
    assert "max_prompt_length 400 tokens, the longest" in caplog.text and "(row 1)" in caplog.text
    only = prompted(data.select([0]), "question_only", 1)
    assert len(only) == 1  # as long as the limit
    with pytest.raises(ConfigurationError, match="all 1 prompts have more than max_p"):
        prompted(data.select([1]), template, 1)


@pytest.mark.parametrize("style", ["text", "messages"])
def test_a_prompt_beyond_the_models_context_is_refused_before_it_takes_hours(style):
    questions = ["1+1?", "2+2?" + "1 +" * 50_000, "3+3?"]
    messages = [[{"role": "user", "content": question}] for question in questions]
    prompts = questions if style == "text" else messages
    dataset = Dataset.from_dict({"question": questions, "prompt": prompts})
    untouched: Any = None  # a text of fewer bytes than the context is not tokenized
    check_prompts_fit(dataset.select([0, 2]), untouched, 4, "train questions")
    with pytest.raises(ConfigurationError, match="row 1 has 50001 tokens.*context of 256.*2\\+2"):
        check_prompts_fit(dataset, WordTokenizer(), 256, "train questions")


def test_fewer_questions_than_a_rollout_batch_takes_are_refused():
    """TRL would train zero steps without any message."""
    config: Any = SimpleNamespace(generation_batch_size=256, num_generations=8)
    questions = Dataset.from_dict({"question": [str(n) for n in range(32)]})
    check_enough(questions, config)
    with pytest.raises(ConfigurationError, match="there are 31 questions.*takes 32 .*256 / num_g"):
        check_enough(questions.select(range(31)), config)
