"""Read rows from a file (JSONL, JSON, CSV, Parquet or Arrow), a folder of them, or the Hub.

JSON and CSV are read here, and not by `datasets`, so that a message can give the line and the
defect of a bad row, so that the good rows are kept, and so that no text becomes a number.
"""

import csv
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from trl_ablate.errors import ConfigurationError, shortened
from trl_ablate.run.failures import one_sentence

_SUFFIXES = (".jsonl", ".json", ".parquet", ".csv", ".arrow")
_SAVED = ("dataset_dict.json", "state.json")
"""Files of a folder that `datasets` wrote with `save_to_disk`: of several splits, or of one."""
_WHOLE = re.compile(r"(?!.{19})(?:0|-?[1-9][0-9]*)")
"""A whole number as Python writes it, which surely fits into 64 bits."""
_OTHER_NAME = {"validation": "test", "test": "validation"}


@dataclass(frozen=True)
class Row:
    """One row, its place, and its defect, if any (then it has no values)."""

    place: str
    values: dict[str, Any] = field(default_factory=dict)
    defect: str | None = None


def read_source(source: str, *, split: str, config: str | None = None) -> Iterator[Row]:
    """The rows of a file, of a folder's file for the split, or of a dataset on the Hub."""
    if not source:
        raise ConfigurationError("dataset is an empty text; name a dataset, a file or a folder")
    path: Path | None = Path(os.path.expanduser(source))
    if os.path.isdir(path):  # Path.is_dir raises for an impossible name
        if any((path / name).is_file() for name in _SAVED):
            return _of_dataset(str(path), split, _saved(path, split))
        source, path = str(path), _file_for_split(path, split)
    elif not os.path.isfile(path):
        check_there(source)
        path = None
    if path is None:
        return _of_dataset(source, split, _loaded(source, split, config))
    if path.suffix in _SUFFIXES:
        return read_file(path)
    raise ConfigurationError(
        f"dataset {str(path)!r} is not a supported file type; give a file that ends in "
        f"{', '.join(_SUFFIXES)}."
    )


def check_there(source: str) -> None:
    """Refuse the name of a file or folder that does not exist."""
    if not os.path.exists(os.path.expanduser(source)) and not is_on_the_hub(source):
        raise ConfigurationError(
            f"dataset {source!r}: there is no such file or folder beside the recipe or in the "
            f"working directory, {Path.cwd()}; give a path from one of these, or create it."
        )


def is_on_the_hub(source: str) -> bool:
    """Whether a name stands neither for a file or folder that exists nor for one that should."""
    is_file = source.startswith((".", "/", "~")) or Path(source).suffix in _SUFFIXES
    return not (is_file or os.path.exists(source))


def _file_for_split(folder: Path, split: str) -> Path | None:
    """The folder's file for the split; `validation` and `test` replace each other. None if it is in
    several files or in a folder below, as in a copy of a Hub dataset."""
    for name in (split, _OTHER_NAME.get(split, split)):
        for suffix in _SUFFIXES:
            if os.path.isfile(folder / f"{name}{suffix}"):
                return folder / f"{name}{suffix}"
        if any(any(folder.rglob(f"{name}[-_.]*{suffix}")) for suffix in _SUFFIXES):
            return None
    there = ", ".join(sorted(path.name for path in folder.iterdir())) or "nothing"
    raise ConfigurationError(
        f"split {split!r}: folder {str(folder)!r} has no {split}.jsonl and no {split}.parquet "
        f"(nor .json, .csv, .arrow); it contains {there}; add one of these files, or give another "
        "split or folder."
    )


def _of_dataset(source: str, split: str, dataset: Any) -> Iterator[Row]:
    for number, values in enumerate(dataset, start=1):
        yield Row(f"{source}, split {split}, row {number}", dict(values))


def _saved(folder: Path, split: str) -> Any:
    """What `save_to_disk` wrote; a `Dataset` is every split."""
    from datasets import DatasetDict, load_from_disk

    try:
        dataset = load_from_disk(str(folder))
    except Exception as error:  # pyarrow and datasets raise many kinds for a damaged folder
        raise ConfigurationError(
            f"dataset {str(folder)!r} could not be read ({shortened(str(error), 200)}); "
            "save it again with save_to_disk"
        ) from error
    if not isinstance(dataset, DatasetDict):
        return dataset
    name = split if split in dataset else _OTHER_NAME.get(split, split)
    if name not in dataset:
        raise ConfigurationError(
            f"split {split!r}: dataset {str(folder)!r} has {', '.join(map(str, dataset))}; "
            "give one of them as train_split or eval_split."
        )
    return dataset[name]


