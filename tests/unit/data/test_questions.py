"""Loading questions: sources, bad rows, subsets, prompts."""

import ctypes
import json
import logging
import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pyarrow
import pytest
from datasets import Dataset, DatasetDict
from datasets.exceptions import DatasetGenerationError
from pyarrow.feather import write_feather

from tests.conftest import SHARED_DATA
from trl_ablate.data.questions import check_enough, check_prompts_fit, load_questions, to_prompts
from trl_ablate.data.usable_rows import BadRowError, final_answer
from trl_ablate.errors import ConfigurationError
from trl_ablate.task import TaskArguments

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


@pytest.fixture
def loaded(tmp_path):
    """`loaded(*rows, **settings)`: the questions of a file with these rows."""
    return lambda *rows, **settings: load(write_lines(tmp_path / "mine.jsonl", *rows), **settings)


def numbered(count: int) -> list[dict[str, str]]:
    subjects = ["Algebra", "Geometry"]
    return [
        {"problem": f"{i}+1?", "answer": str(i + 1), "level": f"Level {i % 5 + 1}",
         "subject": subjects[i % 2]}
        for i in range(count)
    ]  # fmt: skip


def test_final_answer():
    answers = {
        "work <<1+1=2>>\n#### 1,080": "1,080",
        r"first \boxed{1}, then \boxed{\frac{1}{2}}": r"\frac{1}{2}",
        r"which is $\boxed 7$.": "7",
        "42": "42",
    }
    assert {text: final_answer(text) for text in answers} == answers
    with pytest.raises(BadRowError, match="without its closing brace"):
        final_answer(r"so that $1+\frac12=\boxed{\frac{3}{2")


# Sources


DATA = Dataset.from_list(ROWS)
WRITERS = {
    "jsonl": lambda path: write_lines(path, *ROWS),
    "json": lambda path: path.write_text(json.dumps(ROWS, indent=1)),
    "parquet": DATA.to_parquet,
    "arrow": partial(write_feather, pyarrow.Table.from_pylist(ROWS)),
    "saved": DATA.save_to_disk,
    "splits": DatasetDict(train=DATA, test=DATA.select([0, 1])).save_to_disk,
}


@pytest.mark.parametrize("kind", WRITERS)
def test_every_kind_of_file_keeps_all_columns(tmp_path, kind):
    path = tmp_path / f"train.{kind}"
    WRITERS[kind](path)
    data = load(path)
    assert data.column_names == ["question", "answer", "level", "tags", "source"]
    assert data[0] == {**ROWS[0], "level": "1"}
    assert data["source"][:] == ["book", None, "web"]
    if kind == "saved":  # a file in it is an Arrow stream
        assert load(next(path.glob("*.arrow")))[:] == data[:]
    if kind == "splits":
        assert len(load(path, split="validation")) == 2
        with pytest.raises(ConfigurationError, match="'dev': dataset .* has train, test; give one"):
            load(path, split="dev")


def test_columns_in_their_usual_order_and_by_name(loaded):
    data = loaded(*numbered(3))
    assert data.column_names == ["question", "answer", "level", "subject", "problem"]
    assert (data[1]["question"], data[1]["problem"]) == ("1+1?", "1+1?")
    worked = {"problem": "1+1?", "solution": r"It is \boxed{2}."}
    assert loaded(worked)[0] == {"question": "1+1?", "answer": "2", **worked}
    plain = {"problem": "1+1?", "solution": 2}
    found = loaded({**plain, "image": None, "images": []}, answer_column="solution")
    assert found[0] == {"question": "1+1?", "answer": "2", **plain}
    named = {"question_column": "q", "answer_column": "a"}
    assert loaded({"q": "1+1?", "a": 2}, {"q": "1/2?", "a": 0.5}, **named)["answer"] == ["2", "0.5"]
    halves = {  # as a column of float32 gives them
        0.1: "0.1", 1 / 3: "0.33333334", 12.0: "12.0", 2.0**30: "1073741824.0",
        2.0**-15: "3.0517578125e-05",
    }  # fmt: skip
    rows = [{"question": "?", "answer": ctypes.c_float(one).value} for one in halves]
    assert loaded(*rows)["answer"] == [*halves.values()]


