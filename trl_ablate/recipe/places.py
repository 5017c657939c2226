"""The shipped recipes, and where files named in a recipe are searched. No torch."""

import os
import warnings
from functools import cache
from pathlib import Path

from trl_ablate.errors import ConfigurationError, brief, nearest

PACKAGE = Path(__file__).resolve().parents[1]
_CANDIDATES = (PACKAGE / "shipped", PACKAGE.parent / "recipes")  # installed, or in a checkout
SHIPPED = next((folder for folder in _CANDIDATES if folder.is_dir()), _CANDIDATES[0])
SUFFIXES = (".yaml", ".yml")
NO_PROFILE = "none"
"""In place of a profile's name: no settings for a machine."""
AS_ASKED = "as asked"
"""The reason for a profile that was not chosen automatically."""
TOY = "miniature"
"""The profile of machines without a GPU."""
LARGE_GPU_GIB = 60.0
"""Memory that the profile h100 needs."""
OTHERWISE = "give a path to a .yaml file, or a name that `trl-ablate recipes` lists"


def recipe_path(name: str | os.PathLike) -> Path:
    """The file of a recipe, given by its path or by the bare name of a shipped recipe."""
    return _path(Path(name), "recipe", {path.stem: path for path in SHIPPED.glob("*.yaml")})


def study_path(name: str | os.PathLike) -> Path:
    """The file of a study, given by its path, its folder, or the bare name of a shipped study."""
    beside = Path(name) / "study.yaml"
    return beside if os.path.isfile(beside) else _path(Path(name), "study", shipped_studies())


def shipped_studies() -> dict[str, Path]:
    return {path.parent.name: path for path in sorted(SHIPPED.glob("studies/*/study.yaml"))}


def _path(path: Path, what: str, shipped: dict[str, Path]) -> Path:
    if os.path.isfile(path):
        return path
    bare = path.name == str(path) and not path.name.endswith(SUFFIXES)
    if bare and path.name in shipped:
        return shipped[path.name]
    if bare and path.name and not os.path.exists(path):
        raise ConfigurationError(
            f"{what} '{brief(path)}' does not exist" + nearest(path.name, shipped, OTHERWISE)
        )
    meant = path.parent.name if path.name == "study.yaml" else path.stem
    if meant in shipped and not os.path.exists(path):
        raise ConfigurationError(
            f"{what} {brief(path, 300)} does not exist; for the shipped {what} write {meant}"
        )
    return path


def beside_or_shipped(name: str, recipe: Path) -> Path:
    """The file beside the recipe; if it does not exist, the shipped file of that name, if any."""
    beside, shipped = recipe.parent / name, SHIPPED / name
    return shipped if not os.path.exists(beside) and os.path.exists(shipped) else beside


def own_profile(name: str, recipe: Path) -> str:
    """The profile that a recipe names; of a path, the file beside the recipe or a shipped one."""
    return os.path.abspath(beside_or_shipped(name, recipe)) if name.endswith(SUFFIXES) else name


def yaml_files(folder: Path) -> set[Path]:
    """The recipes in a folder, and the profiles below it."""
    places = (folder, folder / "profiles")
    found = (file for place in places for end in SUFFIXES for file in place.glob(f"*{end}"))
    return {*filter(Path.is_file, found)}  # an editor's lock is a broken link


def is_shipped_base(recipe: Path) -> bool:
    """Whether it is the recipe that all shipped ones extend, or an unchanged copy of it."""
    return recipe.read_bytes() == (SHIPPED / "grpo.yaml").read_bytes()


def suitable_profile() -> tuple[str, str]:
    """The profile for this machine, and the reason as text."""
    import torch

    if not torch.cuda.is_available():
        return TOY, why_no_gpu()
    memory = torch.cuda.get_device_properties(0).total_memory / 2**30
    seen = f"{torch.cuda.get_device_name(0)} with {memory:.0f} GiB"
    return ("h100" if memory >= LARGE_GPU_GIB else "rtx4090"), seen


@cache
def why_no_gpu() -> str:
    """That there is none, or why torch cannot use the one of this machine."""
    import torch

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torch.cuda.is_available()
    if told:
        return f"torch finds no GPU: {brief(told[0].message, 160)}"
    if not torch.version.cuda and not torch.version.hip and os.path.exists("/dev/nvidiactl"):
        return f"torch {torch.__version__} is a build for CPUs and does not see this machine's GPU"
    return "no GPU here"


def profile_path(name: str, recipe: Path) -> Path:
    """The file of a profile, given by its name or its path; a path of the command line is relative
    to the working directory, or else to the recipe."""
    if name.endswith(SUFFIXES):
        return Path(name) if os.path.exists(name) else beside_or_shipped(name, recipe)
    path = beside_or_shipped(f"profiles/{name}.yaml", recipe)
    if not os.path.exists(path):
        known = sorted(other.stem for other in (SHIPPED / "profiles").glob("*.yaml"))
        raise ConfigurationError(
            f"profile '{brief(name)}' does not exist; known: auto, {', '.join(known)}, none, or a "
            "path to a .yaml file"
        )
    return path
