"""Read rows from files, folders of them or the Hub, and decide which are usable."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trl_ablate.data.row_files import Row, read_file
from trl_ablate.errors import ConfigurationError
from trl_ablate.rewards.grading.latex import last_boxed

_QUESTION_COLUMNS = ("question", "problem")
_ANSWER_COLUMNS = ("answer", "solution")
_SUBJECT_COLUMNS = ("subject", "type")
_BARE_BOX = re.compile(r"\\(?:boxed|fbox) +([^\s$.,]+)")
_SUFFIXES = (".jsonl", ".json", ".parquet", ".csv", ".arrow")
_SAVED = ("dataset_dict.json", "state.json")
"""Files of a folder that `datasets` wrote with `save_to_disk`: of several splits, or of one."""
RESERVED_BY_TRL = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra")
RESERVED_BY_TRL += ("log_metric", "environments")
"""Arguments of a reward function, which no column can be called."""
_OTHER_NAME = {"validation": "test", "test": "validation"}


def read_source(source: str, *, split: str, config: str | None = None) -> Iterator[Row]:
    """The rows of a file, of a folder's file for the split, or of a dataset on the Hub."""
    path = Path(source).expanduser()
    if path.is_dir():
        if any((path / name).is_file() for name in _SAVED):
            return _read_saved(path, split)
        if _is_of_the_hub(path, split):
            return _read_hub(str(path), split, config)
        path = _file_for_split(path, split)
    elif not path.is_file():
        if not is_on_the_hub(source):
            raise ConfigurationError(
                f"dataset {source!r}: there is no such file or folder; create it, or give "
                "another name."
            )
        return _read_hub(source, split, config)
    if path.suffix in _SUFFIXES:
        return read_file(path)
    raise ConfigurationError(
        f"dataset {str(path)!r} is not a supported file type; give a file that ends in "
        f"{', '.join(_SUFFIXES)}."
    )


def is_on_the_hub(source: str) -> bool:
    """Whether a name stands neither for a file or folder that exists nor for one that should."""
    path = Path(source).expanduser()
    return not (path.exists() or source.startswith((".", "/", "~")) or path.suffix in _SUFFIXES)


def _is_of_the_hub(folder: Path, split: str) -> bool:
    """Whether a split is in several files or in a folder below, as in a copy of a Hub dataset."""
    files = (path for suffix in _SUFFIXES for path in folder.rglob(f"{split}[-_.]*{suffix}"))
    usual = {folder / f"{split}{suffix}" for suffix in _SUFFIXES}
    return not any(path.is_file() for path in usual) and any(files)


def _file_for_split(folder: Path, split: str) -> Path:
    """The folder's file for the split; `validation` and `test` replace each other."""
    for name in (split, _OTHER_NAME.get(split)):
        for suffix in _SUFFIXES:
            if name is not None and (folder / f"{name}{suffix}").is_file():
                return folder / f"{name}{suffix}"
    there = ", ".join(sorted(path.name for path in folder.iterdir())) or "nothing"
    raise ConfigurationError(
        f"split {split!r}: folder {str(folder)!r} has no {split}.jsonl and no {split}.parquet "
        f"(nor {', '.join(one for one in _SUFFIXES if one not in ('.jsonl', '.parquet'))}); "
        f"it contains {there}; add one of these files, or give another split or folder."
    )


def _read_saved(folder: Path, split: str) -> Iterator[Row]:
    """The rows of a folder that `save_to_disk` wrote; a `Dataset` is every split."""
    from datasets import DatasetDict, load_from_disk

    try:
        dataset = load_from_disk(str(folder))
    except Exception as error:  # pyarrow and datasets raise many kinds for a damaged folder
        raise ConfigurationError(
            f"dataset {str(folder)!r} could not be read ({' '.join(str(error).split())[:200]}); "
            "save it again with save_to_disk"
        ) from error
    if isinstance(dataset, DatasetDict):
        name = split if split in dataset else _OTHER_NAME.get(split, split)
        if name not in dataset:
            raise ConfigurationError(
                f"split {split!r}: dataset {str(folder)!r} has {', '.join(map(str, dataset))}; "
                "give one of them as train_split or eval_split."
            )
        dataset = dataset[name]
    for number, values in enumerate(dataset, start=1):
        yield Row(f"{folder}, split {split}, row {number}", dict(values))


def _read_hub(source: str, split: str, config: str | None) -> Iterator[Row]:
    """The rows of a dataset on the Hub; without a network, of its copy in the cache."""
    dataset = _load_hub(source, split, config)
    for number, values in enumerate(dataset, start=1):
        yield Row(f"{source}, split {split}, row {number}", dict(values))


def _load_hub(source: str, split: str, config: str | None) -> Any:
    from datasets import load_dataset

    try:
        return load_dataset(source, config, split=split)
    except ValueError as error:
        if "Unknown split" in str(error) and split in _OTHER_NAME:
            return load_dataset(source, config, split=_OTHER_NAME[split])
        raise ConfigurationError(_not_loaded(source, split, error)) from error
    except (OSError, RuntimeError) as error:
        raise ConfigurationError(_not_loaded(source, split, error)) from error


