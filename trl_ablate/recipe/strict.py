"""Strict reading of YAML, and checks of values against their field's type.

Plain YAML 1.1 turns `off` into False and `1e-5` into text, keeps the last of two equal keys, and
expands aliases without a limit. Here only `true` and `false` are booleans, `1e-5` is a number, a
key may occur once, and aliases and tags (`!!set`, `!!python/...`) are refused. Values are not
converted to fit a field, except an integer for a float. Any text is read or refused within a
second. pydantic is not used: what a message says of a type would stay, and its import takes longer
than a whole `trl-ablate --help`.
"""

import math
import os
import re
import sys
import types
import typing
from collections.abc import Iterator
from copy import deepcopy
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NoReturn, Union, get_args, get_origin

import yaml

from trl_ablate.errors import ConfigurationError, brief, nearest

MAX_BYTES = 200_000  # a recipe has about a page of text; a larger file is a mistake
MAX_VALUES, MAX_DEPTH = 5_000, 40  # of keys and values together, and of their nesting
MAX_INT = 2**63 - 1  # of torch, numpy and Arrow

_UNREADABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff]")
"""Control characters and halves of surrogate pairs: file names and JSON cannot contain them."""
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
"""How JSON writes a character above U+FFFF in ASCII."""


def check_readable(what: str, text: str) -> None:
    """Refuse the characters that a recipe cannot contain either."""
    if found := _UNREADABLE.search(text):
        raise ConfigurationError(
            f"{what} is '{brief(text)}', where {found[0]!a} is not a readable character; remove it"
        )


class _StrictLoader(yaml.SafeLoader):
    """The YAML 1.2 core schema without aliases, tags and repeated keys, and with size limits."""

    yaml_implicit_resolvers: typing.ClassVar[dict] = {}
    _values = _depth = 0

    def compose_node(self, parent, index):
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not allowed; write the value out")
        if self.peek_event().tag is not None:
            raise yaml.YAMLError("tags (!name) are not allowed; write the plain value")
        self._values += 1
        self._depth += 1
        if self._values > MAX_VALUES:
            raise yaml.YAMLError(f"it contains more than {MAX_VALUES} keys and values; shorten it")
        if self._depth > MAX_DEPTH:
            raise yaml.YAMLError(f"it is nested too deeply (more than {MAX_DEPTH} levels)")
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_scalar(self, node):
        text = _PAIR.sub(
            lambda pair: pair[0].encode("utf-16", "surrogatepass").decode("utf-16"),
            super().construct_scalar(node),
        )
        if found := _UNREADABLE.search(text):
            line = node.start_mark.line + 1
            raise yaml.YAMLError(
                f"{found[0]!a} in line {line} is not a readable character; delete it"
            )
        return text

    def construct_mapping(self, node, deep=False):
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.YAMLError(f"the key {brief(repr(key))} is not text")
            if key in seen:
                line = key_node.start_mark.line + 1
                raise yaml.YAMLError(f"the key '{brief(key)}' occurs twice (again in line {line})")
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


SCALARS = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?[0-9]+", list("-+0123456789")),
    "float": (
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
}
"""What a plain text is read as, by its form and its first letter; the first one decides."""

for _kind, (_form, _first) in SCALARS.items():
    _StrictLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_kind}", re.compile(f"^(?:{_form})$"), _first
    )


def _decimal(loader: _StrictLoader, node: yaml.ScalarNode) -> int:
    """`010` is ten here; in YAML 1.1 it is eight."""
    digits = loader.construct_scalar(node)
    if len(digits) > sys.float_info.max_10_exp:
        raise yaml.YAMLError(f"{brief(digits)} is too large a number")
    return int(digits)


_StrictLoader.add_constructor("tag:yaml.org,2002:int", _decimal)


def parse_yaml(text: str) -> Any:
    """The value of a YAML text; raises `ValueError` with a one-line message."""
    try:
        return deepcopy(_loaded(text))
    except yaml.MarkedYAMLError as error:
        line = f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ValueError(f"{brief(str(error.problem), 300)}{line}") from error
    except yaml.YAMLError as error:
        raise ValueError(brief(str(error), 300)) from error
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


@lru_cache(maxsize=128)
def _loaded(text: str) -> Any:
    """Loading takes most of the time of a plan, whose arms have the same base and profile."""
    return yaml.load(text, Loader=_StrictLoader)


