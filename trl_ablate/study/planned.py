"""The plan of a study: the settings and runs of every arm. No torch; `resolution` creates it.

A plan is saved with the runs, so that `status` and `report` need neither recipes nor torch as long
as the study and its recipes do not change.
"""

import hashlib
import json
import os
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from trl_ablate.errors import ConfigurationError
from trl_ablate.miniature.registry import is_of_one_core
from trl_ablate.recipe.named_files import base_of, changed_files, profile_file
from trl_ablate.recipe.places import SHIPPED, yaml_files
from trl_ablate.run.json_files import read_object, write_json
from trl_ablate.study.definition import Asked, Study
from trl_ablate.study.factors import MAX_LETTERS, UNSAFE
from trl_ablate.study.verdict import reference_runs
from trl_ablate.switches import named


@dataclass(frozen=True)
class PlannedRun:
    """One arm with one seed. Its id is derived from the resolved settings."""

    id: str
    seed: int
    words: tuple[str, ...]
    """Arguments of `trl-ablate train`, without the output folder."""

    @property
    def arm(self) -> str:
        return self.words[self.words.index("--arm") + 1] if "--arm" in self.words else ""

    @property
    def folder(self) -> str:
        """The name of its folder, unless the folder has another one: see `RunStore.directory`."""
        arm = UNSAFE.sub("_", self.arm)[:MAX_LETTERS].strip("._-")
        return f"{arm}-{self.id}" if arm else self.id


@dataclass(frozen=True)
class PlannedArm:
    """A resolved arm, with the final values of the keys that it declares, and of all keys that any
    arm declares."""

    name: str
    recipe: str
    declared: Mapping[str, Any]
    values: Mapping[str, Any]
    inert: Mapping[str, str]
    warnings: tuple[str, ...]
    grpo_steps: int
    optimizer_steps: int
    evaluations: int
    runs: tuple[PlannedRun, ...]