def test_csv_columns_become_numbers_only_if_nothing_is_lost(tmp_path):
    path, long = tmp_path / "train.csv", "?" * 200_000
    path.write_text(f'question,answer,level,code,share\n"1, 1?",2,1,007,0.50\n{long},4,,8,1\n')
    data = load(path)
    assert data[0] == {
        "question": "1, 1?", "answer": "2", "level": "1", "code": "007", "share": "0.50",
    }  # fmt: skip
    assert data["level"][:] == ["1", None] and data["question"][1] == long


def test_a_folder_offers_its_splits(tmp_path, monkeypatch):
    write_lines(tmp_path / "train.jsonl", *numbered(3))
    write_lines(tmp_path / "test.jsonl", *numbered(2))
    assert (len(load(tmp_path)), len(load(tmp_path, split="validation"))) == (3, 2)
    with pytest.raises(ConfigurationError, match=r"'dev'.*contains test\.jsonl, train\.jsonl"):
        load(tmp_path, split="dev")
    # In parts, as the Hub has them, it is read as `load_dataset` reads it.
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "mine" / "data").mkdir(parents=True)
    for part, questions in {
        "train-00000-of-00002": ["1+1", "1+2"], "train-00001-of-00002": ["1+3"],
        "test-00000-of-00001": ["1+4"],
    }.items():  # fmt: skip
        made = Dataset.from_list([{"question": one, "answer": 2} for one in questions])
        made.to_parquet(tmp_path / "mine" / "data" / f"{part}.parquet")
    assert load(tmp_path / "mine")["question"] == ["1+1", "1+2", "1+3"]
    assert load(tmp_path / "mine", split="validation")["question"] == ["1+4"]


def test_a_dataset_of_the_hub_by_its_usual_split_or_a_sentence(monkeypatch):
    asked = []

    def load_dataset(name, config, split):
        asked.append((name, config, split))
        if name == "mine/damaged":
            raise DatasetGenerationError("no rows")
        if name == "mine/train_only" or split == "validation":
            raise ValueError(f'Unknown split "{split}".')
        if name != "openai/gsm8k":
            raise ConnectionError("no network.\nmore")
        return Dataset.from_list([{"question": "0+1?", "answer": "adding gives #### 1"}])

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    assert load("gsm8k", split="validation")["answer"][:] == ["1"]
    assert asked == [("openai/gsm8k", "main", split) for split in ("validation", "test")]
    for name, sentence in {
        "math": r"MATH-lighteval.*\(no network\); check the name and the split",
        "mine/train_only": 'Unknown split "test".; check the name and the split',
        "mine/damaged": "no rows.; check the name and the split",
        **dict.fromkeys(("/nowhere/gone", "./gone.jsonl", "gone.parquet"), "no such file"),
        "/" + "x" * 300: "no such file",  # no file can have this name
    }.items():
        with pytest.raises(ConfigurationError, match=sentence):
            load(name, split="validation")


@pytest.mark.skipif(not SHARED_DATA.is_dir(), reason=f"no MATH and GSM8K at {SHARED_DATA}")
def test_math_and_gsm8k():
    with pytest.raises(ConfigurationError, match=r"train\.jsonl, line 7037: empty answer"):
        load(SHARED_DATA / "math")
    for name, train, held_out in (("math", 7498, 5000), ("gsm8k", 7473, 1319)):
        for split, rows in {"train": train, "validation": held_out}.items():
            assert len(load(SHARED_DATA / name, split, skip_bad_rows=True)) == rows, (name, split)


