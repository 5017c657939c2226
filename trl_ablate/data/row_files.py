"""Read rows from one file: JSONL, JSON, CSV, Parquet or Arrow.

JSONL and CSV are read line by line here, and not by `datasets`, so that a message can give the
number and the defect of a bad line, and so that the good lines are kept.
"""

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trl_ablate.errors import ConfigurationError


@dataclass(frozen=True)
class Row:
    """One row, its place, and its defect, if any (then it has no values)."""

    place: str
    values: dict[str, Any] = field(default_factory=dict)
    defect: str | None = None


def read_file(path: Path) -> Iterator[Row]:
    """The rows of a file, by its suffix."""
    if path.suffix == ".parquet":
        return _read_parquet(path)
    if path.suffix == ".arrow":
        return _read_arrow(path)
    if path.suffix == ".csv":
        return _read_csv(path)
    return _read_json(path) if path.suffix == ".json" else _read_jsonl(path)


def _read_json(path: Path) -> Iterator[Row]:
    """A list of objects, or one object per line."""
    try:
        values = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError):  # several lines, or a defect that has a line
        yield from _read_jsonl(path)
        return
    if not isinstance(values, list):
        yield from _read_jsonl(path)
        return
    for number, one in enumerate(values, start=1):
        yield _json_row(f"{path}, item {number}", one)


def _json_row(place: str, values: Any, maybe_half: bool = True) -> Row:
    """The row of a parsed value; `maybe_half` looks for halves of surrogate pairs in it."""
    if maybe_half and (half := _half_a_pair(values)):
        return Row(place, defect=half)
    if not isinstance(values, dict):
        return Row(place, defect=f"a JSON {type(values).__name__}, not an object")
    return Row(place, values)


def _half_a_pair(values: Any) -> str | None:
    try:
        json.dumps(values, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = ascii(error.object[error.start])[1:-1]
        return f"text with {half}, which is half of a surrogate pair"
    return None


def _read_csv(path: Path) -> Iterator[Row]:
    """One row per record, with the columns of the first line; an empty field is missing.

    A column is read as whole numbers if each of its fields is just as Python writes the number, so
    that nothing is lost; all other columns are text.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = next(reader, [])
            records = [(reader.line_num, record) for record in reader if record]
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
    columns = [[record[place] for record in whole] for place in range(len(header))]
    numbers = {name for name, column in zip(header, columns, strict=True) if _whole(column)}
    for line, record in records:
        place = f"{path}, line {line}"
        if len(record) != len(header):
            defect = f"{len(record)} fields, but the first line names {len(header)} columns"
            yield Row(place, defect=defect)
        else:
            yield Row(place, {
                name: None if not field else int(field) if name in numbers else field
                for name, field in zip(header, record, strict=True)
            })  # fmt: skip


def _whole(column: list[str]) -> bool:
    """Whether the fields that are not empty are whole numbers as Python writes them."""
    given = [field for field in column if field]
    return bool(given) and all(
        field.removeprefix("-").isascii()
        and field.removeprefix("-").isdigit()
        and len(field) < 19
        and str(int(field)) == field
        for field in given
    )


def _read_arrow(path: Path) -> Iterator[Row]:
    """An Arrow stream, as `datasets` writes it, or an Arrow file."""
    import pyarrow

    def opened(source: Any) -> Any:
        try:
            return pyarrow.ipc.open_stream(source)
        except pyarrow.ArrowInvalid:
            return pyarrow.ipc.open_file(source)

    number = 0
    try:
        with pyarrow.memory_map(str(path)) as source:
            for values in opened(source).read_all().to_pylist():
                number += 1
                yield Row(f"{path}, row {number}", values)
    except pyarrow.ArrowException as error:
        raise ConfigurationError(
            f"dataset {str(path)!r} is not an Arrow file ({' '.join(str(error).split())[:200]}); "
            "give a valid one."
        ) from error


def _read_jsonl(path: Path) -> Iterator[Row]:
    """One row per line; blank lines are skipped."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            place = f"{path}, line {number}"
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                if not text:
                    continue
                row = _json_row(place, json.loads(text), "\\ud" in text.lower())
            except UnicodeDecodeError as error:
                yield Row(place, defect=f"not UTF-8 (byte {error.start + 1} of the line)")
            except (ValueError, RecursionError) as error:
                yield Row(place, defect=f"not JSON ({error})")
            else:
                yield row


def _read_parquet(path: Path) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches():
                for values in batch.to_pylist():
                    number += 1
                    yield Row(f"{path}, row {number}", values)
    except (pyarrow.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise
        read = f"cannot be read after row {number}" if number else "is not a Parquet file"
        raise ConfigurationError(
            f"dataset {str(path)!r} {read} ({' '.join(str(error).split())[:200]}); give a "
            "valid one."
        ) from error