@dataclass(frozen=True, kw_only=True)
class Plan(Asked):
    """A resolved study in which only declared settings differ."""

    study: str
    path: str = ""
    """The study's file; plans of former versions do not name it."""
    profile_reason: str
    base: str
    compared: int
    """Number of settings per arm that were compared with the base recipe."""
    for_gpu: bool
    arms: tuple[PlannedArm, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    """`Resolved.files` of all arms."""
    miniatures: tuple[tuple[float, str], ...] = ()
    """If every arm trains a model of the miniature on a CPU: its parameters in millions, and the
    dataset."""

    @property
    def of_one_core(self) -> bool:
        """Whether one core is enough for a run."""
        return bool(self.miniatures) and all(is_of_one_core(size) for size, _ in self.miniatures)

    @property
    def names(self) -> list[str]:
        """The arms of the study; with tuning, those whose candidates `arms` has."""
        return [*self.tuning.arms] if self.tuning else [arm.name for arm in self.arms]

    def reference_of(self, arm: str) -> str:
        """The arm that an arm is compared with; of the first arm, itself."""
        return self.against.get(arm, self.names[0])

    @property
    def trials(self) -> int:
        """How many first seeds of every arm are for tuning."""
        return len(self.tuning.seeds) if self.tuning else 0

    @property
    def pool(self) -> int | None:
        """Runs of the first arm that all comparisons share; None where runs are paired."""
        return len(self.arms[0].runs) - self.trials if self.judge == "two_part" else None

    @property
    def unequal_evaluations(self) -> list[str]:
        """A remark if some arms are evaluated more often than others."""
        counts = ", ".join(f"{arm.name} {arm.evaluations}" for arm in self.arms)
        differ = len({arm.evaluations for arm in self.arms}) > 1
        return [f"arms differ in their evaluations: {counts}"] * differ

    def up_to(self, seeds: int) -> set[str]:
        """Ids of the runs that a look at this many seeds needs of every arm or candidate: its
        trials, too, and of the first arm its share of the pool."""
        first = self.tuning.arms[self.names[0]] if self.tuning else self.names[:1]
        of_first = reference_runs(seeds, self.looks[-1], self.pool)
        ends = {arm.name: of_first if arm.name in first else seeds for arm in self.arms}
        return {run.id for arm in self.arms for run in arm.runs[: self.trials + ends[arm.name]]}

    @property
    def runs_of(self) -> dict[str, Sequence[PlannedRun]]:
        return {arm.name: arm.runs for arm in self.arms}

    def runs(self) -> dict[str, PlannedRun]:
        """Every run once, by id; arms with equal settings share runs."""
        return {run.id: run for arm in self.arms for run in arm.runs}


def without_place(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings without names and places, which do not change what a run computes."""
    places = named("place")
    return {key: value for key, value in settings.items() if key not in places}


def identity(settings: Mapping[str, Any]) -> str:
    """Ten characters that identify what a run computes: a hash of the settings that some layer
    gave, without the seed, the names and the places. Library defaults are not included: they belong
    to the library versions, which a run records.
    """
    kept = without_place(settings)
    kept.pop("seed", None)
    text = json.dumps(kept, sort_keys=True, default=str)
    text = json.dumps(json.loads(text), sort_keys=True)  # as `resolved_config.json` gives it back
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def run_id(identity: str, seed: int) -> str:
    return f"{identity}-seed{seed}"


def fingerprint(study: Study) -> str:
    """A hash that changes when the study, any recipe or profile near its arms, or a base or profile
    elsewhere that they name, changes, or when the recipes that runs are started with are moved."""
    recipes = {arm.recipe for arm in study.arms}
    files = {study.path.resolve()}
    for folder in {recipe.parent.resolve() for recipe in recipes} | {SHIPPED}:
        files |= yaml_files(folder)
    for recipe in recipes:
        named = base_of(recipe), profile_file(recipe, study.profile)
        files |= {file.resolve() for file in named if file and file.is_file()}
    paths = sorted(str(recipe.resolve()) for recipe in recipes)
    digest = hashlib.sha256("\0".join(paths).encode())
    for file in sorted(files):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def plan_file(folder: Path, study: str, path: str) -> Path:
    """The file of a study's plan. Of two studies with one name, the later one has its own."""
    own = folder / f"{study}.json"
    beside = folder / f"{study}-{hashlib.sha256(path.encode()).hexdigest()[:8]}.json"
    other = str(_written(own).get("path") or path)
    return beside if beside.exists() or (other != path and os.path.exists(other)) else own


def _written(file: Path) -> dict[str, Any]:
    """The content of a plan's file; nothing if it cannot be read."""
    with suppress(OSError, ConfigurationError):
        return read_object(file)
    return {}


def save_plan(plan: Plan, study: Study, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    made = {"made_from": fingerprint(study), "asked_profile": study.profile}
    write_json(plan_file(folder, plan.study, plan.path), {**made, **asdict(plan)})


def saved_profile(study: Study, folder: Path) -> str | None:
    """The profile that was asked for when the plan was saved."""
    return _written(plan_file(folder, study.name, study.place)).get("asked_profile")


def saved_plan(study: Study, folder: Path) -> Plan | None:
    """The saved plan; None if there is none, if its files have changed since then, or if it cannot
    be read: it is a cache, and is made again."""
    kept = _written(plan_file(folder, study.name, study.place))
    if not kept:
        return None
    from pydantic import TypeAdapter

    made_from = kept.pop("made_from", None)
    study = replace(study, profile=kept.pop("asked_profile", study.profile))
    try:
        if made_from != fingerprint(study):
            return None
        plan = TypeAdapter(Plan).validate_python(kept)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    return plan if plan.arms and not changed_files(plan.files) else None


def silent_differences(plan: Plan) -> list[str]:
    """One sentence for each reason why declared differences have no effect."""
    arms: dict[tuple[str, str], list[str]] = {}
    for arm in plan.arms:
        for key in (key for key in arm.declared if key in arm.inert):
            arms.setdefault((key, arm.inert[key]), []).append(arm.name)
    return [
        f"The declared {key} of {', '.join(names)} has no effect here: {why}"
        for (key, why), names in arms.items()
    ]


def setting(value: object, declared: bool = False) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else "null" if value is None else str(value)
    return text + (" *" if declared else "")


def in_order(plan: Plan, ids: Container[str] | None = None) -> list[PlannedRun]:
    """All runs, or those with these ids, seed by seed, so that a study that is stopped early has
    results of every arm. Shared runs appear once."""
    by_seed = zip_longest(*(arm.runs for arm in plan.arms))
    found = {run.id: run for runs in by_seed for run in runs if run}
    return [run for run in found.values() if ids is None or run.id in ids]