def test_the_miniature():
    data = load("miniature", train_size=5, subset_seed=1)
    assert data.column_names == ["question", "answer", "level"]
    assert data[:] == load("miniature/chains", train_size=5, subset_seed=1)[:]
    held = load("miniature/chains", split="test")
    assert len(held) >= 1112  # so that no standard error of a pass rate is above 0.015
    hard = load("miniature/chains", split="validation", levels=["7", "Level 8"], train_size=300)
    assert set(hard["level"]) == {"7", "8"} and len(hard) == 300
    of_one = {"split": "validation", "levels": ["1"], "train_size": 30}
    for name, given, sentence in (
        ("miniature/sums", {"levels": ["1"]}, "levels=.'1'. match no row .* none at all"),
        ("miniature", {"split": "dev"}, "'dev'"),
        ("miniature/chains", of_one, "size is 30; the validation set has 18 problems"),
    ):
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
    ({"question": "1?", "answer": "2", "prompts": 1}, "a column is called 'prompts'"),
    ({"question": "1?", "answer": "2", "image": "a.png"}, "column 'image' has an image"),
]
NESTED = b'{"question": "1?", "answer": "2", "x": ' + b"[" * 800 + b"]" * 800 + b"}"
MIXED = b'{"question": "1?", "answer": "2", "x": 1}\n{"question": "1?", "answer": "2", "x": "a"}\n'
BAD_FILES = [
    ("a.csv", b"question,answer\n1?,2,3\n", "line 2: 3 fields, but the first line names 2"),
    ("a.csv", b'question,answer\n"1\n?",2,3\n', "line 2: 3 fields"),
    ("a.csv", b"question,question\n1?,2\n", "give each a name of its own"),
    ("a.csv", b"question,answer\n\xff,2\n", "not UTF-8 text .byte"),
    ("a.csv", b"question,answer\n,2\n", "line 2: no value in column 'question'"),
    ("a.csv", b'question,answer\n"1', "is not a CSV file"),
    ("a.json", b'[{"question": "1?", "answer": "2"}, 3]', "item 2: a JSON int, not an object"),
    ("a.json", b'[{"question": "1?", ', "line 1: not JSON"),
    ("a.parquet", b"PAR1 no", "is not a Parquet file"),
    ("a.arrow", b"ARROW no", "is not an Arrow file"),
    ("a.txt", b"1+1?", "is not a supported file type; give a file that ends in .jsonl"),
    ("a.jsonl", b"\n", "no usable rows left.*levels, subjects and filter"),
    ("a.jsonl", MIXED, "column 'x' mixes values"),
    ("a.jsonl", NESTED, "column 'x' nests 800 lists"),
    ("dataset_dict.json", b"{", "could not be read .*; save it again with save_to_disk"),
]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [*(("a.jsonl", line, f"line 1: {why}.*skip_bad") for line, why in BAD_LINES), *BAD_FILES],
)
def test_bad_data_are_refused_in_one_sentence(tmp_path, name, content, sentence):
    text = json.dumps(content).encode() if isinstance(content, dict) else content
    (tmp_path / name).write_bytes(text)
    with pytest.raises(ConfigurationError, match=sentence) as raised:
        load(tmp_path if name == "dataset_dict.json" else tmp_path / name)
    assert "\n" not in str(raised.value)


def test_bad_rows_are_counted_if_they_are_skipped(loaded, caplog):
    with caplog.at_level(logging.WARNING, "trl_ablate.data.questions"):
        assert len(loaded(GOOD, b"", b"{", GOOD, b"{", skip_bad_rows=True)) == 2
    assert re.search(r"skipped 2 bad rows of 4; the first:.*mine\.jsonl, line 3", caplog.text)


def test_a_byte_order_mark_and_a_surrogate_pair_are_no_defects(loaded):
    line = b'\xef\xbb\xbf{"question": "a \\ud83d\\ude00", "answer": "1"}'
    assert loaded(line)["question"][:] == ["a \U0001f600"]


def test_answers_are_read_only_where_a_reward_of_ours_compares_them(loaded):
    rows = {**GOOD, "answer": "so #### 2"}, {"question": "2?"}
    assert loaded(*rows, **OWN_REWARD)["answer"][:] == ["so #### 2", None]
    with pytest.raises(ConfigurationError, match="line 1: no column 'gold'; the row has 'quest"):
        loaded(*rows, answer_column="gold", **OWN_REWARD)


# Subsets


