"""The arms of a study: recipes, overrides and seeds, and what each is compared with. No torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trl_ablate.errors import ConfigurationError
from trl_ablate.recipe.places import SHIPPED, SUFFIXES
from trl_ablate.recipe.strict import check_value, nearest

Expectation = Literal["better", "worse", "equal", "collapse"]

ARM_KEYS: dict[str, Any] = {
    "recipe": str,
    "overrides": dict,
    "seeds": list[int],
    "against": str,
    "expect": Expectation,
}

RESERVED = ("arm", "extends", "output_dir", "profile", "run_name", "seed", "study")
"""Settings that the study sets for every run."""


@dataclass(frozen=True)
class Arm:
    """A named recipe. If an arm has its own seeds, they are paired with the study's by position."""

    name: str
    recipe: Path
    overrides: Mapping[str, Any]
    seeds: tuple[int, ...]


def read_arms(
    given: list[str] | dict[str, Any], seeds: tuple[int, ...], study: Path
) -> tuple[Arm, ...]:
    named = given.items() if isinstance(given, dict) else [(_stem(name), name) for name in given]
    arms = tuple(_arm(name, entry, seeds, study) for name, entry in named)
    names = [arm.name for arm in arms]
    for name in names:
        if names.count(name) > 1:
            raise ConfigurationError(
                f"study {study}: arm '{name}' occurs twice; give one of the two another name "
                "(arms: a mapping of names to recipes)"
            )
    return arms


def _arm(name: str, entry: Any, seeds: tuple[int, ...], study: Path) -> Arm:
    what = f"study {study}: arm '{name}'"
    if not isinstance(entry, (str, dict)):
        raise ConfigurationError(
            f"{what} is {entry!r}; allowed: a recipe file, or {{recipe, overrides, seeds}}"
        )
    given = checked({"recipe": entry} if isinstance(entry, str) else entry, ARM_KEYS, what)
    if "recipe" not in given:
        raise ConfigurationError(f"{what} has no `recipe`; name a recipe file")
    check_free(given.get("overrides", {}), what)
    own = read_seeds(given["seeds"], f"{what}: seeds") if "seeds" in given else seeds
    if len(own) != len(seeds):
        raise ConfigurationError(
            f"{what} has {len(own)} seeds and the study has {len(seeds)}; seeds are paired by "
            f"position, so give {len(seeds)}"
        )
    return Arm(name, find_recipe(given["recipe"], study), given.get("overrides", {}), own)


def of_arms(arms: list[str] | dict[str, Any], key: str) -> dict[str, Any]:
    """What single arms give under a key that the study can give for all of them."""
    entries = arms.items() if isinstance(arms, dict) else ()
    return {name: arm[key] for name, arm in entries if isinstance(arm, dict) and key in arm}


def check_expectations(expect: Mapping[str, Any], names: Sequence[str], study: Path) -> None:
    for arm, expected in expect.items():
        if arm not in names:
            raise ConfigurationError(
                f"study {study}: expect has '{arm}', which is not an arm{nearest(str(arm), names)}"
            )
        check_value(f"study {study}: expect: {arm}", expected, Expectation)


def check_references(against: Mapping[str, Any], names: Sequence[str], study: Path) -> None:
    """Check that each arm except the first has one reference, and that all chains of references
    end at the first arm."""
    for arm, reference in against.items():
        for name in (arm, reference):
            if name not in names:
                raise ConfigurationError(
                    f"study {study}: against has '{name}', which is not an arm"
                    f"{nearest(str(name), names)}"
                )
        if arm == names[0]:
            raise ConfigurationError(
                f"study {study}: against has '{arm}', the first arm, which is the study's "
                "reference; remove it, or put another arm first"
            )
        passed = [arm]
        while passed[-1] in against:
            if against[passed[-1]] in passed:
                raise ConfigurationError(
                    f"study {study}: against compares {' with '.join(passed)} in a circle; let one "
                    f"of them be compared with {names[0]}"
                )
            passed.append(against[passed[-1]])


def find_recipe(name: str, study: Path) -> Path:
    """The recipe in the study's folder, in the nearest folder above it, or among the shipped
    ones."""
    folders = [study.parent, *study.resolve().parent.parents, SHIPPED]
    for folder in folders:
        for file in (folder / name, folder / f"{name}.yaml"):
            if file.is_file():
                return file
    known = (path.name for path in SHIPPED.glob("*.yaml"))
    raise ConfigurationError(f"study {study}: recipe '{name}' does not exist{nearest(name, known)}")


def _stem(name: str) -> str:
    """The name of an arm that is given as a recipe: the file name without its suffix, or the given
    name itself (`lr_1.5e-5`)."""
    return Path(name).stem if name.endswith(SUFFIXES) else Path(name).name


def checked(given: Mapping[str, Any], known: Mapping[str, Any], what: str) -> dict[str, Any]:
    for key in given:
        if key not in known:
            raise ConfigurationError(f"{what}: unknown key '{key}'{nearest(key, known)}")
    return {key: check_value(f"{what}: {key}", value, known[key]) for key, value in given.items()}


def read_seeds(seeds: list[int], what: str) -> tuple[int, ...]:
    if len(set(seeds)) != len(seeds) or not seeds:
        raise ConfigurationError(f"{what} are {seeds}; give at least one, and give each once")
    return tuple(seeds)


def check_free(overrides: Mapping[str, Any], what: str) -> None:
    for key in overrides:
        if key in RESERVED:
            raise ConfigurationError(
                f"{what}: '{key}' cannot be overridden: the study sets it for every run; remove it"
            )
