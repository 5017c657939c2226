"""From YAML to one resolved, validated config: base < profile < recipe < command line.

A recipe names its base with `extends` and contains only the keys that it changes. A profile has
the settings for a machine, and only a base is under it: what a named recipe sets itself wins, also
without `extends`. The command line overrides all. Every key of every layer is checked against its
field before a model or a dataset is loaded.
"""

import dataclasses
import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers.trainer_pt_utils import AcceleratorConfig
from trl import ModelConfig

from trl_ablate.config import AblationConfig
from trl_ablate.errors import ConfigurationError, brief
from trl_ablate.guard.arguments import GuardArguments
from trl_ablate.miniature.registry import has_levels, in_full, is_miniature
from trl_ablate.recipe.agreement import (
    check_agreement,
    precision_warnings,
    template_warnings,
    trust_warnings,
)
from trl_ablate.recipe.fields import GROUPS, LOADER_KEYS, checked, known_fields
from trl_ablate.recipe.inert import inert_knobs
from trl_ablate.recipe.named_files import BEFORE_CHAINS, Anchor, of_worlds
from trl_ablate.recipe.overrides import read_overrides
from trl_ablate.recipe.places import (
    AS_ASKED,
    NO_PROFILE,
    TOY,
    beside_or_shipped,
    is_shipped_base,
    own_profile,
    profile_path,
    recipe_path,
    suitable_profile,
)
from trl_ablate.recipe.strict import read_mapping
from trl_ablate.recipe.trl_yaml import from_trl
from trl_ablate.run.identity import NOT_WRITTEN
from trl_ablate.run.json_files import read_object
from trl_ablate.run.masking import MASK, Masker
from trl_ablate.switches import named
from trl_ablate.task import TaskArguments

NAMES_OF_FOLDERS = ("arm", "run_name")
"""Settings that become part of a path: the run's own folder, and its tables in trackio."""
OVERRULING = (
    ("max_steps", "num_train_epochs"),
    ("max_steps", "grpo_steps"),
    ("grpo_steps", "num_train_epochs"),
    ("optimizer_batch_size", "gradient_accumulation_steps"),
)
"""Pairs of settings: the second has no effect beside the first, which is dropped if it is from a
lower layer."""


@dataclass(frozen=True)
class Resolved:
    """A resolved recipe: the argument groups, and where their values come from."""

    recipe: Path
    profile: str
    profile_reason: str
    config: AblationConfig
    task: TaskArguments
    model: ModelConfig
    guard: GuardArguments
    changes: dict[str, tuple[Any, Any]]  # key -> (value in the base, value that is declared)
    inert: dict[str, str]  # settings that have no effect with the others, and why
    warnings: list[str]
    settings: dict[str, Any] = field(default_factory=dict)  # every key that a layer set
    layers: dict[str, str] = field(default_factory=dict)  # where each is from, if not derived
    files: dict[str, str] = field(default_factory=dict)  # as those of an `Anchor`
    for_gpu: bool = False  # no layer asked for the CPU; resolving needs no GPU

    def all_settings(self) -> dict[str, Any]:
        """Also those that no layer set; the optimizer's batch and the GRPO steps are counted."""
        config: Any = self.config
        rounds = config.generation_batch_size * config.gradient_accumulation_steps
        steps = int(config.max_steps * config.grpo_steps_per_optimizer_step)
        return {
            **config.to_dict(), **dataclasses.asdict(self.task), **dataclasses.asdict(self.model),
            "optimizer_batch_size": rounds // config.steps_per_generation,
            "grpo_steps": steps if config.max_steps > 0 else None,
        }  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """The content of `resolved_config.json`; tokens are masked."""
        config = self.config.to_dict()
        found = {
            "recipe": self.recipe.name,
            "profile": self.profile,
            "changes": {key: list(values) for key, values in self.changes.items()},
            "inert": self.inert,
            "settings": dict(sorted(self.settings.items())),
            "config": json.loads(json.dumps(config, default=str)),
            "task": dataclasses.asdict(self.task),
            "model": dataclasses.asdict(self.model),
            "guard": dataclasses.asdict(self.guard),
            **({"files": self.files} if self.files else {}),
        }
        return Masker(hide_home=False).value(found)


