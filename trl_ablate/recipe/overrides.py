"""Convert the words of a command line to values of settings, and back.

If a setting takes text, or a list of texts, a word is used as text unchanged, except for

    --key null                   unsets an optional setting
    --stop '["a", "b"]'          a JSON list of texts is that list
    --stop '"null"'              double quotes around a text that would be read as one of these

For other settings (numbers, true and false, mappings) a word is read as YAML, as in a recipe.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from trl_ablate.errors import ConfigurationError
from trl_ablate.recipe.fields import LOADER_KEYS, checked, known_fields
from trl_ablate.recipe.strict import (
    accepts,
    admits,
    check_readable,
    describe,
    parse_yaml,
    takes_only_text,
)


def read_overrides(overrides: Iterable[str] | Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a command line (see `load_recipe`), checked."""
    if isinstance(overrides, Mapping):
        return checked(dict(overrides), "command line")
    return {
        key: value
        for name, words in words_of_settings(overrides)
        for key, value in checked({name: _typed(name, words)}, "command line").items()
    }


def as_words(settings: Mapping[str, Any]) -> list[str]:
    """`--key=value` words from which `read_overrides` makes these settings again."""
    return [f"--{name}={as_word(name, value)}" for name, value in settings.items()]


def as_word(name: str, value: Any) -> str:
    """One word after `--name` that is read as `value`."""
    hint = _types().get(name)
    if isinstance(value, str) and hint is not None and takes_only_text(hint):
        return f'"{value}"' if _is_special(value, hint) or _is_quoted(value, hint) else value
    return json.dumps(value)


def words_of_settings(words: Iterable[str]) -> list[tuple[str, list[str]]]:
    """`--a 1 --b=2 c=3` -> [("a", ["1"]), ("b", ["2"]), ("c", ["3"])]."""
    settings: list[tuple[str, list[str]]] = []
    for word in words:
        if word.startswith("--") or ("=" in word and not settings):
            name, equals, value = word.removeprefix("--").partition("=")
            settings.append((name, [value] if equals else []))
        elif "=" in word and settings[-1][1] and word.partition("=")[0].isidentifier():
            name, _, value = word.partition("=")
            settings.append((name, [value]))
        elif settings:
            settings[-1][1].append(word)
        else:
            raise ConfigurationError(
                f"'{word}' on the command line is not a setting; write --key value"
            )
    return settings


def takes_one_of(name: str, words: list[str]) -> bool:
    """Whether the setting takes each of several words, but no list of them."""
    hint = _types().get(name)
    if len(words) < 2 or hint is None or admits(hint, list) or admits(hint, dict):
        return False
    return all(accepts(hint, _typed(name, [word])) for word in words)


def _typed(name: str, words: list[str]) -> Any:
    """The value for a flag's field from the words after it; unknown flags are checked later."""
    hint = _types().get(name)
    if hint is None:
        return None
    if not words:
        if not admits(hint, bool):
            raise ConfigurationError(f"--{name} needs a value; it takes {describe(hint)}")
        return True
    for word in words:
        check_readable(f"--{name}", word)
    if takes_only_text(hint):
        return _text(words, hint)
    values = [_value(word, hint) for word in words]
    listed = isinstance(values[0], (list, type(None))) or not admits(hint, list)
    return values[0] if len(values) == 1 and listed else values


def _text(words: list[str], hint: Any) -> str | list[str] | None:
    """The value of a setting that takes text, texts, or either."""
    first = words[0]
    if len(words) > 1:
        return words
    if _is_special(first, hint):
        return json.loads(first)
    text = first[1:-1] if _is_quoted(first, hint) else first
    return [text] if admits(hint, list) and not admits(hint, str) else text


def _is_special(word: str, hint: Any) -> bool:
    """Whether a word is not its own text: `null`, or a JSON list of texts."""
    if word == "null":
        return admits(hint, type(None))
    if not admits(hint, list) or not word.startswith("["):
        return False
    try:
        items = json.loads(word)
    except (ValueError, RecursionError):
        return False
    return isinstance(items, list) and all(isinstance(item, str) for item in items)


def _is_quoted(word: str, hint: Any) -> bool:
    """Whether a word is in double quotes and would have another meaning without them."""
    inner = word.strip('"')
    quotes = (len(word) - len(inner)) // 2
    return quotes > 0 and word == '"' * quotes + inner + '"' * quotes and _is_special(inner, hint)


def _value(word: str, hint: Any) -> Any:
    """A word read as YAML; as text if the setting takes text but not the value from YAML."""
    try:
        value = parse_yaml(word)
    except ValueError:
        return word
    return word if not accepts(hint, value) and accepts(hint, word) else value


def _types() -> dict[str, Any]:
    return {**{name: hint for name, (_, hint) in known_fields().items()}, **LOADER_KEYS}
