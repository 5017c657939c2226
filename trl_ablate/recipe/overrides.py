"""Convert the words of a command line to values of settings, and back.

If a setting takes text, or a list of texts, a word is used as text unchanged, except for

    --key null                   unsets an optional setting
    --stop '["a", "b"]'          a JSON list of texts is that list
    --stop '"null"'              a text in JSON, with double quotes, is that text

For other settings (numbers, true and false, mappings) a word is read as YAML, as in a recipe.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from trl_ablate.errors import ConfigurationError
from trl_ablate.recipe.fields import checked, hints
from trl_ablate.recipe.strict import (
    accepts,
    admits,
    check_readable,
    describe,
    parse_yaml,
    takes_only_text,
)


def read_overrides(
    overrides: Iterable[str] | Mapping[str, Any], loader: Collection[str] = ("profile",)
) -> dict[str, Any]:
    """The settings of a command line (see `load_recipe`), checked; `loader`: as in `checked`."""
    if isinstance(overrides, Mapping):
        return checked(dict(overrides), "command line", loader)
    return {
        key: value
        for name, words in words_of_settings(overrides)
        for key, value in checked({name: _typed(name, words)}, "command line", loader).items()
    }


def as_words(settings: Mapping[str, Any]) -> list[str]:
    """`--key=value` words from which `read_overrides` makes these settings again."""
    return [f"--{name}={as_word(name, value)}" for name, value in settings.items()]


def as_word(name: str, value: Any) -> str:
    """One word after `--name` that is read as `value`."""
    hint = hints().get(name)
    plain = isinstance(value, str) and hint is not None and takes_only_text(hint)
    return value if plain and _text(value, hint) == value else json.dumps(value)


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
    hint = hints().get(name)
    if len(words) < 2 or hint is None or admits(hint, list) or admits(hint, dict):
        return False
    return all(accepts(hint, _typed(name, [word])) for word in words)


def _typed(name: str, words: list[str]) -> Any:
    """The value for a flag's field from the words after it; unknown flags are checked later."""
    hint = hints().get(name)
    if hint is None:
        return None
    if not words:
        if not admits(hint, bool):
            raise ConfigurationError(f"--{name} needs a value; it takes {describe(hint)}")
        return True
    for word in words:
        check_readable(f"--{name}", word)
    if takes_only_text(hint):
        if len(words) > 1:
            return words
        text = _text(words[0], hint)
        only_lists = admits(hint, list) and not admits(hint, str)
        return [text] if isinstance(text, str) and only_lists else text
    values = [_value(word, hint) for word in words]
    listed = isinstance(values[0], (list, type(None))) or not admits(hint, list)
    return values[0] if len(values) == 1 and listed else values


def _text(word: str, hint: Any) -> str | list[str] | None:
    """What a word means to a setting of texts."""
    if word == "null":
        return None if admits(hint, type(None)) else word
    try:
        value = json.loads(word)
    except (ValueError, RecursionError):
        return word
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(one, str) for one in texts):
        return word
    return value if isinstance(value, str) or admits(hint, list) else word


def _value(word: str, hint: Any) -> Any:
    """A word read as YAML; as text if the setting takes text but not the value from YAML."""
    try:
        value = parse_yaml(word)
    except ValueError:
        return word
    return word if not accepts(hint, value) and accepts(hint, word) else value
