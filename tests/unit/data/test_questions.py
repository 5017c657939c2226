"""Loading questions: sources, bad rows, filters, subsets, prompts."""

import dataclasses
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from trl_ablate.data.choice import Selection, Source, evaluation_set, selection_of, source_of
from trl_ablate.data.questions import load_questions, to_prompts
from trl_ablate.data.sources import final_answer
from trl_ablate.errors import ConfigurationError
from trl_ablate.task import TaskArguments

SHARED_DATA = Path(__file__).parents[3].parent / "shared" / "data"


@pytest.fixture
def shared_data() -> Path:
    if not SHARED_DATA.is_dir():
        pytest.skip(f"no MATH and GSM8K at {SHARED_DATA}")
    return SHARED_DATA


def write_lines(path: Path, *lines: object) -> str:
    encoded = [
        line if isinstance(line, bytes) else json.dumps(line).encode("utf-8") for line in lines
    ]
    path.write_bytes(b"\n".join(encoded) + b"\n")
    return str(path)


SELECTED = {field.name for field in dataclasses.fields(Selection)}


def load(name: str, **given):
    """The questions for a `Source` and a `Selection` with these values."""
    selection = {key: given.pop(key) for key in SELECTED & given.keys()}
    return load_questions(Source(name, **given), Selection(**selection))


GOOD = {"question": "1+1?", "answer": "2"}


def numbered(count: int) -> list[dict[str, str]]:
    return [
        {
            "problem": f"{i}+1?",
            "answer": str(i + 1),
            "level": f"Level {i % 5 + 1}",
            "subject": ["Algebra", "Geometry"][i % 2],
        }
        for i in range(count)
    ]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("42", "42"),
        ("work <<1+1=2>>\n#### 1,080", "1,080"),
        (r"so it is $\boxed{\frac{1}{2}}$.", r"\frac{1}{2}"),
        (r"first \boxed{1}, then \boxed{\{2, 3\}}", r"\{2, 3\}"),
        (r"which is $\boxed 7$.", "7"),
        ("", ""),
    ],
)
def test_final_answer(text, answer):
    assert final_answer(text) == answer


def test_jsonl_with_its_usual_columns(tmp_path):
    data = load(write_lines(tmp_path / "a.jsonl", *numbered(3)), split="train")
    assert data.column_names == ["question", "answer", "level", "subject", "problem"]
    assert data[1] == {
        "question": "1+1?",
        "answer": "2",
        "level": "Level 2",
        "subject": "Geometry",
        "problem": "1+1?",
    }


def test_named_columns_and_number_answers(tmp_path):
    source = write_lines(tmp_path / "a.jsonl", {"q": "1+1?", "a": 2}, {"q": "1/2?", "a": 0.5})
    data = load(source, split="train", columns=("q", "a"))
    assert data["answer"] == ["2", "0.5"]


def test_parquet(tmp_path):
    table = pyarrow.Table.from_pylist(numbered(4))
    pyarrow.parquet.write_table(table, tmp_path / "train.parquet")
    assert load(str(tmp_path), split="train")["answer"] == ["1", "2", "3", "4"]
    pyarrow.parquet.write_table(
        pyarrow.Table.from_pylist([GOOD, {"question": "?", "answer": None}]),
        tmp_path / "bad.parquet",
    )
    with pytest.raises(ConfigurationError, match=r"bad\.parquet, row 2: no value in column"):
        load(str(tmp_path / "bad.parquet"), split="train")


def test_a_folder_offers_its_splits(tmp_path):
    write_lines(tmp_path / "train.jsonl", *numbered(3))
    write_lines(tmp_path / "test.jsonl", *numbered(2))
    assert len(load(str(tmp_path), split="train")) == 3
    assert len(load(str(tmp_path), split="validation")) == 2
    with pytest.raises(ConfigurationError, match=r"'dev'.*contains test\.jsonl, train\.jsonl"):
        load(str(tmp_path), split="dev")


