"""The worlds by name: `miniature`, `miniature/WORLD`, and for models `miniature/WORLD/STAGE`."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import cast, get_args

from trl_ablate.errors import ConfigurationError
from trl_ablate.miniature.corpus import OPENINGS
from trl_ablate.miniature.world import Split, Stage, World
from trl_ablate.miniature.worlds import calculator, chains, gym_tasks, ladder, sums, words
from trl_ablate.named_code import file_module

MINIATURE = "miniature"
DEFAULT = "chains"
VOCABULARY = 300
"""About as many tokens as the tokenizer of any world has."""
MOST_MILLIONS_OF_ONE_CORE = 10.0
"""A second thread gains such a model little on idle cores, and slows it many times on busy ones."""
WORLDS = {
    world.name: world
    for module in (sums, chains, ladder, calculator, gym_tasks, words)
    for world in module.WORLDS
}
STAGES: tuple[Stage, ...] = get_args(Stage)


def is_miniature(name: str) -> bool:
    """Whether the name of a model or dataset means the miniature, and no folder of that name."""
    return name.partition("/")[0] == MINIATURE and not os.path.exists(name)


def in_full(name: str, default: str = DEFAULT) -> str:
    """`miniature` and `miniature/STAGE` with the world that they mean, `miniature/WORLD/STAGE`; any
    other name as it is. A recorded run keeps its meaning when the default becomes another."""
    _, *parts = name.split("/")
    bare = not parts or parts in [[stage] for stage in STAGES]
    return "/".join((MINIATURE, default, *parts)) if bare and is_miniature(name) else name


def world_named(name: str | World) -> World:
    """A shipped world by its name, the `WORLD` of a Python file, or the given world."""
    if isinstance(name, World):
        return name
    if name in WORLDS:
        return WORLDS[name]
    if name.endswith(".py"):
        return _world_in(Path(os.path.expanduser(name)).resolve())
    raise ConfigurationError(
        f"'{name}' is no world of the miniature; it has: {', '.join(WORLDS)}; {MINIATURE}/FILE.py "
        "is the world that a file of yours defines"
    )


@cache
def _world_in(file: Path) -> World:
    if not os.path.isfile(file):  # Path.is_file raises for an impossible name
        raise ConfigurationError(f"the world {file} does not exist; create it, or give another")
    world = vars(file_module(file)).get("WORLD")
    if not isinstance(world, World):
        raise ConfigurationError(
            f"the file {file} defines no WORLD; write WORLD = World(...), as "
            "`trl-ablate new --world FOLDER` shows"
        )
    taught = [name for name in OPENINGS if name in world.format_shares]
    for name in world.template_shares:
        if name not in taught:
            raise ConfigurationError(
                f"the world {file} is taught with the template '{name}'; template_shares may name "
                f"those of {', '.join(OPENINGS)} that have a share in format_shares, too"
            )
    known = [Path(each).resolve() for each in world.files]
    return world if file in known else replace(world, files=(*world.files, str(file)))


def has_levels(name: str) -> bool:
    """Whether a dataset's name means a shipped world whose questions have levels."""
    world = WORLDS.get(in_full(name).partition("/")[2]) if is_miniature(name) else None
    if world is None or world in gym_tasks.WORLDS:  # which need a package
        return False
    return world.task.questions("validation")[0].level is not None


def world_of_data(name: str) -> World:
    return world_named(name.partition("/")[2] or DEFAULT)


def world_of_model(name: str) -> tuple[World, Stage]:
    parts = name.split("/")[1:]
    stage = cast(Stage, parts.pop()) if parts and parts[-1] in STAGES else "base"
    world = "/".join(parts) or DEFAULT
    if world not in WORLDS and not world.endswith(".py"):
        raise ConfigurationError(
            f"model '{name}' is no world and no stage of the miniature; it has the worlds "
            f"{', '.join(WORLDS)}, each with the stages {', '.join(STAGES)}: write "
            f"{MINIATURE}/{DEFAULT}/{STAGES[-1]}, for example"
        )
    found = world_named(world)
    if not found.shape.layers:
        raise ConfigurationError(
            f"the world '{world}' has questions and no model of its own; give a language model as "
            "--model_name_or_path, such as HuggingFaceTB/SmolLM2-135M-Instruct (--profile smollm2)"
        )
    return found, stage


def millions_of_parameters(model: str) -> float:
    width, layers, _, inner_width, _ = world_of_model(model)[0].shape
    per_layer = 4 * width**2 + 3 * width * inner_width + 5 * width
    return (VOCABULARY * width + layers * per_layer + width) / 1e6


def is_of_one_core(millions: float) -> bool:
    """Whether one thread is best for the arithmetic of a model with so many parameters."""
    return millions <= MOST_MILLIONS_OF_ONE_CORE


def problems(
    split: Split, size: int | None = None, seed: int = 0, world: str | World = DEFAULT
) -> list[dict[str, str]]:
    """Different questions of a world as rows: `{"question": ..., "answer": ...}`, and `level` if
    the world has levels. See `World.problems`."""
    rows = [each._asdict() for each in world_named(world).problems(split, size, seed)]
    return [{key: value for key, value in row.items() if value is not None} for row in rows]