def load_recipe(
    path: str | os.PathLike,
    profile: str = "auto",
    overrides: Iterable[str] | Mapping[str, Any] = (),
    *,
    as_base: bool = False,
) -> Resolved:
    """Resolve a recipe.

    Args:
        path: the recipe's YAML file, or the bare name of a shipped recipe.
        profile: a name, a path, or `auto`: the recipe's own, or else the one for this machine.
        overrides: settings of the command line, as a mapping or as words.
        as_base: resolve it as recipes that extend it see it, under the profile.
    """
    path, anchor = recipe_path(path), Anchor()
    base, recipe = _base_and_recipe(path, anchor, as_base)
    command_line = anchor.settings(read_overrides(overrides), Path(), path.parent)
    asked = command_line.pop("profile", None) or (profile if profile != "auto" else None)
    wanted = asked or recipe.get("profile") or base.get("profile") or "auto"
    name, reason = suitable_profile() if wanted == "auto" else (Path(wanted).stem, AS_ASKED)
    profile_layer = _profile_layer(name if wanted == "auto" else wanted, path, anchor)
    declared = {key: value for key, value in recipe.items() if key not in LOADER_KEYS}
    asked_for = {**base, **declared, **command_line}
    layers = {
        f"base {Path(recipe.get('extends', path)).name}": base,
        f"profile {name}": _fitting(profile_layer, asked_for),
        f"recipe {path.name}": declared,
        "command line": command_line,
    }
    settings = {key: value for layer in layers.values() for key, value in layer.items()
                if key not in LOADER_KEYS}  # fmt: skip
    origins = {key: name for name, layer in layers.items() for key in layer}
    level = {key: [*layers].index(name) for key, name in origins.items()}
    for one, other in OVERRULING:
        if one in settings and settings.get(other) is not None and level[one] < level[other]:
            del settings[one], origins[one]
    if settings.get("arm") is None:
        settings["arm"] = path.stem
    changes = {key: (base.get(key), value) for key, value in declared.items()} if base else {}
    resolved = _resolve(path, (name, reason), settings, changes, anchor.files, origins)
    model = str(resolved.model.model_name_or_path)
    if wanted == "auto" and name == TOY and not is_miniature(model):
        resolved.warnings.append(
            f"profile {name} is made for a toy ({reason}), and the model is {model}; name another "
            "profile, or none"
        )
    return resolved


def _profile_layer(name: str, recipe: Path, anchor: Anchor) -> dict[str, Any]:
    if name == NO_PROFILE:
        return {}
    file = profile_path(name, recipe)
    given = checked(read_mapping(file, "profile"), name, loader=())
    return anchor.settings(given, file.parent, Path())


def _fitting(profile: dict[str, Any], asked_for: Mapping[str, Any]) -> dict[str, Any]:
    """The profile's settings, without `eval_by: level` where another layer names a dataset without
    levels, or TRL's evaluation, which knows none: it is about the profile's own questions."""
    dataset = asked_for.get("dataset")
    levels = dataset is None or has_levels(str(dataset))
    one_shot = {**profile, **asked_for}.get("evaluation") == "one_shot"
    stays = profile.get("eval_by") != "level" or (levels and one_shot)
    return {key: value for key, value in profile.items() if stays or key != "eval_by"}


def resolve_run(config_file: Path, overrides: Iterable[str] | Mapping[str, Any] = ()) -> Resolved:
    """A run's settings from its `resolved_config.json`, with some of them changed. The learning
    rate is already scaled. Tokens, which the file does not have, become null."""
    written = read_object(config_file)
    if not isinstance(written.get("settings"), dict) or not written.get("profile"):
        raise ConfigurationError(
            f"{config_file} holds no settings and no profile; restore it, or give --recipe and "
            "--profile"
        )
    settings, anchor = {**NOT_WRITTEN, **checked(written["settings"], config_file)}, Anchor()
    settings |= of_worlds(settings, lambda name: in_full(name, BEFORE_CHAINS))
    settings |= anchor.settings(read_overrides(overrides, loader=()), Path())
    settings |= {"learning_rate_scale": 1.0}
    settings = {key: _without_mask(value, key, config_file) for key, value in settings.items()}
    profile = (written["profile"], "as in the run")
    return _resolve(config_file, profile, settings, {}, anchor.files, {})


def _without_mask(value: Any, setting: str, file: Path, key: str = "") -> Any:
    """The value with null for each masked token, unless the user's code would get it."""
    if isinstance(value, dict):
        return {name: _without_mask(one, setting, file, name) for name, one in value.items()}
    if isinstance(value, list):
        return [_without_mask(one, setting, file, key) for one in value]
    if isinstance(value, str) and MASK in value and setting in (*named("code"), "eval_sets"):
        raise ConfigurationError(
            f"{file}: {key} in {setting} is a secret, which the record of a run does not hold; "
            f"give --{setting} again"
        )
    return None if value == MASK else value