BAD_LINES = [
    (b"{", "not JSON"),
    (b"[" * 100_000, "not JSON"),
    (b'{"question": "\xff", "answer": "2"}', r"not UTF-8 \(byte 15 of the line\)"),
    (b"[1, 2]", "a JSON list, not an object"),
    ({"question": "1+1?"}, "no column 'answer' or 'solution'; the row has 'question'"),
    ({"question": "1+1?", "answer": None}, "no value in column 'answer'"),
    ({"question": "1+1?", "answer": ""}, "empty answer"),
    ({"question": " \n", "answer": "2"}, "empty question"),
    ({"problem": "", "answer": "2"}, "empty problem"),
    ({"question": "1+1?", "answer": ["2"]}, "column 'answer' contains a list, not text"),
    ({"question": "1+1?", "answer": True}, "column 'answer' contains a bool, not text"),
    ({"question": "1+1?", "answer": float("nan")}, "no value in column 'answer'"),
    ({"question": "1+1?", "answer": "so it is ####"}, "empty answer in column 'answer'"),
    ({"question": "1+1?", "solution": "it is 2"}, r"no \\boxed in column 'solution'"),
    ({"answer": "2"}, "no column 'question' or 'problem'"),
]


@pytest.mark.parametrize(("line", "reason"), BAD_LINES)
def test_a_bad_row_stops_with_file_line_and_reason(tmp_path, line, reason):
    source = write_lines(tmp_path / "bad.jsonl", GOOD, b"", line, GOOD)
    with pytest.raises(ConfigurationError, match=rf"bad\.jsonl, line 3: {reason}.*skip_bad_rows"):
        load(source, split="train")


@pytest.mark.parametrize(("line", "reason"), BAD_LINES)
def test_bad_rows_are_counted_instead(tmp_path, caplog, line, reason):
    source = write_lines(tmp_path / "bad.jsonl", GOOD, line, GOOD, line)
    with caplog.at_level(logging.WARNING, "trl_ablate.data.questions"):
        assert len(load(source, split="train", skip_bad_rows=True)) == 2
    assert "skipped 2 bad rows of 4; the first:" in caplog.text
    assert "bad.jsonl, line 2" in caplog.text


def test_a_byte_order_mark_is_no_defect(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + json.dumps(GOOD).encode())
    assert len(load(str(tmp_path / "a.jsonl"), split="train")) == 1


def test_nothing_usable_is_an_error(tmp_path):
    source = write_lines(tmp_path / "bad.jsonl", b"{", b"{")
    with pytest.raises(ConfigurationError, match="no usable rows"):
        load(source, split="train", skip_bad_rows=True)


def test_a_subset_is_the_same_in_every_run(tmp_path):
    source = write_lines(tmp_path / "a.jsonl", *numbered(100))
    first = load(source, split="train", size=10, seed=3)["question"]
    assert first == load(source, split="train", size=10, seed=3)["question"]
    assert first != load(source, split="train", size=10, seed=4)["question"]
    # Pinned: another Python or another version of a library must not draw other rows.
    assert first == [f"{i}+1?" for i in (8, 16, 30, 47, 60, 69, 74, 75, 77, 80)]
    other = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from trl_ablate.data.choice import Selection, Source; "
            "from trl_ablate.data.questions import load_questions; "
            "data = load_questions(Source(sys.argv[1], 'train'), Selection(size=10, seed=3)); "
            "print(*data['question'], sep='|')",
            source,
        ],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "7"},
    )
    assert other.stdout.strip().split("|") == list(first)


def test_more_rows_than_there_are_is_a_warning(tmp_path, caplog):
    source = write_lines(tmp_path / "a.jsonl", *numbered(3))
    with caplog.at_level(logging.WARNING, "trl_ablate.data.questions"):
        assert len(load(source, split="train", size=10)) == 3
    assert "10 rows asked for, 3 there are" in caplog.text
    with pytest.raises(ConfigurationError, match="size=0"):
        load(source, split="train", size=0)


@pytest.mark.parametrize("levels", [[5], ["5"], ["Level 5"], {5}])
def test_levels_in_any_spelling(tmp_path, levels):
    source = write_lines(tmp_path / "a.jsonl", *numbered(10))
    data = load(source, split="train", levels=levels)
    assert data["level"] == ["Level 5", "Level 5"]


def test_filters_name_what_there_is(tmp_path):
    source = write_lines(tmp_path / "a.jsonl", *numbered(10))
    data = load(source, split="train", subjects=["algebra"], size=2)
    assert data["subject"] == ["Algebra", "Algebra"]
    with pytest.raises(ConfigurationError, match=r"levels=\['7'\].*1, 2, 3, 4, 5"):
        load(source, split="train", levels=[7])
    with pytest.raises(ConfigurationError, match=r"subjects=\['topology'\].*algebra, geometry"):
        load(source, split="train", subjects=["Topology"])
    plain = write_lines(tmp_path / "b.jsonl", GOOD)
    with pytest.raises(ConfigurationError, match="it has none at all"):
        load(plain, split="train", levels=[5])


