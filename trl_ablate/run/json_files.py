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


def is_named(descriptor: int, path: Path) -> bool:
    """Whether an open file, such as a locked one, still exists under this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def read_json(path: Path) -> Any:
    """The value of a JSON file; damage is an error that names the file."""
    return _parsed(path.read_bytes(), str(path))


def read_object(path: Path) -> dict[str, Any]:
    return _object(path.read_bytes(), str(path))


def _parsed(content: bytes, place: str) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _damaged(place, f"is not valid JSON ({error})") from error


def _object(content: bytes, place: str) -> dict[str, Any]:
    found = _parsed(content, place)
    if not isinstance(found, dict):
        raise _damaged(place, "holds no JSON object")
    return found


def _damaged(place: str, what: str) -> ConfigurationError:
    return ConfigurationError(f"{place} {what}; restore it, or start over with --overwrite")


def write_json(path: Path, value: Any, *, indent: int | None = 2) -> None:
    """Write atomically; a device, such as /dev/null, is written to and stays."""
    with _replacing(path) as file:
        json.dump(value, file, indent=indent, ensure_ascii=False)
        file.write("\n")


def append_jsonl(path: Path, row: dict[str, Any]) -> None:
    """Append one object as one line; NaN and infinity, which JSON lacks, become null."""
    with path.open("a", encoding="utf-8", errors=SURROGATES) as file:
        file.write(_line(row))


def write_jsonl(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    with _replacing(path) as file:
        file.writelines(_line(row) for row in rows)


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSONL file; a last line that is cut off is skipped, and empty ones."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip() and (line.endswith(b"\n") or _is_whole(line)):
                yield _object(line, f"{path}, line {number},")


def _is_whole(line: bytes) -> bool:
    """Whether a line without a line end is JSON; a part of an object never is."""
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


@contextmanager
def _replacing(path: Path):
    """Write a temporary file, sync it to the disk, then rename it; a failure keeps the old file."""
    if path.exists() and not path.is_file():
        with path.open("w", encoding="utf-8", errors=SURROGATES) as file:
            yield file
        return
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
    return json.dumps(finite(row), ensure_ascii=False, allow_nan=False, default=str) + "\n"


def finite(value: Any) -> Any:
    """The value with null for numbers that JSON lacks."""
    if isinstance(value, dict):
        return {key: finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
