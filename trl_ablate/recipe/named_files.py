"""Files that settings name: found beside the recipe, and known by their content.

A path in a recipe is relative to the recipe, or else to the working directory; one of the command
line the other way round. Where such a file exists, its absolute path takes its place, so that a run
can be evaluated from anywhere. What identifies a run is the name and the content of code,
templates and files of data, and of folders of data and of models the path as it was written; see
`run/identity.py: portable`.
"""

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trl_ablate.miniature.registry import MINIATURE, in_full, is_miniature
from trl_ablate.prompts.templates import is_own
from trl_ablate.recipe.places import SUFFIXES, beside_or_shipped, own_profile, profile_path
from trl_ablate.recipe.strict import read_mapping
from trl_ablate.reward_specs import GYM_REWARD, OWN_REWARDS, TRL_REWARDS
from trl_ablate.switches import named

NAMES_OF_DATASETS = ("math", "gsm8k", "miniature")
NAMES_OF_WORLDS = ("dataset", "model_name_or_path")
BEFORE_CHAINS = "sums"
"""The world that `miniature` means in the record of a run from before there were others."""


class Anchor:
    """Replaces relative paths of files by absolute ones."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}  # every path so far -> the text that identifies the file

    def settings(self, given: Mapping[str, Any], *folders: Path) -> dict[str, Any]:
        """The settings with the absolute path of every file that is in one of the folders."""
        found = {key: self._setting(key, value, folders) for key, value in given.items()}
        return found | of_worlds(found, lambda name: self._world(name, folders))

    def _setting(self, key: str, value: Any, folders: tuple[Path, ...]) -> Any:
        """Every text in a value, as the file that it names; of a reward with a weight, its path."""
        if isinstance(value, list):
            return [self._setting(key, one, folders) for one in value]
        if isinstance(value, dict) and key == "eval_sets":
            return {
                name: self.settings(one, *folders)
                if isinstance(one, dict)
                else self._setting("dataset", one, folders)
                for name, one in value.items()
            }
        if isinstance(value, dict):
            apart = value.keys() - {"path"} if key == "reward_funcs" else ()
            return {
                name: one if name in apart else self._setting(key, one, folders)
                for name, one in value.items()
            }
        if not isinstance(value, str) or value in NAMES_OF_DATASETS:
            return value
        if key in named("dataset") and (path := _whole(os.path.expanduser(value), folders)):
            name = os.path.basename(value) if _is_whole(value) else value
            self.files[path] = f"{name}@{digest_of(path)}" if os.path.isfile(path) else value
            return path
        is_file = key in named("code", "file") and (key != "template" or is_own(value))
        return self._file(value, folders) if is_file else value

    def _world(self, name: str, folders: tuple[Path, ...]) -> str:
        """A world's name in full; a world that is a file is known by the file. A model's folder is
        found as data are."""
        if (file := world_file(name)) is not None:
            return name.replace(file, self._file(file, folders), 1)
        known = name in NAMES_OF_DATASETS or is_miniature(name)
        path = None if known else _found(name, folders)
        if path is None:
            return in_full(name)
        self.files[path] = name
        return path

    def _file(self, value: str, folders: tuple[Path, ...]) -> str:
        """A file, with the function after it; a reward model's folder is known by its name."""
        if value in (*OWN_REWARDS, *TRL_REWARDS, GYM_REWARD):
            return value
        file, name = file_and_name(value)
        path = _whole(file, folders)
        if path is None:
            return value
        self.files[path] = f"{Path(path).name}@{digest_of(path)}" if os.path.isfile(path) else file
        return path + name


def of_worlds(settings: Mapping[str, Any], named: Callable[[str], str]) -> dict[str, Any]:
    """The settings that may name a world, each name replaced by what `named` makes of it."""

    def replaced(value: Any) -> Any:
        if isinstance(value, dict):
            return {**value, **of_worlds(value, named)}
        return named(value) if isinstance(value, str) else value

    found = {key: replaced(settings[key]) for key in NAMES_OF_WORLDS if key in settings}
    for key in ("starts", "eval_sets"):
        if isinstance(settings.get(key), dict):
            found[key] = {name: replaced(one) for name, one in settings[key].items()}
    return found


def _is_whole(file: str) -> bool:
    return os.path.isabs(file) or file.startswith("~")


def _whole(file: str, folders: tuple[Path, ...]) -> str | None:
    """The absolute path of a file that is given by it, or of what is in one of the folders."""
    return file if os.path.isabs(file) and os.path.isfile(file) else _found(file, folders)


def _found(file: str, folders: tuple[Path, ...]) -> str | None:
    if not file or _is_whole(file):
        return None
    there = (folder / file for folder in folders if os.path.exists(folder / file))
    return next((os.path.abspath(path) for path in there), None)


def base_of(recipe: Path) -> Path:
    """The recipe that `recipe` extends, or itself."""
    extends = read_mapping(recipe, "recipe").get("extends")
    return recipe if extends is None else beside_or_shipped(str(extends), recipe)


def profile_of(recipe: Path, asked: str = "auto") -> str:
    """The name or path of the profile under which a recipe runs: the one that was asked for, its
    own, or that of its base; `auto` if that is up to the machine."""
    if asked != "auto":
        return asked
    for file in (recipe, base_of(recipe)):
        if own := read_mapping(file, "recipe").get("profile"):
            return own_profile(str(own), file)
    return "auto"


def profile_file(recipe: Path, asked: str = "auto") -> Path | None:
    """The file of that profile, if a path names it."""
    name = profile_of(recipe, asked)
    return profile_path(name, recipe) if name.endswith(SUFFIXES) else None


def world_file(name: str) -> str | None:
    """The file of a world that is one: `miniature/FILE.py`, with a stage after it or without."""
    file, suffix, _ = name.removeprefix(f"{MINIATURE}/").rpartition(".py")
    return file + suffix if suffix and is_miniature(name) else None


def file_and_name(value: str) -> tuple[str, str]:
    """`reward.py:score` -> ("reward.py", ":score")."""
    file, colon, name = value.rpartition(":")
    return (file, colon + name) if file.endswith(".py") else (value, "")


def digest_of(file: str | Path) -> str:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()[:12]


def changed_files(files: Mapping[str, str]) -> bool:
    """Whether code, a template or data are not what they were."""
    return any(
        re.search("@[0-9a-f]{12}$", known)
        and (not os.path.isfile(path) or not known.endswith(digest_of(path)))
        for path, known in files.items()
    )