def test_a_missing_file_is_not_looked_for_on_the_hub(tmp_path):
    for name in (str(tmp_path / "gone"), "./gone.jsonl", "gone.parquet"):
        with pytest.raises(ConfigurationError, match="no such file"):
            load(name, split="train")


def test_the_miniature():
    data = load("miniature", split="train", size=5, seed=1)
    assert data.column_names == ["question", "answer", "level"]
    assert data[:] == load("miniature", split="train", size=5, seed=1)[:]
    assert len(load("miniature", split="test", size=3)) == 3
    assert load("miniature/chains", split="train", size=5, seed=1)[:] == data[:]
    sums = load("miniature/sums", split="train", size=5, seed=1)
    assert sums.column_names == ["question", "answer"]
    with pytest.raises(ConfigurationError, match="levels=.'1'. match no row .* none at all"):
        load("miniature/sums", split="train", levels=[1])
    with pytest.raises(ConfigurationError, match="'dev'"):
        load("miniature", split="dev")
    with pytest.raises(ConfigurationError, match="'cubes' is no world of the miniature; it has"):
        load("miniature/cubes", split="train")


def test_a_world_with_levels_has_them_as_a_column():
    data = load("miniature/chains", split="validation")
    assert data.column_names == ["question", "answer", "level"]
    assert len(data) >= 1112  # so that no standard error of a pass rate is above 0.015
    assert set(data["level"]) == set("12345678")
    hard = load("miniature/chains", split="validation", levels=[7, "Level 8"], size=300)
    assert set(hard["level"]) == {"7", "8"} and len(hard) == 300
    with pytest.raises(ConfigurationError, match="size is 30; the validation set has 18 problems"):
        load("miniature/chains", split="validation", levels=[1], size=30)


CACHED_DATASET = """
import sys
from pathlib import Path
from datasets import DatasetInfo, Features, Value
from datasets.arrow_writer import ArrowWriter

folder = Path(sys.argv[1]) / "openai___gsm8k" / "main" / "0.0.0" / "0123456789abcdef"
folder.mkdir(parents=True)
features = Features({"question": Value("string"), "answer": Value("string")})
with ArrowWriter(features=features, path=str(folder / "gsm8k-train.arrow")) as writer:
    for i in range(3):
        writer.write({"question": f"{i}+1?", "answer": f"adding gives #### {i + 1}"})
    rows, size = writer.finalize()
split = {"name": "train", "num_examples": rows, "num_bytes": size, "dataset_name": "gsm8k"}
DatasetInfo(
    features=features, builder_name="parquet", dataset_name="gsm8k", config_name="main",
    version="0.0.0", splits={"train": split},
).write_to_directory(str(folder))
"""


def test_offline_with_a_cached_dataset(tmp_path):
    """In another process, because `datasets` reads its settings when it is imported."""
    cache = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(tmp_path)}
    subprocess.run([sys.executable, "-c", CACHED_DATASET, str(tmp_path)], check=True, env=cache)
    code = (
        "from trl_ablate.data.choice import Source\n"
        "from trl_ablate.data.questions import load_questions\n"
        "print(*load_questions(Source('gsm8k', 'train'))['answer'])\n"
        "try: load_questions(Source('math', 'train'))\n"
        "except ValueError as error: print(type(error).__name__, error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=cache
    )
    answers, error = done.stdout.strip().split("\n")
    assert answers == "1 2 3"
    assert error.startswith("ConfigurationError dataset 'DigitalLearningGmbH/MATH-lighteval'")


def test_math_and_gsm8k(shared_data, caplog):
    with pytest.raises(ConfigurationError, match=r"train\.jsonl, line 7037: empty answer"):
        load(str(shared_data / "math"), split="train")
    sizes = {
        (name, split): len(load(str(shared_data / name), split=split, skip_bad_rows=True))
        for name, split in (
            ("math", "train"),
            ("math", "validation"),
            ("gsm8k", "train"),
            ("gsm8k", "test"),
        )
    }
    assert sizes == {
        ("math", "train"): 7498,  # two of the 7500 have no answer
        ("math", "validation"): 5000,
        ("gsm8k", "train"): 7473,
        ("gsm8k", "test"): 1319,
    }
    subset = load(str(shared_data / "math"), split="validation", size=1024)
    assert len(set(subset["question"])) == 1024