def read_mapping(path: Path, what: str) -> dict[str, Any]:
    """The settings in a YAML file; `what` names the kind of file in messages."""

    def refuse(sentence: str) -> NoReturn:
        raise ConfigurationError(f"{what} {brief(path, 300)} {sentence}")

    if not os.path.exists(path):  # Path.exists raises for an impossible name
        there = path.parent.glob("*.yaml") if os.path.isdir(path.parent) else ()
        refuse(f"does not exist{nearest(path.name, (other.name for other in there))}")
    if path.is_dir():
        refuse("is a directory; name a .yaml file in it")
    if not path.is_file():
        refuse("is not a regular file; name a .yaml file")
    if (size := path.stat().st_size) > MAX_BYTES:
        refuse(f"has {size} bytes; the limit is {MAX_BYTES} for a {what}")
    try:
        settings = parse_yaml(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        refuse(f"is not UTF-8 text (byte {error.start}); save it as UTF-8")
    except OSError as error:
        refuse(f"cannot be read: {error.strerror}")
    except ValueError as error:
        refuse(f"is not valid YAML: {error}")
    if settings is None:
        refuse("is empty; give it at least one `key: value` line")
    if not isinstance(settings, dict):
        refuse(f"contains a {type(settings).__name__}; write `key: value` lines")
    return settings


def check_value(name: str, value: Any, hint: Any) -> Any:
    """`value`, if the type `hint` admits it; an integer for a float field becomes a float."""
    for number in _numbers(value):
        if not math.isfinite(number):
            raise ConfigurationError(f"{name} is {_shown(value)}; it has to be a finite number")
    if type(value) is int and abs(value) > MAX_INT:
        raise ConfigurationError(f"{name} is {_shown(value)}; it has to be smaller than 2^63")
    fitted = _fitted(value, hint)
    if fitted is _WRONG:
        raise ConfigurationError(f"{name} is {_shown(value)}; it takes {describe(hint)}")
    return fitted


def accepts(hint: Any, value: Any) -> bool:
    """Whether a value is of the type `hint`."""
    return _fitted(value, hint) is not _WRONG


def admits(hint: Any, kind: type) -> bool:
    """Whether `hint` admits the type `kind` (bool, str, list, ...)."""
    return any((get_origin(one) or one) is kind for one in _kinds(hint))


def takes_only_text(hint: Any) -> bool:
    """Whether every value that `hint` admits is a text, a list of texts, or null."""

    def is_text(kind: Any) -> bool:
        origin, parts = get_origin(kind), get_args(kind)
        if origin is Literal:
            return all(isinstance(part, str) for part in parts)
        return takes_only_text(parts[0]) if origin is list else kind in (str, types.NoneType)

    return all(map(is_text, _kinds(hint)))


def describe(hint: Any) -> str:
    """What a type hint admits, as text."""
    return " or ".join(dict.fromkeys(_described(kind) for kind in _kinds(hint)))


def _described(kind: Any) -> str:
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return "one of " + ", ".join(map(str, parts))
    if origin is list:
        return f"a list ({describe(parts[0])} each)"
    if origin is dict and parts[1] is not Any:
        return f"a mapping ({describe(parts[1])} each)"
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    words |= {dict: "a mapping", types.NoneType: "null"}
    return words.get(origin or kind, str(kind))


def _kinds(hint: Any) -> list[Any]:
    """The members of a union. An enum is one of its values, also where the hint has `| str`."""
    parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    enums = [part for part in parts if isinstance(part, type) and issubclass(part, Enum)]
    return [
        Literal[tuple(member.value for member in part)] if part in enums else part
        for part in parts
        if not (enums and part is str)
    ]


_WRONG = object()


def _fitted(value: Any, hint: Any) -> Any:
    """`value` as the type takes it, or `_WRONG`."""
    fitted = (_fitted_to(value, kind, get_args(kind)) for kind in _kinds(hint))
    return next((one for one in fitted if one is not _WRONG), _WRONG)


def _fitted_to(value: Any, kind: Any, parts: tuple) -> Any:
    origin = get_origin(kind) or kind
    if origin is Literal:
        same = any(value == part and type(value) is type(part) for part in parts)
        return value if same else _WRONG
    if origin is list and isinstance(value, list):
        items = [_fitted(item, parts[0]) for item in value]
        return _WRONG if _WRONG in items else items
    if origin is dict and isinstance(value, dict):
        named = {key: _fitted(item, parts[1] if parts else Any) for key, item in value.items()}
        return _WRONG if _WRONG in named.values() else named
    if origin is float and type(value) is int:
        return float(value)
    return value if origin is Any or type(value) is origin else _WRONG


def _numbers(value: Any) -> Iterator[float]:
    """The floats in a value, at any depth."""
    if isinstance(value, float):
        yield value
    elif isinstance(value, (list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _numbers(item)


def _shown(value: Any) -> str:
    kinds = {bool: "the boolean ", str: "the text ", list: "the list ", dict: "the mapping "}
    shown = repr(value).lower() if isinstance(value, bool) else repr(value)
    return kinds.get(type(value), "") + (shown if len(shown) <= 80 else shown[:77] + "...")
