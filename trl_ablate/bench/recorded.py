"""What a benchmark reads from a file: one value of every line."""

from pathlib import Path
from typing import TypeVar

from trl_ablate.data.files import read_file
from trl_ablate.errors import ConfigurationError

Value = TypeVar("Value")


def values_of(file: Path, name: str, kind: type[Value]) -> list[Value]:
    """The value `name` of every object in a file of JSON or JSONL."""
    found: list[Value] = []
    for row in read_file(file):
        value = row.values.get(name)
        if not isinstance(value, kind):
            wrong = row.defect or f"its `{name}` is {value!r:.80}"
            raise ConfigurationError(
                f"{row.place}: {wrong}; give an object with a `{name}` ({kind.__name__}) a line"
            )
        found.append(value)
    if not found:
        raise ConfigurationError(f"{file} is empty; give an object with a `{name}` a line")
    return found