def _base_and_recipe(
    path: Path, anchor: Anchor, as_base: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The base's settings and those that the recipe declares. A recipe without `extends` has no
    base; the shipped one that the others extend is a base that declares nothing."""
    given = from_trl(read_mapping(path, "recipe"), path)
    recipe = _anchored(checked(given, path), path, anchor)
    if "extends" not in recipe:
        return (recipe, {}) if as_base or is_shipped_base(path) else ({}, recipe)
    base_path = beside_or_shipped(recipe["extends"], path)
    if base_path.resolve() == path.resolve():
        raise ConfigurationError(
            f"recipe {path} extends itself; name another base, or remove `extends`"
        )
    named = f"base '{brief(recipe['extends'])}' of recipe {path}:"
    base = checked(read_mapping(base_path, named), base_path)
    if "extends" in base:
        again = beside_or_shipped(base["extends"], base_path)
        circle = "a circle" if again.resolve() == path.resolve() else "more than one level deep"
        raise ConfigurationError(
            f"recipe {path} extends {base_path.name}, which extends {base['extends']}: that is "
            f"{circle}; extend a base that has no `extends`"
        )
    return _anchored(base, base_path, anchor), recipe


def _anchored(settings: dict[str, Any], file: Path, anchor: Anchor) -> dict[str, Any]:
    """The settings of a recipe's file, with the absolute path of each file that they name."""
    found = anchor.settings(settings, file.parent, Path())
    return found | {"profile": own_profile(found["profile"], file)} if "profile" in found else found


def _resolve(
    path: Path,
    profile: tuple[str, str],
    settings: dict[str, Any],
    changes: dict[str, tuple[Any, Any]],
    files: dict[str, str],
    layers: dict[str, str],
) -> Resolved:
    """Build and cross-check the argument groups."""
    groups: dict[type, dict[str, Any]] = {group: {} for group in GROUPS}
    for key, value in settings.items():
        groups[known_fields()[key][0]][key] = value
    task = TaskArguments(**groups[TaskArguments])
    arguments = groups[AblationConfig]
    for key in NAMES_OF_FOLDERS:
        name = settings.get(key)
        if name is not None and (name in ("", ".", "..") or re.search(r"[/\\]", name)):
            raise ConfigurationError(
                f"{key} is '{brief(name)}', but it becomes part of a folder's name; give a name "
                "without slashes, and use --output_dir to choose the folder"
            )
    if arguments.get("output_dir") == "":
        raise ConfigurationError("output_dir is empty; name a folder, or leave it out")
    warnings = template_warnings(task, arguments)
    arguments.setdefault("stop", task.stop)
    arguments.setdefault("evaluation", AblationConfig.evaluation)
    if arguments.get("output_dir") is None:
        arguments["output_dir"] = f"runs/{settings['arm']}-seed{settings.get('seed', 42)}"
    if "learning_rate" in arguments:
        rate, scale = arguments["learning_rate"], task.learning_rate_scale
        if not math.isfinite(rate * scale):
            raise ConfigurationError(
                f"learning_rate {rate} times learning_rate_scale {scale} is not a finite number; "
                "lower one of the two"
            )
        arguments["learning_rate"] = rate * scale
    if not torch.cuda.is_available():
        arguments["use_cpu"] = True  # so that bf16 and similar settings resolve on a laptop, too
    try:
        config = AblationConfig(**arguments)
        model = ModelConfig(**groups[ModelConfig])
    except ConfigurationError:
        raise
    except Exception as error:  # TRL and transformers raise many kinds of errors for bad values
        refused = f"{type(error).__name__}: " * (not isinstance(error, ValueError))
        raise ConfigurationError(f"recipe {path}: {refused}{brief(error, 500)}") from error
    check_agreement(config, task)
    built = {key: getattr(config, key) for key in arguments}
    if isinstance(built.get("accelerator_config"), AcceleratorConfig):  # as transformers makes it
        built["accelerator_config"] = built["accelerator_config"].to_dict()
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
        warnings=warnings + trust_warnings(config) + precision_warnings(config, model),
        settings={**settings, **built},
        layers=layers,
        files=files,
        for_gpu=not settings.get("use_cpu", False),
    )
