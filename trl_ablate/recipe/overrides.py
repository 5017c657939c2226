"""The words of a command line as the values of settings."""

from collections.abc import Iterable, Mapping
from typing import Any

from trl_ablate.errors import ConfigurationError
from trl_ablate.recipe.fields import LOADER_KEYS, checked, known_fields
from trl_ablate.recipe.strict import admits, parse_yaml


def read_overrides(overrides: Iterable[str] | Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a command line (see `load_recipe`), checked."""
    if isinstance(overrides, Mapping):
        return checked(dict(overrides), "command line")
    return {
        key: value
        for name, words in _split_words(overrides)
        for key, value in checked({name: _typed(name, words)}, "command line").items()
    }


def _split_words(words: Iterable[str]) -> list[tuple[str, list[str]]]:
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
                f"'{word}' on the command line is no setting; write --key value"
            )
    return settings


def _typed(name: str, words: list[str]) -> Any:
    """The words after a flag as the value its field wants; unknown flags are left to the check."""
    hint = {**{k: v[1] for k, v in known_fields().items()}, **LOADER_KEYS}.get(name)
    if hint is None:
        return None
    if not words:
        if not admits(hint, bool):
            raise ConfigurationError(f"--{name} needs a value")
        return True
    try:
        values = [parse_yaml(word) for word in words]
    except ValueError:
        values = list(words)
    if len(values) > 1 or (admits(hint, list) and not isinstance(values[0], (list, type(None)))):
        return [v if admits_item(hint, v) else w for v, w in zip(values, words, strict=True)]
    if values[0] is not None and not isinstance(values[0], str) and _only_text(hint):
        return words[0]
    return values[0]


def admits_item(hint: Any, value: Any) -> bool:
    """Whether a list that `hint` admits may hold `value` (a number given for text stays text)."""
    return isinstance(value, str) or not admits(hint, list) or "list[str]" not in str(hint)


def _only_text(hint: Any) -> bool:
    return admits(hint, str) and not any(
        admits(hint, kind) for kind in (bool, int, float, dict, list)
    )
