"""Fields of settings dataclasses, with help, range and role, and the values that a type allows."""

from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from trl_ablate.errors import ConfigurationError

Role = Literal[
    "place",  # names and places of a run, and where it is published
    "record",  # what it saves and logs
    "machine",  # how its work is divided, without other results
    "length",  # how long it trains
    "weights",  # what it starts from
    "model",  # which part of the model is trained, and how it computes
    "data",  # describes a dataset, and does not apply to another one
    "evaluated data",  # so, and only evaluation reads it
    "questions",  # which questions are asked, and in which form
    "generation",  # how completions are drawn
    "reward",  # how they are graded
    "code", "world", "dataset", "file",  # may name a file of this kind
]  # fmt: skip
"""What a setting is to a run. Those without a role define what the run computes."""


@dataclass(frozen=True)
class Range:
    """The numbers that a setting accepts; `above` and `below` are exclusive."""

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None

    def __contains__(self, value: float) -> bool:
        return (
            (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        if self.most is None and self.below is None and self.above is None:
            return f"{self.least} or more"
        ends = {"at least": self.least, "more than": self.above, "at most": self.most}
        ends["less than"] = self.below
        return " and ".join(f"{word} {end}" for word, end in ends.items() if end is not None)


class Metadata(dict):
    """Of a field. Parsers of transformers and TRL give a copy of it to argparse."""

    def copy(self) -> dict[str, Any]:
        return {"help": self["help"]}


def setting(default: Any, text: str, role: Role | tuple[Role, ...] = (), **limits: float) -> Any:
    """A field of a dataclass; `text` is its help on the command line, `limits` are a `Range`."""
    roles = (role,) if isinstance(role, str) else role
    known = Metadata(help=text, range=Range(**limits), roles=roles)
    return field(default=default, metadata=known)


def names_with(group: type, *roles: Role) -> tuple[str, ...]:
    """The fields of a dataclass that have one of the roles."""
    return tuple(one.name for one in fields(group) if {*roles} & {*one.metadata["roles"]})


def check_ranges(group: Any) -> None:
    for one in fields(group):
        if "range" in one.metadata:
            check_range(one.name, getattr(group, one.name), one.metadata["range"])


def check_range(name: str, value: Any, allowed: Range) -> None:
    """Refuse a number that is out of range; other values are not checked."""
    if type(value) in (int, float) and value not in allowed:
        raise ConfigurationError(f"{name} is {value}; it has to be {allowed}")


def check_choices(group: Any, kind: type) -> None:
    """Refuse a value that the type of a field does not allow; only fields of `kind` itself."""
    for name, hint in kind.__annotations__.items():
        allowed, value = choices(hint), getattr(group, name)
        if allowed and value not in allowed:
            shown = ", ".join(map(str, allowed))
            raise ConfigurationError(f"{name} is {value!r}; allowed: {shown}")


def choices(hint) -> tuple:
    """The values that a `Literal`, or its union with None, allows; empty for any other type."""
    parts = get_args(hint)
    if parts and all(not isinstance(part, type) and not get_args(part) for part in parts):
        return parts
    literals = [value for part in parts for value in choices(part)]
    return (*literals, None) if literals and type(None) in parts else tuple(literals)