def test_a_subset_is_the_same_in_every_run(loaded, caplog):
    """Pinned: another Python or another version of a library must not draw other rows."""
    drawn = [f"{i}+1?" for i in (8, 16, 30, 47, 60, 69, 74, 75, 77, 80)]
    assert loaded(*numbered(100), train_size=10, subset_seed=3)["question"] == drawn
    assert loaded(*numbered(100), train_size=10, subset_seed=4)["question"] != drawn
    with caplog.at_level(logging.WARNING, "trl_ablate.data.questions"):
        assert len(loaded(*numbered(100), train_size=101)) == 100
    assert "101 rows asked for, 100 there are" in caplog.text


# Prompts


class WordTokenizer:
    """Counts words, which is enough to test the counting of tokens."""

    def __call__(self, text, **kwargs):
        return {"input_ids": text.split()}

    def apply_chat_template(self, conversation, **kwargs):
        return " ".join(message["content"] for message in conversation)


def test_prompts_keep_the_other_columns(loaded):
    short = to_prompts(loaded(*numbered(2)), TaskArguments(prompt_style="short"))
    assert short.column_names == ["question", "answer", "level", "subject", "problem", "prompt"]
    assert short["prompt"][1] == "User: 1+1?\nAssistant: <think>"


def test_prompts_of_the_rows_stay_as_they_are(loaded):
    messages = [{"role": "system", "content": "Add."}, {"role": "user", "content": "1+1?"}]
    rows = [{"prompt": messages, "gold": 2}, {"prompt": messages, "gold": 3}]
    given = {"prompt_column": "prompt", **OWN_REWARD}
    data = loaded(*rows, answer_column="gold", **given)
    assert data["answer"][:] == [2, 3] and data["gold"][:] == [2, 3]
    assert to_prompts(data, TaskArguments(**given))["prompt"][0] == messages
    with pytest.raises(ConfigurationError, match="'prompt' contains.*neither a text"):
        loaded({"prompt": [{"text": "1+1?"}]}, **given)


def test_questions_with_long_prompts_are_dropped_and_counted(loaded, caplog):
    data = loaded(GOOD, {"question": "word " * 500, "answer": "1"}, GOOD)

    def prompted(data, limit):
        task = TaskArguments(template="question_only", max_prompt_length=limit)
        return to_prompts(data, task, WordTokenizer(), "train questions")

    with caplog.at_level(logging.WARNING, "trl_ablate.data.questions"):
        kept = prompted(data, 1)  # those as long as the limit
    assert kept["question"] == [GOOD["question"]] * 2
    assert "train questions: dropped 1 of 3 questions, 2 are left" in caplog.text
    assert "max_prompt_length 1 tokens, the longest 500 (row 1)" in caplog.text
    with pytest.raises(ConfigurationError, match="all 1 prompts have more than max_p"):
        prompted(data.select([1]), 1)


@pytest.mark.parametrize("as_message", [False, True])
def test_a_prompt_beyond_the_models_context_is_refused_before_it_takes_hours(as_message):
    questions = ["1+1?", "2+2?" + "1 +" * 50_000, "3+3?"]
    messages = [[{"role": "user", "content": question}] for question in questions]
    prompts = messages if as_message else questions
    dataset = Dataset.from_dict({"question": questions, "prompt": prompts})
    # a text of fewer bytes than the context is not tokenized
    check_prompts_fit(dataset.select([0, 2]), None, 4, "train questions")
    with pytest.raises(ConfigurationError, match="row 1 has 50001 tokens.*context of 256.*2\\+2"):
        check_prompts_fit(dataset, WordTokenizer(), 256, "train questions")


def test_fewer_questions_than_a_rollout_batch_takes_are_refused():
    """TRL would train zero steps without any message."""
    config = SimpleNamespace(generation_batch_size=256, num_generations=8)
    questions = Dataset.from_dict({"question": [str(n) for n in range(32)]})
    check_enough(questions, config)
    with pytest.raises(ConfigurationError, match="there are 31 questions.*takes 32 .*256 / num_g"):
        check_enough(questions.select(range(31)), config)
