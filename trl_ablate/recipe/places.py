"""The recipes of this repository, and where a file that a recipe names is looked for. No torch."""

import os
from pathlib import Path

from trl_ablate.errors import ConfigurationError
from trl_ablate.recipe.strict import brief

SHIPPED = Path(__file__).resolve().parents[2] / "recipes"


def beside_or_shipped(name: str, recipe: Path) -> Path:
    """The file beside the recipe; if there is none, the shipped one of that name, if there is."""
    beside, shipped = recipe.parent / name, SHIPPED / name
    return shipped if not os.path.exists(beside) and os.path.exists(shipped) else beside


LARGE_GPU_GIB = 40.0
"""Memory that the profile h100 counts on."""


def suitable_profile() -> tuple[str, str]:
    """The profile for this machine, and the reason in words."""
    import torch

    if not torch.cuda.is_available():
        return "miniature", "no GPU here"
    memory = torch.cuda.get_device_properties(0).total_memory / 2**30
    seen = f"{torch.cuda.get_device_name(0)} with {memory:.0f} GiB"
    return ("h100" if memory >= LARGE_GPU_GIB else "rtx4090"), seen


def profile_path(name: str, recipe: Path) -> Path:
    if name.endswith((".yaml", ".yml")):
        return Path(name)
    path = beside_or_shipped(f"profiles/{name}.yaml", recipe)
    if not os.path.exists(path):
        known = sorted(other.stem for other in (SHIPPED / "profiles").glob("*.yaml"))
        raise ConfigurationError(
            f"profile '{brief(name)}' does not exist; known: auto, {', '.join(known)}, or a path "
            "to a .yaml file"
        )
    return path
