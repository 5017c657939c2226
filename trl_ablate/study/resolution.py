"""From a study to its plan: resolve every arm, and prove that nothing undeclared differs.

The proof: the base recipe plus the keys that an arm declares has to resolve to exactly what the arm
resolves to. So there is no list of keys that may differ, derived ones included.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trl_ablate.errors import ConfigurationError
from trl_ablate.recipe.overrides import as_word, as_words
from trl_ablate.recipe.places import beside_or_shipped, suitable_profile
from trl_ablate.recipe.resolving import Resolved, load_recipe
from trl_ablate.recipe.strict import read_mapping
from trl_ablate.study.definition import Arm, Study
from trl_ablate.study.plan import WHO_AND_WHERE, Plan, PlannedArm, PlannedRun, run_id

NO_SETTINGS = ("changes", "inert")
"""Parts of a resolved recipe that tell about its settings and hold none."""


def resolve_plan(study: Study) -> Plan:
    """Resolve the arms, or say which differ where they should not."""
    base = base_of(study.arms[0].recipe)
    resolved = [_resolve(arm, study) for arm in study.arms]
    compared = 0
    for arm, outcome in zip(study.arms, resolved, strict=True):
        _check_not_silenced(arm, outcome, study)
        compared = _prove(base, arm, outcome, study)
    keys = sorted({key for arm, outcome in zip(study.arms, resolved, strict=True)
                   for key in _declared(arm, outcome)})  # fmt: skip
    first = resolved[0]
    return Plan(
        study=study.name,
        question=study.question,
        seeds_answer=study.seeds_answer,
        profile=first.profile,
        profile_reason=first.profile_reason,
        primary_metric=study.primary_metric,
        decide_on=study.decide_on,
        base=base.name,
        compared=compared,
        for_gpu=first.for_gpu,
        arms=tuple(
            _planned(arm, outcome, study, keys)
            for arm, outcome in zip(study.arms, resolved, strict=True)
        ),
        against=dict(study.against),
        notes=study.notes,
    )


def base_of(recipe: Path) -> Path:
    """The recipe that `recipe` extends, or itself."""
    extends = read_mapping(recipe, "recipe").get("extends")
    return recipe if extends is None else beside_or_shipped(extends, recipe)


def _resolve(arm: Arm, study: Study) -> Resolved:
    names = {"arm": arm.name, "study": study.name, "seed": arm.seeds[0]}
    return load_recipe(arm.recipe, study.profile, {**study.overrides, **arm.overrides, **names})


def _prove(base: Path, arm: Arm, resolved: Resolved, study: Study) -> int:
    """Rebuild the arm from the base and its declared keys; the number of settings that agree."""
    declared = {key: new for key, (_, new) in resolved.changes.items()}
    overrides = {**declared, **study.overrides, **arm.overrides, "seed": arm.seeds[0]}
    ours, rebuilt = _settings(resolved), _settings(load_recipe(base, study.profile, overrides))
    for key in sorted(ours):
        if ours[key] != rebuilt.get(key):
            raise ConfigurationError(
                f"arms '{study.arms[0].name}' and '{arm.name}' differ in '{key}' beyond what they "
                f"declare: {base.name} with the declared keys of '{arm.name}' has "
                f"{rebuilt.get(key)!r}, {arm.recipe.name} has {ours[key]!r}; declare '{key}' in "
                f"{arm.recipe.name}, or let both extend {base.name}"
            )
    return len(ours)


def _settings(resolved: Resolved) -> dict[str, Any]:
    """Every setting of every group but names and places, as `resolved_config.json` has them."""
    whole = _as_json(resolved)
    found = {"profile": whole["profile"]}
    for name, group in whole.items():
        if isinstance(group, dict) and name not in NO_SETTINGS:
            found |= group
    return {key: value for key, value in found.items() if key not in WHO_AND_WHERE - {"seed"}}


def _as_json(resolved: Resolved) -> dict[str, Any]:
    return json.loads(json.dumps(resolved.to_dict(), default=str))


def _check_not_silenced(arm: Arm, resolved: Resolved, study: Study) -> None:
    """An override that every arm gets must not be what one of them ablates."""
    for key in resolved.changes:
        if key in study.overrides and key not in arm.overrides:
            raise ConfigurationError(
                f"study {study.path}: the override '{key}' replaces what arm '{arm.name}' "
                "declares, so the arm would ablate nothing; remove one of the two"
            )


def _declared(arm: Arm, resolved: Resolved) -> set[str]:
    return {*resolved.changes, *arm.overrides}


def _planned(arm: Arm, resolved: Resolved, study: Study, keys: list[str]) -> PlannedArm:
    final = _settings(resolved)
    values = {key: final[key] for key in keys}
    settings = _as_json(resolved)["settings"]
    config = resolved.config
    optimizer_steps = max(0, config.max_steps)  # 0: counted in epochs, so not known before the data
    steps = int(optimizer_steps * config.grpo_steps_per_optimizer_step)
    return PlannedArm(
        name=arm.name,
        recipe=arm.recipe.name,
        declared={key: values[key] for key in sorted(_declared(arm, resolved))},
        values=values,
        inert=resolved.inert,
        warnings=tuple(resolved.warnings),
        grpo_steps=steps,
        optimizer_steps=optimizer_steps,
        evaluations=_evaluations(config.eval_strategy != "no", steps, config),
        runs=tuple(
            PlannedRun(run_id(settings, seed), seed, _words(arm, resolved, study, seed))
            for seed in arm.seeds
        ),
    )


def _evaluations(evaluates: bool, steps: int, config) -> int:
    """Evaluations of a run: every eval_steps, after the last step, and before the first if
    asked."""
    if not evaluates:
        return 0
    given = config.eval_steps or steps
    every = max(1, math.ceil(given * steps if given < 1 else given))
    return -(-steps // every) + bool(config.eval_on_start)


def _words(arm: Arm, resolved: Resolved, study: Study, seed: int) -> tuple[str, ...]:
    """The command line of a run. A profile that suits this machine is named, as another may do
    the run."""
    overrides: Mapping[str, Any] = {**study.overrides, **arm.overrides}
    suited = (resolved.profile, resolved.profile_reason) == suitable_profile()
    profile = resolved.profile if suited else study.profile
    named = {"profile": profile, "seed": seed, "arm": arm.name, "study": study.name}
    return (
        str(arm.recipe),
        *(word for key, value in named.items() for word in (f"--{key}", as_word(key, value))),
        *as_words(overrides),
    )