def _loaded(source: str, split: str, config: str | None) -> Any:
    """A dataset of the Hub; without a network, its copy in the cache."""
    from datasets import load_dataset

    fix = "check the name and the split, or give a JSON, JSONL, CSV, Parquet or Arrow file, or a "
    with one_sentence(f"dataset {source!r}, split {split!r},", f"{fix}folder of them."):
        try:
            return load_dataset(source, config, split=split)
        except ValueError as error:
            if "Unknown split" not in str(error) or split not in _OTHER_NAME:
                raise
            return load_dataset(source, config, split=_OTHER_NAME[split])


def read_file(path: Path) -> Iterator[Row]:
    """The rows of a file, by its suffix."""
    readers = {".parquet": _read_table, ".arrow": _read_table, ".csv": _read_csv}
    return readers.get(path.suffix, _read_json)(path)


def _read_json(path: Path) -> Iterator[Row]:
    """One object per line, or in a `.json` file a list of them; blank lines are skipped."""
    if path.suffix == ".json":
        try:
            values = json.loads(path.read_text(encoding="utf-8-sig"))
        except (ValueError, RecursionError):  # several lines, or a defect that has a line
            values = None
        if isinstance(values, list):
            for number, one in enumerate(values, start=1):
                yield _json_row(f"{path}, item {number}", one)
            return
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            place = f"{path}, line {number}"
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                row = _json_row(place, json.loads(text)) if text else None
            except UnicodeDecodeError as error:
                row = Row(place, defect=f"not UTF-8 (byte {error.start + 1} of the line)")
            except (ValueError, RecursionError) as error:
                row = Row(place, defect=f"not JSON ({error})")
            if row is not None:
                yield row


def _json_row(place: str, values: Any) -> Row:
    """The row of a parsed value."""
    try:
        json.dumps(values, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = ascii(error.object[error.start])[1:-1]
        return Row(place, defect=f"text with {half}, which is half of a surrogate pair")
    if not isinstance(values, dict):
        return Row(place, defect=f"a JSON {type(values).__name__}, not an object")
    return Row(place, values)


def _read_csv(path: Path) -> Iterator[Row]:
    """One row per record, with the columns of the first line; an empty field is missing. A column
    is read as whole numbers if each of its fields is just as Python writes the number."""
    csv.field_size_limit(2**31 - 1)  # else a field has at most 131072 characters
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = next(reader, [])
            lines = (reader.line_num + 1 for _ in count())  # of a record's several, the first
            records = [pair for pair in zip(lines, reader, strict=False) if pair[1]]
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"dataset {str(path)!r} is not UTF-8 text (byte {error.start}); save it as UTF-8."
        ) from error
    except csv.Error as error:
        raise ConfigurationError(
            f"dataset {str(path)!r} is not a CSV file ({error}); give a valid one."
        ) from error
    if len(set(header)) < len(header) or not all(header):
        raise ConfigurationError(
            f"dataset {str(path)!r} has the columns {', '.join(map(repr, header))}; give each a "
            "name of its own in the first line."
        )
    whole = [record for _, record in records if len(record) == len(header)]
    columns = zip(*whole, strict=True)
    kinds = [int if all(map(_WHOLE.fullmatch, filter(None, column))) else str for column in columns]
    for line, record in records:
        place = f"{path}, line {line}"
        if len(record) != len(header):
            defect = f"{len(record)} fields, but the first line names {len(header)} columns"
            yield Row(place, defect=defect)
        else:
            parts = zip(header, kinds, record, strict=True)
            yield Row(place, {name: kind(text) if text else None for name, kind, text in parts})


def _read_table(path: Path) -> Iterator[Row]:
    """A Parquet file, or an Arrow file or stream, as `datasets` writes it."""
    import pyarrow
    import pyarrow.parquet

    kind = "a Parquet" if path.suffix == ".parquet" else "an Arrow"
    try:
        if path.suffix == ".parquet":
            table = pyarrow.parquet.read_table(path)
        else:
            with pyarrow.memory_map(str(path)) as file:
                try:
                    table = pyarrow.ipc.open_stream(file).read_all()
                except pyarrow.ArrowInvalid:
                    table = pyarrow.ipc.open_file(file).read_all()
    except (pyarrow.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise
        raise ConfigurationError(
            f"dataset {str(path)!r} is not {kind} file ({shortened(str(error), 200)}); give a "
            "valid one."
        ) from error
    for number, values in enumerate(table.to_pylist(), start=1):
        yield Row(f"{path}, row {number}", values)
