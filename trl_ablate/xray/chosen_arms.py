"""The arms of an X-ray: recipes, recipes with overrides, or the arms of a study.

    no_baseline                               a shipped recipe, or a path
    no_baseline+length_norm=constant          a recipe with overrides
    recipes/studies/chains, chains            a study: all of its arms

An arm that would generate other rollouts than the reference is out of reach: on the reference's
rollouts, its gradient would not be the one that it takes.
"""

import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trl_ablate.errors import ConfigurationError
from trl_ablate.recipe.overrides import read_overrides
from trl_ablate.recipe.places import shipped_studies, study_path
from trl_ablate.recipe.resolving import Resolved, load_recipe
from trl_ablate.recipe.strict import nearest, read_mapping
from trl_ablate.settings import Role
from trl_ablate.study.definition import load_study
from trl_ablate.study.planned import without_place
from trl_ablate.switches import named

SAME: dict[str, tuple[Role, ...]] = {
    "trains another model": ("weights", "model"),
    "asks other questions": ("data", "questions"),
    "generates differently": ("generation",),
}
"""Why an arm is out of reach -> the roles of the settings in which it differs."""
OF_A_STUDY = {"question", "arms", "seeds"}


@dataclass(frozen=True)
class XrayArm:
    name: str
    resolved: Resolved
    against: str | None = None
    """The arm that its study compares it with, if that is not the study's first one."""

    @property
    def settings(self) -> dict[str, Any]:
        """All settings but names and places, as JSON has them."""
        whole = self.resolved.to_dict()
        found = {**whole["config"], **whole["task"], **whole["model"]}
        found.pop("seed", None)
        return without_place(found)

    @property
    def files(self) -> list[str]:
        """Name and digest of its code and templates; the settings have their paths alone."""
        return sorted(known for known in self.resolved.files.values() if "@" in known)


def arms_of(
    given: str | os.PathLike | Sequence[str | os.PathLike] | Mapping[str, Resolved],
    profile: str | None = None,
    overrides: Iterable[str] | Mapping[str, Any] = (),
) -> list[XrayArm]:
    """The arms in the order given; a second arm of the same name gets a number."""
    if isinstance(given, Mapping):
        if profile or overrides:
            raise ConfigurationError(
                "resolved recipes have their settings; give profile and overrides to load_recipe"
            )
        return [XrayArm(name, resolved) for name, resolved in given.items()]
    words = [given] if isinstance(given, (str, os.PathLike)) else list(given)
    settings = read_overrides(overrides)
    found: list[XrayArm] = []
    times = Counter()
    for word in map(str, words):
        arms = _of_study(word, profile, settings) or [_of_recipe(word, profile, settings)]
        times.update(arm.name for arm in arms)
        new = {one.name: one.name for one in arms}
        new |= {name: f"{name} ({times[name]})" for name in new if times[name] > 1}
        found += [XrayArm(new[one.name], one.resolved, new.get(one.against or "")) for one in arms]
    if not found:
        raise ConfigurationError("there are no arms; name recipes, or a study")
    return found


def chosen(arms: Sequence[XrayArm], reference: str | None) -> XrayArm:
    """The reference among the arms; the first if none is named."""
    names = {arm.name: arm for arm in arms}
    if reference is None:
        return arms[0]
    if reference not in names:
        raise ConfigurationError(
            f"--reference {reference} is not among the arms"
            + nearest(reference, names, f"name one of {', '.join(names)}")
        )
    return names[reference]


def out_of_reach(arm: XrayArm, reference: XrayArm) -> str | None:
    """Why the reference's rollouts do not do for an arm; None if they do."""
    theirs, ours = reference.settings, arm.settings
    for why, roles in SAME.items():
        for key in named(*roles):
            if ours.get(key) != theirs.get(key):
                return f"{why}: {key} is {ours.get(key)!r}, not {theirs.get(key)!r}"
    config: Any = arm.resolved.config
    if config.group_filter == "resample":
        return "generates differently: group_filter 'resample' draws further rollouts"
    microbatches = config.steps_per_generation * config.num_iterations
    if microbatches % config.gradient_accumulation_steps:
        return "an optimizer step takes several rollout batches, or a part of one"
    return None


def scores_again(arm: XrayArm, reference: XrayArm) -> bool:
    """Whether the arm has other rewards than those that are stored; its own score them again."""
    theirs, ours = reference.settings, arm.settings
    return any(ours.get(key) != theirs.get(key) for key in named("reward"))


def _of_study(word: str, profile: str | None, settings: Mapping[str, Any]) -> list[XrayArm]:
    """The arms of a study; empty if the word is no study. Of arms that it tunes, the candidate with
    the middle value stands for all of them."""
    path = Path(word)
    is_file = path.is_file() and OF_A_STUDY & read_mapping(path, "recipe").keys()
    if not (is_file or (path / "study.yaml").is_file() or word in shipped_studies()):
        return []
    study = load_study(study_path(word))
    shown = {arm.name: arm.name for arm in study.arms}
    if study.tuning is not None:
        shown = {each[len(each) // 2]: arm for arm, each in study.tuning.arms.items()}
    found = []
    for arm in study.arms:
        if name := shown.get(arm.name):
            own = {**study.overrides, **arm.overrides, **settings, "arm": arm.name}
            resolved = load_recipe(arm.recipe, profile or study.profile, own)
            _check_declared(name, {*resolved.changes, *arm.overrides}, settings)
            found.append(XrayArm(name, resolved, study.against.get(name)))
    return found


def _of_recipe(word: str, profile: str | None, settings: Mapping[str, Any]) -> XrayArm:
    recipe, *changes = word.split("+")
    own = {**settings, **read_overrides(changes)}
    name = "+".join([Path(recipe).stem if "/" in recipe else recipe, *changes])
    resolved = load_recipe(recipe, profile or "auto", own)
    _check_declared(name, resolved.changes.keys() - read_overrides(changes).keys(), settings)
    return XrayArm(name, resolved)


def _check_declared(name: str, declared: Collection[str], settings: Mapping[str, Any]) -> None:
    for key in sorted(settings.keys() & declared):
        raise ConfigurationError(
            f"the setting '{key}' for all arms replaces what arm '{name}' declares, so the arm "
            "changes nothing; remove one of the two"
        )
