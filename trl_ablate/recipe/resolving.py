"""From YAML to one resolved, validated config: base < profile < recipe < command line.

A recipe declares its base with `extends` and only the keys it changes; a profile says where a run
happens; the command line has the last word. Every key of every layer is checked against the field
it names before anything heavy is loaded.
"""

import dataclasses
import functools
import json
import os
import re
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from trl import ModelConfig

from trl_ablate.config import AblationConfig
from trl_ablate.errors import ConfigurationError
from trl_ablate.guard.rules import GuardArguments
from trl_ablate.prompts.templates import TEMPLATES
from trl_ablate.recipe.agreement import (
    check_evaluation,
    limit_prompts,
    template_warnings,
    trust_warnings,
)
from trl_ablate.recipe.inert import inert_knobs
from trl_ablate.recipe.places import beside_or_shipped
from trl_ablate.recipe.precision import precision_warnings
from trl_ablate.recipe.profiles import profile_path, suitable_profile
from trl_ablate.recipe.strict import admits, brief, check_value, nearest, parse_yaml, read_mapping
from trl_ablate.task import TaskArguments

GROUPS = (ModelConfig, TaskArguments, GuardArguments, AblationConfig)
"""The dataclasses whose fields are the settings."""

NAMES_OF_FOLDERS = ("arm", "run_name")
"""Settings that become part of a path: of the run's own folder, and of its tables in trackio."""

MASKED = "<masked>"
"""What is written in the place of a token."""

LOADER_KEYS = {"extends": str, "profile": str}
"""Keys that steer the loader and are no settings."""


@dataclass
class Resolved:
    """What a recipe comes to: the argument groups, and how they came about."""

    recipe: Path
    profile: str
    profile_reason: str
    config: AblationConfig
    task: TaskArguments
    model: ModelConfig
    guard: GuardArguments
    changes: dict[str, tuple[Any, Any]]
    """Declared difference from the base: key -> (value in the base, value in the recipe)."""
    inert: dict[str, str]
    """Settings that can change nothing under the rest of the config, and why."""
    warnings: list[str]
    settings: dict[str, Any] = field(default_factory=dict)
    """Every key that some layer set, and its final value."""
    for_gpu: bool = False
    """No layer asked for the CPU, so that training is meant for a GPU (resolving needs none)."""

    def to_dict(self) -> dict[str, Any]:
        """What `resolved_config.json` holds; tokens are masked."""
        masked = {k: MASKED if k.endswith("token") else v for k, v in self.settings.items()}
        config = self.config.to_dict()
        return {
            "recipe": self.recipe.name,
            "profile": self.profile,
            "changes": {key: list(values) for key, values in self.changes.items()},
            "inert": self.inert,
            "settings": dict(sorted(masked.items())),
            "config": json.loads(json.dumps(config, default=str)),
            "task": dataclasses.asdict(self.task),
            "model": dataclasses.asdict(self.model),
            "guard": dataclasses.asdict(self.guard),
        }


def load_recipe(
    path: str | os.PathLike,
    profile: str = "auto",
    overrides: Iterable[str] | Mapping[str, Any] = (),
) -> Resolved:
    """Resolve a recipe.

    Args:
        path: the recipe's YAML file.
        profile: name of a file in `recipes/profiles`, a path to one, or `auto`: the recipe's own
            `profile`, or else the one that suits this machine.
        overrides: settings of the command line, as a mapping or as words (`--key value`,
            `--key=value`, `key=value`).
    """
    path = Path(path)
    base, recipe = _base_and_recipe(path)
    command_line = read_overrides(overrides)
    asked = command_line.pop("profile", None) or (profile if profile != "auto" else None)
    wanted = asked or recipe.get("profile") or base.get("profile") or "auto"
    name, reason = suitable_profile() if wanted == "auto" else (Path(wanted).stem, "as asked")
    profile_layer = _checked(
        read_mapping(profile_path(name if wanted == "auto" else wanted, path), "profile"), wanted
    )
    declared = {key: value for key, value in recipe.items() if key not in LOADER_KEYS}
    settings = {**base, **profile_layer, **declared, **command_line}
    for key in LOADER_KEYS:
        settings.pop(key, None)
    settings.setdefault("arm", path.stem)
    return _resolve(
        path, (name, reason), settings, {k: (base.get(k), v) for k, v in declared.items()}
    )


def resolve_run(config_file: Path, overrides: Iterable[str] | Mapping[str, Any] = ()) -> Resolved:
    """What a run resolved to, from the `resolved_config.json` it wrote, with some settings changed.

    Its learning rate is scaled already; tokens, which it does not hold, are null.
    """
    written = json.loads(config_file.read_text(encoding="utf-8"))
    settings = _checked(written["settings"], config_file) | read_overrides(overrides)
    settings |= {"learning_rate_scale": 1.0}
    settings = {key: None if value == MASKED else value for key, value in settings.items()}
    return _resolve(config_file, (written["profile"], "as in the run"), settings, {})


