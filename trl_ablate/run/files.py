"""JSON and JSONL files of a run: written whole or line by line, damage is reported. No torch."""

import json
import math
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trl_ablate.errors import ConfigurationError

SURROGATES = "backslashreplace"
"""Half a surrogate pair, which UTF-8 lacks, becomes `\\udc80`; JSON reads it back as it was."""


def read_json(path: Path) -> Any:
    """A file of the run; what is damaged is named, for nobody knows what it said."""
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise ConfigurationError(_damaged(str(path), error)) from error


def _damaged(place: str, error: ValueError) -> str:
    return (
        f"{place} is no JSON any more ({error}); put it back as it was, or begin again with "
        "--overwrite"
    )


def write_json(path: Path, value: Any) -> None:
    """Write atomically."""
    with _replacing(path) as file:
        json.dump(value, file, indent=2, ensure_ascii=False)
        file.write("\n")


def append_jsonl(path: Path, row: dict[str, Any]) -> None:
    """One object, one line; what JSON cannot say (NaN, infinity) becomes null."""
    with path.open("a", encoding="utf-8", errors=SURROGATES) as file:
        file.write(_line(row))


def write_jsonl(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """All lines at once, atomically."""
    with _replacing(path) as file:
        file.writelines(_line(row) for row in rows)


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSONL file; a last line without its end was cut off and is left out."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.endswith(b"\n"):
                try:
                    yield json.loads(line)
                except ValueError as error:
                    raise ConfigurationError(_damaged(f"{path}, line {number},", error)) from error


@contextmanager
def _replacing(path: Path):
    """Written into a neighbour, then to the disk, then over the name; a failure leaves the old."""
    neighbour = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with neighbour.open("w", encoding="utf-8", errors=SURROGATES) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(neighbour, path)
    finally:
        neighbour.unlink(missing_ok=True)


def _line(row: dict[str, Any]) -> str:
    finite = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in row.items()
    }
    return json.dumps(finite, ensure_ascii=False, allow_nan=False) + "\n"
