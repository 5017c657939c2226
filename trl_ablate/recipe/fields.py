"""All settings: the fields of four dataclasses, and the keys that control the loader."""

import dataclasses
import functools
import typing
from typing import Any

from trl import ModelConfig

from trl_ablate.config import AblationConfig
from trl_ablate.errors import ConfigurationError
from trl_ablate.guard.arguments import GuardArguments
from trl_ablate.recipe.ranges import check_meaning
from trl_ablate.recipe.strict import brief, check_value, nearest
from trl_ablate.task import TaskArguments

GROUPS = (ModelConfig, TaskArguments, GuardArguments, AblationConfig)
"""The dataclasses whose fields are the settings."""

LOADER_KEYS = {"extends": str, "profile": str}
"""Keys that control the loader and are not settings."""


@functools.cache
def known_fields() -> dict[str, tuple[type, Any]]:
    """All settings: name -> (the dataclass with the field, its type)."""
    return {
        f.name: (group, hints[f.name])
        for group in GROUPS
        for hints in [typing.get_type_hints(group)]
        for f in dataclasses.fields(group)
        if f.init
    }


def checked(settings: dict[str, Any], source: object) -> dict[str, Any]:
    """The settings of one layer, after a check that each is known, has its type, and is valid."""
    known = known_fields()
    found = {}
    for key, value in settings.items():
        if key in LOADER_KEYS:
            found[key] = check_value(f"{source}: {key}", value, LOADER_KEYS[key])
        elif key in known:
            found[key] = check_value(f"{source}: {key}", value, known[key][1])
            check_meaning(f"{source}: {key}", key, found[key])
        else:
            raise ConfigurationError(
                f"{source}: unknown key '{brief(key)}'{nearest(key, [*known, *LOADER_KEYS])}"
            )
    return found