@functools.cache
def known_fields() -> dict[str, tuple[type, Any]]:
    """Every setting there is: name -> (the dataclass that holds it, its type)."""
    return {
        f.name: (group, hints[f.name])
        for group in GROUPS
        for hints in [typing.get_type_hints(group)]
        for f in dataclasses.fields(group)
        if f.init
    }


def _base_and_recipe(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The base's settings and those the recipe declares; without a base it is its own."""
    recipe = _checked(read_mapping(path, "recipe"), path)
    if "extends" not in recipe:
        return recipe, {}
    base_path = beside_or_shipped(recipe["extends"], path)
    if base_path.resolve() == path.resolve():
        raise ConfigurationError(
            f"recipe {path} extends itself; name another base, or remove `extends`"
        )
    base = _checked(
        read_mapping(base_path, f"base '{brief(recipe['extends'])}' of recipe {path}:"), base_path
    )
    if "extends" in base:
        again = beside_or_shipped(base["extends"], base_path)
        circle = "a circle" if again.resolve() == path.resolve() else "more than one level deep"
        raise ConfigurationError(
            f"recipe {path} extends {base_path.name}, which extends {base['extends']}: that is "
            f"{circle}; let a recipe extend a base that extends nothing"
        )
    return base, recipe


def _checked(settings: dict[str, Any], source: object) -> dict[str, Any]:
    """The settings of one layer, each known and of its field's type."""
    known = known_fields()
    checked = {}
    for key, value in settings.items():
        if key in LOADER_KEYS:
            checked[key] = check_value(f"{source}: {key}", value, LOADER_KEYS[key])
        elif key in known:
            checked[key] = check_value(f"{source}: {key}", value, known[key][1])
        else:
            raise ConfigurationError(
                f"{source}: unknown key '{brief(key)}'{nearest(key, [*known, *LOADER_KEYS])}"
            )
    return checked


def read_overrides(overrides: Iterable[str] | Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a command line (see `load_recipe`), checked."""
    if isinstance(overrides, Mapping):
        return _checked(dict(overrides), "command line")
    return {
        key: value
        for name, words in _split_words(overrides)
        for key, value in _checked({name: _typed(name, words)}, "command line").items()
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


def _resolve(
    path: Path,
    profile: tuple[str, str],
    settings: dict[str, Any],
    changes: dict[str, tuple[Any, Any]],
) -> Resolved:
    """Build and cross-check the argument groups."""
    known = known_fields()
    groups: dict[type, dict[str, Any]] = {group: {} for group in GROUPS}
    for key, value in settings.items():
        groups[known[key][0]][key] = value
    task = TaskArguments(**groups[TaskArguments])
    arguments = groups[AblationConfig]
    for name in NAMES_OF_FOLDERS:
        _check_folder_name(name, settings.get(name))
    warnings = template_warnings(task, arguments) + trust_warnings(arguments)
    arguments.setdefault("stop", list(TEMPLATES[task.template].stop) or None)
    arguments.setdefault("output_dir", f"runs/{settings['arm']}-seed{settings.get('seed', 42)}")
    if "learning_rate" in arguments:
        arguments["learning_rate"] *= task.learning_rate_scale
    if not torch.cuda.is_available():
        arguments["use_cpu"] = True  # bf16 and the like then resolve on a laptop, too
    try:
        config = AblationConfig(**arguments)
        model = ModelConfig(**groups[ModelConfig])
    except ConfigurationError:
        raise
    except Exception as error:  # TRL and transformers refuse values in a dozen ways
        refused = f"{type(error).__name__}: " * (not isinstance(error, ValueError))
        raise ConfigurationError(f"recipe {path}: {refused}{brief(error, 500)}") from error
    check_evaluation(config, task)
    limit_prompts(config, task)
    return Resolved(
        recipe=path,
        profile=profile[0],
        profile_reason=profile[1],
        config=config,
        task=task,
        model=model,
        guard=GuardArguments(**groups[GuardArguments]),
        changes=changes,
        inert=inert_knobs(config, task, model, settings),
        warnings=warnings + precision_warnings(config, model),
        settings={**settings, **{key: getattr(config, key) for key in arguments}},
        for_gpu=not settings.get("use_cpu", False),
    )


def _check_folder_name(key: str, value: str | None) -> None:
    if value is not None and (value in ("", ".", "..") or re.search(r"[/\\]", value)):
        raise ConfigurationError(
            f"{key} is '{brief(value)}', which names a folder of the run; give a name without "
            "slashes, and --output_dir for the place"
        )
