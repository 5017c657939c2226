"""Read rows from JSONL and Parquet files, folders of them or the Hub, and decide which are usable.

JSONL is read line by line here, and not by `datasets`, so that a message can give the number and
the defect of a bad line, and so that the good lines are kept.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trl_ablate.errors import ConfigurationError
from trl_ablate.rewards.grading.latex import last_boxed

_QUESTION_COLUMNS = ("question", "problem")
_ANSWER_COLUMNS = ("answer", "solution")
_SUBJECT_COLUMNS = ("subject", "type")
_BARE_BOX = re.compile(r"\\(?:boxed|fbox) +([^\s$.,]+)")
_SUFFIXES = (".jsonl", ".json", ".parquet")
_OTHER_NAME = {"validation": "test", "test": "validation"}


@dataclass(frozen=True)
class Row:
    """One row, its place, and its defect, if any (then it has no values)."""

    place: str
    values: dict[str, Any] = field(default_factory=dict)
    defect: str | None = None


def read_source(source: str, *, split: str, config: str | None = None) -> Iterator[Row]:
    """The rows of a file, of a folder's file for the split, or of a dataset on the Hub."""
    path = Path(source).expanduser()
    if path.is_dir():
        path = _file_for_split(path, split)
    elif not path.is_file():
        if source.startswith((".", "/", "~")) or path.suffix in _SUFFIXES:
            raise ConfigurationError(
                f"dataset {source!r}: there is no such file or folder; create it, or give "
                "another name."
            )
        return _read_hub(source, split, config)
    if path.suffix == ".parquet":
        return _read_parquet(path)
    if path.suffix in _SUFFIXES:
        return _read_jsonl(path)
    raise ConfigurationError(
        f"dataset {str(path)!r} is not a supported file type; give a file that ends in "
        f"{', '.join(_SUFFIXES)}."
    )


def _file_for_split(folder: Path, split: str) -> Path:
    """The folder's file for the split; `validation` and `test` replace each other."""
    for name in (split, _OTHER_NAME.get(split)):
        for suffix in _SUFFIXES:
            if name is not None and (folder / f"{name}{suffix}").is_file():
                return folder / f"{name}{suffix}"
    there = ", ".join(sorted(path.name for path in folder.iterdir())) or "nothing"
    raise ConfigurationError(
        f"split {split!r}: folder {str(folder)!r} has no {split}.jsonl and no {split}.parquet; "
        f"it contains {there}; add one of these files, or give another split or folder."
    )


def _read_jsonl(path: Path) -> Iterator[Row]:
    """One row per line; blank lines are skipped."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            place = f"{path}, line {number}"
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                if not text:
                    continue
                values = json.loads(text)
                if "\\ud" in text.lower():
                    json.dumps(values, ensure_ascii=False).encode()
            except UnicodeEncodeError as error:
                half = ascii(error.object[error.start])[1:-1]
                yield Row(place, defect=f"text with {half}, which is half of a surrogate pair")
            except UnicodeDecodeError as error:
                yield Row(place, defect=f"not UTF-8 (byte {error.start + 1} of the line)")
            except (ValueError, RecursionError) as error:
                yield Row(place, defect=f"not JSON ({error})")
            else:
                if isinstance(values, dict):
                    yield Row(place, values)
                else:
                    yield Row(place, defect=f"a JSON {type(values).__name__}, not an object")


def _read_parquet(path: Path) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
    except pyarrow.ArrowInvalid as error:
        raise ConfigurationError(
            f"dataset {str(path)!r} is not a Parquet file ({error}); give a valid one."
        ) from error
    number = 0
    with file:
        for batch in file.iter_batches():
            for values in batch.to_pylist():
                number += 1
                yield Row(f"{path}, row {number}", values)


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
        "or give a JSONL or Parquet file, or a folder of them."
    )


class BadRowError(ValueError):
    """A row cannot be used; the message gives the reason."""


def to_question(
    row: Row, question_column: str | None, answer_column: str | None, marker: str | None
) -> dict[str, str]:
    """The row as text: question, answer, and, if the row has them, level and subject.

    Raises `BadRowError` with the reason if the row has no usable question or no usable answer. With
    a marker, an answer without the marker is unusable: it ends before its result.
    """
    if row.defect is not None:
        raise BadRowError(row.defect)
    _, question = _text(row.values, (question_column,) if question_column else _QUESTION_COLUMNS)
    column, answer = _text(row.values, (answer_column,) if answer_column else _ANSWER_COLUMNS)
    if column == "solution" and marker is None:
        marker = r"\boxed"
    if marker is not None and marker not in answer:
        raise BadRowError(f"no {marker} in column {column!r}")
    gold = final_answer(answer)
    if not gold:
        raise BadRowError(f"empty answer in column {column!r}")
    found = {"question": question, "answer": gold}
    if isinstance(row.values.get("level"), str | int):
        found["level"] = str(row.values["level"])
    for subject in _SUBJECT_COLUMNS:
        if isinstance(row.values.get(subject), str):
            found.setdefault("subject", row.values[subject])
    return found


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
    wanted = " or ".join(repr(column) for column in columns)
    raise BadRowError(f"no column {wanted}; the row has {', '.join(map(repr, values)) or 'none'}")


def final_answer(text: str) -> str:
    r"""The reference answer at the end of a worked solution, or the whole text if it is not one."""
    if "####" in text:
        return text.rsplit("####", 1)[1].strip()
    boxed = last_boxed(text)
    if boxed is not None:
        return boxed.strip()
    bare = _BARE_BOX.findall(text)  # MATH has boxes without braces: "\boxed 2"
    return bare[-1] if bare else text.strip()
