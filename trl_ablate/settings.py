"""Settings: a dataclass's field with its help, and the values that a field's type allows."""

from dataclasses import field
from typing import get_args


def setting(default, text: str):
    """A field of a dataclass; `text` is its help on the command line."""
    return field(default=default, metadata={"help": text})


def choices(hint) -> tuple:
    """The values a `Literal`, or a union of one with None, allows; empty for any other type."""
    if hint is None or hint is type(None):
        return ()
    parts = get_args(hint)
    if not parts:
        return ()
    if all(not isinstance(part, type) and not get_args(part) for part in parts):
        return parts
    literals = [value for part in parts for value in choices(part)]
    return (*literals, None) if literals and type(None) in parts else tuple(literals)
