"""YAML that is checked, not trusted: strict reading, and values held against their field's type.

Plain YAML 1.1 turns `off` into False and `1e-5` into text, keeps the last of two equal keys, and
expands aliases without bound. Here only `true` and `false` are booleans, `1e-5` is a number, a key
stands once, and aliases are refused. Nothing is converted to please a field, except an integer that
stands where a float is wanted.
"""

import difflib
import math
import re
import types
import typing
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import yaml

from trl_ablate.errors import ConfigurationError

MAX_BYTES = 200_000
"""A recipe is a page of text; anything larger is a mistake, and is not parsed."""


class _StrictLoader(yaml.SafeLoader):
    """The YAML 1.2 core schema, without aliases and with every key once."""

    yaml_implicit_resolvers: typing.ClassVar[dict] = {}

    def compose_node(self, parent, index):
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not allowed; write the value out")
        return super().compose_node(parent, index)

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for position, key in enumerate(keys):
            if not isinstance(key, str):
                raise yaml.YAMLError(f"the key {key!r} is not text")
            if key in keys[:position]:
                line = node.value[position][0].start_mark.line + 1
                raise yaml.YAMLError(f"the key '{key}' stands twice (again in line {line})")
        return super().construct_mapping(node, deep=deep)


_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:null", re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""]
)
_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"^[-+]?[0-9]+$"), list("-+0123456789")
)
_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
    list("-+.0123456789"),
)


def _decimal(loader: _StrictLoader, node: yaml.ScalarNode) -> int:
    """`010` is ten here; YAML 1.1 reads it as eight."""
    return int(loader.construct_scalar(node))


_StrictLoader.add_constructor("tag:yaml.org,2002:int", _decimal)


def parse_yaml(text: str) -> Any:
    """The value of a YAML text; raises `ValueError` with one line that says what is wrong."""
    try:
        return yaml.load(text, Loader=_StrictLoader)
    except yaml.MarkedYAMLError as error:
        line = f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ValueError(f"{error.problem}{line}") from error
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())[:300]) from error
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_mapping(path: Path, what: str) -> dict[str, Any]:
    """The settings in a YAML file; `what` names the kind of file in messages."""
    if not path.exists():
        raise ConfigurationError(f"{what} {path} does not exist{_nearest_file(path)}")
    if path.is_dir():
        raise ConfigurationError(f"{what} {path} is a directory; name a .yaml file in it")
    if path.stat().st_size > MAX_BYTES:
        raise ConfigurationError(
            f"{what} {path} has {path.stat().st_size} bytes; more than {MAX_BYTES} is no {what}"
        )
    try:
        settings = parse_yaml(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"{what} {path} is not UTF-8 text (byte {error.start}); save it as UTF-8"
        ) from error
    except ValueError as error:
        raise ConfigurationError(f"{what} {path} is not valid YAML: {error}") from error
    if settings is None:
        raise ConfigurationError(f"{what} {path} is empty; give it at least one `key: value` line")
    if not isinstance(settings, dict):
        raise ConfigurationError(
            f"{what} {path} holds a {type(settings).__name__}; it has to be `key: value` lines"
        )
    return settings


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the known name that is closest, or nothing."""
    close = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else ""


def check_value(name: str, value: Any, hint: Any) -> Any:
    """`value`, if the type `hint` admits it; a whole number becomes a float where one is wanted."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigurationError(f"{name} is {value}; it has to be a finite number")
    matched, converted = _match(value, hint)
    if not matched:
        raise ConfigurationError(f"{name} is {_shown(value)}; it takes {describe(hint)}")
    return converted


def _match(value: Any, hint: Any) -> tuple[bool, Any]:
    """Whether `hint` admits `value`, and the value to use."""
    origin, parts = get_origin(hint), get_args(hint)
    if hint is Any:
        return True, value
    if origin in (Union, types.UnionType):
        kinds = _kinds(parts)
        return next((hit for part in kinds if (hit := _match(value, part))[0]), (False, value))
    if origin is Literal:
        return any(value == part and type(value) is type(part) for part in parts), value
    if origin is list:
        hits = (
            [_match(item, parts[0]) for item in value] if isinstance(value, list) else [(False, 0)]
        )
        return all(hit for hit, _ in hits), [item for _, item in hits]
    if origin is dict or hint is dict:
        return isinstance(value, dict), value
    if isinstance(hint, type) and issubclass(hint, Enum):
        return value in [member.value for member in hint] and isinstance(value, str), value
    if hint is float and type(value) is int:
        return True, float(value)
    return isinstance(hint, type) and type(value) is hint, value


def describe(hint: Any) -> str:
    """What a type hint admits, in words."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(describe(part) for part in _kinds(parts)))
    if origin is Literal:
        return "one of " + ", ".join(str(part) for part in parts)
    if origin is list:
        return f"a list ({describe(parts[0])} each)"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return "one of " + ", ".join(str(member.value) for member in hint)
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    words |= {dict: "a mapping", type(None): "null"}
    return words.get(origin or hint, str(hint))


def admits(hint: Any, kind: type) -> bool:
    """Whether `kind` (bool, str, list, ...) is among what `hint` admits."""
    if get_origin(hint) in (Union, types.UnionType):
        return any(admits(part, kind) for part in get_args(hint))
    return hint is kind or get_origin(hint) is kind


def _kinds(parts: tuple) -> list:
    """The members of a union; `SomeEnum | str` means the values of the enum, not any text."""
    enum = any(isinstance(part, type) and issubclass(part, Enum) for part in parts)
    return [part for part in parts if not (enum and part is str)]


def _shown(value: Any) -> str:
    kinds = {bool: "the boolean ", str: "the text ", list: "the list ", dict: "the mapping "}
    shown = repr(value).lower() if isinstance(value, bool) else repr(value)
    return kinds.get(type(value), "") + (shown if len(shown) <= 80 else shown[:77] + "...")


def _nearest_file(path: Path) -> str:
    if not path.parent.is_dir():
        return ""
    return nearest(path.name, (other.name for other in path.parent.glob("*.yaml")))