def test_a_task_names_its_sources_and_what_is_taken_of_them():
    task = TaskArguments(
        dataset="d", dataset_config="c", train_split="t", eval_split="e", question_column="q",
        answer_column="a", train_size=3, eval_size=2, eval_sets={"train": "gsm8k"}, subset_seed=5,
        levels=["1"], subjects=["s"], skip_bad_rows=True,
    )  # fmt: skip
    same = {"columns": ("q", "a"), "config": "c", "skip_bad_rows": True}
    assert source_of(task, "train") == Source("d", "t", **same)
    assert source_of(task, "eval") == Source("d", "e", **same)
    assert selection_of(task, "train") == Selection(3, 5, ["1"], ["s"])
    assert selection_of(task, "eval") == Selection(2, 5, ["1"], ["s"])
    usual = Source("gsm8k", "validation", skip_bad_rows=True)
    assert evaluation_set(task, "train") == (usual, Selection(2, 5))
    assert source_of(TaskArguments(), "eval").split == "validation"


class WordTokenizer:
    """Counts words, which is enough to test the counting of tokens."""

    def __call__(self, text, **kwargs):
        return {"input_ids": text.split()}

    def apply_chat_template(self, conversation, **kwargs):
        return " ".join(message["content"] for message in conversation)


def test_prompts_keep_the_other_columns(tmp_path):
    source = write_lines(tmp_path / "a.jsonl", *numbered(2))
    data = to_prompts(load(source, split="train"), "r1_zero", "short")
    assert data.column_names == ["question", "answer", "level", "subject", "problem", "prompt"]
    assert data["prompt"][1] == "User: 1+1?\nAssistant: <think>"
    chat = to_prompts(load(source, split="train"), "think_xml")
    assert [message["role"] for message in chat["prompt"][0]] == ["system", "user"]


@pytest.mark.parametrize("template", ["question_only", "think_xml"])
def test_questions_with_long_prompts_are_dropped_and_counted(tmp_path, caplog, template):
    long = {"question": "word " * 500, "answer": "1"}
    source = write_lines(tmp_path / "a.jsonl", GOOD, long, GOOD)
    data = load(source, split="train")
    with caplog.at_level(logging.WARNING, "trl_ablate.data.questions"):
        kept = to_prompts(
            data, template, tokenizer=WordTokenizer(), max_prompt_length=400, what="train questions"
        )
    assert kept["question"] == [GOOD["question"]] * 2
    assert "train questions: dropped 1 of 3 questions, 2 are left" in caplog.text
    assert "max_prompt_length 400 tokens, the longest" in caplog.text and "(row 1)" in caplog.text


def test_a_limit_that_leaves_no_question_is_an_error(tmp_path):
    data = load(write_lines(tmp_path / "a.jsonl", GOOD), split="train")
    with pytest.raises(ConfigurationError, match="all 1 prompts have more than max_p"):
        to_prompts(data, "r1_zero", tokenizer=WordTokenizer(), max_prompt_length=2)


def test_a_prompt_as_long_as_the_limit_is_kept(tmp_path, caplog):
    data = load(write_lines(tmp_path / "a.jsonl", GOOD), split="train")
    plain = to_prompts(data, "question_only", "short")["prompt"][0]
    limits = {"tokenizer": WordTokenizer(), "max_prompt_length": len(plain.split())}
    assert len(to_prompts(data, "question_only", "short", **limits)) == 1
    assert not caplog.text


