"""The files that a recipe needs, to send them with its runs: the YAML files of its folder, its base
and its profile, and what all of these name: rewards, templates, prompts, data.

They keep their place relative to the recipe, so that the recipe finds them on the other machine. A
Python file travels with the other Python files of its folder, which it may import. What cannot be
sent is refused before a run starts: files outside the recipe's folder, except a profile that names
no files; absolute paths; more than 50 MB; and modules of the working directory.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trl_ablate.errors import ConfigurationError
from trl_ablate.named_code import code_place
from trl_ablate.recipe.named_files import (
    Anchor,
    base_of,
    file_and_name,
    profile_file,
    profile_of,
    world_file,
)
from trl_ablate.recipe.places import NO_PROFILE, yaml_files
from trl_ablate.recipe.strict import read_mapping
from trl_ablate.reward_specs import GYM_SCORE
from trl_ablate.switches import named

MOST_BYTES = 50 * 10**6


def own_files(recipe: Path, words: Sequence[str]) -> dict[str, Path]:
    """Path relative to the recipe's folder -> file, for all files that the run needs.

    Args:
        words: arguments of the training after the recipe; `--key=value` are settings.
    """
    folder = recipe.parent.resolve()
    found = {str(file.relative_to(recipe.parent)): file for file in yaml_files(recipe.parent)}

    def add(file: Path) -> None:
        if not file.resolve().is_relative_to(folder):
            raise ConfigurationError(
                f"{file}, which recipe {recipe} names, is outside the recipe's folder {folder} and "
                "is not sent to another machine; move it into this folder and name it by its "
                "relative path"
            )
        found[str(file.resolve().relative_to(folder))] = file

    profile = profile_file(recipe, profile_asked(words))
    if profile and profile.resolve().is_relative_to(folder):
        add(profile)
    for source, settings in _layers(recipe, words):
        if source not in (recipe, profile, *found.values()):
            add(source)
        for name in _named(settings, source.parent.resolve()):
            add(source)  # elsewhere its paths would be others
            for file in _with_neighbours(name):
                add(file)
    size = sum(file.stat().st_size for file in found.values())
    if size > MOST_BYTES:
        largest = max(found.values(), key=lambda file: file.stat().st_size)
        raise ConfigurationError(
            f"the files that recipe {recipe} names have {size / 1e6:.0f} MB, and "
            f"{MOST_BYTES / 1e6:.0f} MB can be sent to another machine; put {largest} "
            "on the Hub and name it by its id"
        )
    return found


def profile_asked(words: Sequence[str]) -> str:
    """The profile that the words name, as those of a study always do."""
    return words[words.index("--profile") + 1] if "--profile" in words else NO_PROFILE


def texts_in(key: str, value: Any) -> Iterator[str]:
    """Every text in the value of a setting that may name code or a file; of a reward its path."""
    if isinstance(value, dict):
        value = [value.get("path")] if key == "reward_funcs" else [*value.values()]
    if isinstance(value, list):
        for one in value:
            yield from texts_in(key, one)
    elif isinstance(value, str):
        yield value


def _layers(recipe: Path, words: Sequence[str]) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """The settings of the command line and of the files that are not shipped, each with the file
    beside which its paths begin."""
    settings = (word.removeprefix("--").partition("=") for word in words if word.startswith("--"))
    yield recipe, {name: _value(text) for name, equals, text in settings if equals}
    if not recipe.is_file():
        return  # the training refuses it
    own = read_mapping(recipe, "recipe")
    _check_relative("extends", str(own.get("extends", "")))
    yield recipe, own
    asked = profile_asked(words)
    for file in (base_of(recipe), recipe.parent / f"profiles/{profile_of(recipe, asked)}.yaml"):
        if file != recipe and file.is_relative_to(recipe.parent) and file.is_file():
            yield file, read_mapping(file, "recipe")
    if profile := profile_file(recipe, asked):
        yield profile, read_mapping(profile, "profile")


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _named(settings: Mapping[str, Any], folder: Path) -> list[Path]:
    """The files and folders that are named relative to the folder, except folders of models."""
    given = dict(settings)
    if "dataset_name" in given:  # of `trl grpo`
        given["dataset"] = given.pop("dataset_name")
    code, worlds = named("code"), named("world")
    naming = (*code, *worlds, *named("dataset", "file"))
    given = {key: value for key, value in given.items() if key in naming}
    models = {
        text for key in worlds for text in texts_in(key, given.get(key)) if not world_file(text)
    }
    for key, value in given.items():
        for text in {*texts_in(key, value)} - models:
            file, name = file_and_name(world_file(text) or text)
            if key in code and not name:
                _check_module(key, text)
            _check_relative(key, file)
    anchor = Anchor()
    anchor.settings(given, folder, Path())
    return [Path(path) for path, text in anchor.files.items() if text not in models]


def _check_relative(key: str, file: str) -> None:
    if os.path.isabs(os.path.expanduser(file)):
        raise ConfigurationError(
            f"{key}: {file} is an absolute path, which names no file of another machine; put the "
            "file into the recipe's folder and name it by its relative path"
        )


def _check_module(key: str, text: str) -> None:
    """An installed module has to be installed there, too; one of this folder would be missing."""
    place = code_place(text) if "/" not in text and text != GYM_SCORE else None
    if place is None or place.is_file:
        return
    top = place.module.partition(".")[0]
    if any(os.path.exists(file) for file in (top, f"{top}.py")):
        raise ConfigurationError(
            f"{key}: module '{top}' is in the working directory {os.getcwd()}, which is not sent "
            "to another machine; put the code beside the recipe as FILE.py:FUNCTION, or install it "
            "there"
        )


def _with_neighbours(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(file for file in path.rglob("*") if file.is_file())
    return sorted(path.parent.glob("*.py")) if path.suffix == ".py" else [path]
