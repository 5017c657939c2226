"""What a study comes to: every arm's settings and runs. No torch; `resolution` makes it.

A plan is kept beside the runs, so that `status` and `report` need neither recipes nor torch while
the files that it was made from stay as they are.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trl_ablate.recipe.places import SHIPPED
from trl_ablate.run.files import write_json
from trl_ablate.study.definition import Statistic, Study

WHO_AND_WHERE = {
    "arm", "output_dir", "project", "report_to", "run_name", "seed", "study", "use_cpu",
    "hub_model_id", "hub_private_repo", "hub_strategy", "hub_token", "push_to_hub",
}  # fmt: skip
"""Settings that name, place or publish a run and leave what it computes alone."""


@dataclass(frozen=True)
class PlannedRun:
    """One arm under one seed, known by what it resolves to."""

    id: str
    seed: int
    words: tuple[str, ...]
    """Arguments of scripts/train.py, the output folder aside."""


@dataclass(frozen=True)
class PlannedArm:
    """An arm as it resolved."""

    name: str
    recipe: str
    declared: Mapping[str, Any]
    """What it declares: key -> final value."""
    values: Mapping[str, Any]
    """Its final value of every key that any arm declares."""
    inert: Mapping[str, str]
    warnings: tuple[str, ...]
    grpo_steps: int
    optimizer_steps: int
    evaluations: int
    runs: tuple[PlannedRun, ...]

    @property
    def silent(self) -> dict[str, str]:
        """Declared differences that can change nothing, and why."""
        return {key: self.inert[key] for key in self.declared if key in self.inert}


@dataclass(frozen=True)
class Plan:
    """A study, resolved and proven."""

    study: str
    question: str
    seeds_answer: str
    profile: str
    profile_reason: str
    primary_metric: str
    decide_on: Statistic
    base: str
    compared: int
    """Settings per arm that were held against the base."""
    for_gpu: bool
    arms: tuple[PlannedArm, ...]
    against: Mapping[str, str] = field(default_factory=dict)
    """Arms that are compared with another one than the first, and that one."""
    notes: tuple[str, ...] = ()

    def runs(self) -> dict[str, PlannedRun]:
        """Every run once, by its id: arms that resolve alike share theirs."""
        return {run.id: run for arm in self.arms for run in arm.runs}


def identity(settings: Mapping[str, Any]) -> str:
    """Ten characters for what a run computes: the settings some layer gave, without name or place.

    Taken after a trip through JSON, so that a plan and a run's own `resolved_config.json` agree.
    Library defaults are not in it: they belong to the versions that a run records.
    """
    kept = {key: value for key, value in settings.items() if key not in WHO_AND_WHERE}
    text = json.dumps(kept, sort_keys=True, default=str)
    text = json.dumps(json.loads(text), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def run_id(settings: Mapping[str, Any], seed: int) -> str:
    return f"{identity(settings)}-seed{seed}"


def fingerprint(study: Study) -> str:
    """Changes when the study or any recipe or profile near its arms does."""
    folders = {arm.recipe.parent.resolve() for arm in study.arms} | {SHIPPED}
    files = {study.path.resolve()}
    for folder in folders:
        files |= {*folder.glob("*.yaml"), *(folder / "profiles").glob("*.yaml")}
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def save_plan(plan: Plan, study: Study, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / f"{plan.study}.json", {"made_from": fingerprint(study), **asdict(plan)})


def saved_plan(study: Study, folder: Path) -> Plan | None:
    """The kept plan, or None where there is none, where its files have changed since, and where it
    cannot be read: it is a cache, and is made anew."""
    file = folder / f"{study.name}.json"
    if not file.is_file():
        return None
    try:
        kept = json.loads(file.read_bytes())
        if kept.pop("made_from") != fingerprint(study):
            return None
        arms, notes = tuple(_arm(arm) for arm in kept["arms"]), tuple(kept.get("notes", ()))
        return Plan(**{**kept, "arms": arms, "notes": notes}) if arms else None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _arm(kept: dict[str, Any]) -> PlannedArm:
    runs = tuple(PlannedRun(run["id"], run["seed"], tuple(run["words"])) for run in kept["runs"])
    return PlannedArm(**{**kept, "runs": runs, "warnings": tuple(kept["warnings"])})


def silent_differences(plan: Plan) -> list[str]:
    """Declared differences that can change nothing, and why: one sentence for each reason."""
    arms: dict[tuple[str, str], list[str]] = {}
    for arm in plan.arms:
        for key, why in arm.silent.items():
            arms.setdefault((key, why), []).append(arm.name)
    return [
        f"The declared {key} of {', '.join(names)} can change nothing here: {why}"
        for (key, why), names in arms.items()
    ]


def setting(value: object, declared: bool) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else "null" if value is None else str(value)
    return text + (" *" if declared else "")


def in_order(plan: Plan) -> list[PlannedRun]:
    """Seed by seed, so that a study that is stopped early has every arm; shared runs once."""
    by_seed = zip(*(arm.runs for arm in plan.arms), strict=True)
    return list({run.id: run for runs in by_seed for run in runs}.values())