@pytest.mark.parametrize(
    ("settings", "questions"), [({"train_size": 8}, 8), ({"max_prompt_length": 30}, 20)]
)
def test_fewer_questions_than_a_rollout_batch_takes_are_refused(
    tmp_path, monkeypatch, tiny_model, settings, questions
):
    """Before the model is loaded: TRL would train zero steps without any message."""
    from trl_ablate import load_recipe
    from trl_ablate.recipe.places import SHIPPED
    from trl_ablate.training import building

    def load(*args, **kwargs):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(building, "AblationTrainer", load)
    rows = [{"question": "1" * (5 if i < 20 else 50), "answer": "1"} for i in range(40)]
    given = {"dataset": write_lines(tmp_path / "train.jsonl", *rows), **settings}
    given |= {"model_name_or_path": tiny_model}
    resolved = load_recipe(SHIPPED / "grpo.yaml", "miniature-sums", given)
    with pytest.raises(ConfigurationError) as raised:
        building.build_trainer(resolved, grader=None)
    assert f"there are {questions} questions to train on" in str(raised.value)
    assert "takes 32 (generation_batch_size 256 / num_generations 8)" in str(raised.value)
    assert "raise train_size" in str(raised.value)


def test_just_enough_questions_are_enough(monkeypatch):
    from trl_ablate import load_recipe
    from trl_ablate.recipe.places import SHIPPED
    from trl_ablate.training import building

    monkeypatch.setattr(building, "put_together", lambda *args, **kwargs: "built")
    resolved = load_recipe(SHIPPED / "grpo.yaml", "miniature", {"train_size": 16})
    assert building.build_trainer(resolved, grader=None) == "built"


def test_evaluation_sets_are_drawn_like_the_main_one_and_leave_it_as_it_is(tmp_path):
    from trl_ablate import miniature
    from trl_ablate.task import TaskArguments
    from trl_ablate.training.building import evaluation_sets

    mine = tmp_path / "mine.jsonl"
    mine.write_text("".join(f'{{"question": "{n}?", "answer": "{n}"}}\n' for n in range(20)))
    common = {"dataset": "miniature", "eval_size": 5, "prompt_style": "short"}
    main = evaluation_sets(TaskArguments(**common), miniature.tokenizer())
    task = TaskArguments(**common, eval_sets={"mine": str(mine)}, eval_split="test")
    sets = evaluation_sets(task, miniature.tokenizer())
    assert list(sets) == ["", "mine"]
    assert sets[""].to_list() == main.to_list()
    assert len(sets["mine"]) == 5
    assert all(row["question"] in row["prompt"] for row in sets["mine"])


def test_half_a_character_is_a_defect_of_its_row(tmp_path):
    """JSON can contain it, but Arrow and tokenizers cannot; a whole pair is a character."""
    file = tmp_path / "questions.jsonl"
    texts = ("a \\ud83d\\ude00", "b \\uD800")
    file.write_text("".join(f'{{"question": "{text}", "answer": "1"}}\n' for text in texts))
    with pytest.raises(ConfigurationError, match=r"line 2: .*ud800, which is half of a surr"):
        load(str(file), split="train")
    kept = load(str(file), split="train", skip_bad_rows=True)
    assert kept["question"][:] == ["a \U0001f600"]


@pytest.mark.parametrize("style", ["text", "messages"])
def test_a_prompt_beyond_the_models_context_is_refused_before_it_takes_hours(style):
    """Eight prompts of 100,000 characters gave no result in a minute, and no message."""
    import time

    from datasets import Dataset

    from trl_ablate.data.questions import check_prompts_fit
    from trl_ablate.miniature import tokenizer

    questions = ["1+1?", "2+2?" + "1+" * 50_000, "3+3?"]
    prompts = (
        questions if style == "text" else [[{"role": "user", "content": q}] for q in questions]
    )
    dataset = Dataset.from_dict({"question": questions, "prompt": prompts})
    counting = tokenizer()
    counting.chat_template = "{{ messages[0]['content'] }}"
    began = time.process_time()
    check_prompts_fit(dataset.select([0, 2]), counting, 256, "train questions")
    with pytest.raises(
        ConfigurationError, match="row 1 has 1[0-9]{5} tokens.*context of 256.*2\\+2"
    ):
        check_prompts_fit(dataset, counting, 256, "train questions")
    assert time.process_time() - began < 5


def test_only_long_texts_are_tokenized():
    from datasets import Dataset

    from trl_ablate.data.questions import check_prompts_fit

    class Refusing:
        def __call__(self, text, **kwargs):
            raise AssertionError("tokenized")

        apply_chat_template = __call__

    dataset = Dataset.from_dict({"question": ["é" * 50], "prompt": ["é" * 50]})
    check_prompts_fit(dataset, Refusing(), 100, "x")
    with pytest.raises(AssertionError, match="tokenized"):
        check_prompts_fit(dataset, Refusing(), 99, "x")