def _not_loaded(source: str, split: str, error: Exception) -> str:
    reason = str(error).strip().split("\n")[0].rstrip(".")
    return (
        f"dataset {source!r}, split {split!r}, could not be loaded ({reason}); check the name, "
        "or give a JSON, JSONL, CSV, Parquet or Arrow file, or a folder of them."
    )


class BadRowError(ValueError):
    """A row cannot be used; the message gives the reason."""


@dataclass(frozen=True)
class Reading:
    """Where a row's question and answer are; see `choice.Source`.

    With a marker, an answer without the marker is unusable: it ends before its result.
    """

    question_column: str | None = None
    answer_column: str | None = None
    marker: str | None = None
    prompt_column: str | None = None
    needs_answers: bool = True


def to_question(row: Row, reading: Reading) -> dict[str, Any]:
    """The row with its question and answer, level and subject as text, and all other columns.

    Where the row brings its whole prompt, the level is a column like the others.
    Raises `BadRowError` with the reason if the row has no usable question or no usable answer.
    """
    if row.defect is not None:
        raise BadRowError(row.defect)
    found: dict[str, Any] = {}
    if reading.prompt_column is not None:
        found["prompt"] = _prompt(row.values, reading.prompt_column)
    if reading.prompt_column is None or _has_question(row.values, reading):
        names = (reading.question_column,) if reading.question_column else _QUESTION_COLUMNS
        found["question"] = _text(row.values, names)[1]
    if reading.needs_answers:
        found["answer"] = _gold(row.values, reading)
    elif reading.answer_column is not None:
        if reading.answer_column not in row.values:
            raise BadRowError(_no_column(row.values, (reading.answer_column,)))
        found["answer"] = row.values[reading.answer_column]
    if reading.prompt_column is None and isinstance(row.values.get("level"), str | int):
        found["level"] = str(row.values["level"])
    for subject in _SUBJECT_COLUMNS:
        if isinstance(row.values.get(subject), str):
            found.setdefault("subject", row.values[subject])
    return found | _other_columns(row.values, found)


def _has_question(values: dict[str, Any], reading: Reading) -> bool:
    names = (reading.question_column,) if reading.question_column else _QUESTION_COLUMNS
    return any(isinstance(values.get(name), str) for name in names if name is not None)


def _gold(values: dict[str, Any], reading: Reading) -> str:
    names = (reading.answer_column,) if reading.answer_column else _ANSWER_COLUMNS
    column, answer = _text(values, names)
    marker = reading.marker
    if column == "solution" and marker is None:
        marker = r"\boxed"
    if marker is not None and marker not in answer:
        raise BadRowError(f"no {marker} in column {column!r}")
    gold = final_answer(answer)
    if not gold:
        raise BadRowError(f"empty answer in column {column!r}")
    return gold


def _prompt(values: dict[str, Any], column: str) -> str | list[dict[str, Any]]:
    """A prompt that the row brings along: a text, or messages, both unchanged."""
    if column not in values:
        raise BadRowError(_no_column(values, (column,)))
    prompt = values[column]
    if isinstance(prompt, str) and prompt.strip():
        return prompt
    messages = isinstance(prompt, list) and all(
        isinstance(one, dict) and "role" in one and "content" in one for one in prompt
    )
    if not messages or not prompt:
        raise BadRowError(
            f"column {column!r} contains {str(prompt)[:60]!r}, which is neither a text nor messages"
            " with role and content"
        )
    return prompt


def _other_columns(values: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """The columns that are passed on as they are; `prompt` is TRL's, and written later."""
    for name in RESERVED_BY_TRL:
        if name in values:
            raise BadRowError(
                f"a column is called {name!r}, which is an argument of every reward; rename it"
            )
    return {name: value for name, value in values.items() if name not in (*found, "prompt")}


def _text(values: dict[str, Any], columns: tuple[str | None, ...]) -> tuple[str, str]:
    """The first of the columns that the row has, and its text; numbers become text."""
    for column in columns:
        if column is None or column not in values:
            continue
        value = values[column]
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = str(value)
        if value is None or value == "nan":
            raise BadRowError(f"no value in column {column!r}")
        if not isinstance(value, str):
            raise BadRowError(f"column {column!r} contains a {type(value).__name__}, not text")
        if not value.strip():
            raise BadRowError(f"empty {column}")
        return column, value
    raise BadRowError(_no_column(values, columns))


def _no_column(values: dict[str, Any], columns: tuple[str | None, ...]) -> str:
    wanted = " or ".join(repr(column) for column in columns)
    return f"no column {wanted}; the row has {', '.join(map(repr, values)) or 'none'}"


def final_answer(text: str) -> str:
    r"""The reference answer at the end of a worked solution, or the whole text if it is not one."""
    if "####" in text:
        return text.rsplit("####", 1)[1].strip()
    boxed = last_boxed(text)
    if boxed is not None:
        return boxed.strip()
    bare = _BARE_BOX.findall(text)  # MATH has boxes without braces: "\boxed 2"
    return bare[-1] if bare else text.strip()
