"""From a study to its plan: resolve every arm, and prove that nothing undeclared differs.

The proof: the base recipe plus the arm's declared keys must resolve to exactly the same settings as
the arm. This covers all settings, derived ones included; there is no list of exceptions.

What the runs would refuse at their start is found before any of them is started. Nothing is
downloaded, and none of the user's code is executed: questions on the Hub are not read, and only the
run finds out whether a file defines the function that is named.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from trl_ablate.config import AblationConfig
from trl_ablate.data.questions import (
    NAMED_DATASETS,
    Part,
    check_enough,
    load_questions,
    to_prompts,
)
from trl_ablate.data.row_files import is_on_the_hub
from trl_ablate.errors import ConfigurationError, brief, nearest
from trl_ablate.metrics import is_better_lower
from trl_ablate.miniature.registry import in_full, is_miniature, millions_of_parameters
from trl_ablate.named_code import check_file, code_place
from trl_ablate.prompts.templates import prompt_writer
from trl_ablate.recipe.agreement import check_quantization, evaluation_metrics
from trl_ablate.recipe.fields import checked
from trl_ablate.recipe.named_files import Anchor, base_of, profile_of
from trl_ablate.recipe.overrides import as_word, as_words
from trl_ablate.recipe.places import NO_PROFILE, profile_path, suitable_profile
from trl_ablate.recipe.resolving import Resolved, load_recipe
from trl_ablate.recipe.trl_yaml import without_traces
from trl_ablate.reward_specs import GYM
from trl_ablate.run.identity import portable
from trl_ablate.schedule import evaluations
from trl_ablate.study.definition import Arm, Study
from trl_ablate.study.engines.own_files import texts_in
from trl_ablate.study.factors import Design, without
from trl_ablate.study.planned import Plan, PlannedArm, PlannedRun, identity, run_id, without_place
from trl_ablate.switches import named
from trl_ablate.task import TaskArguments

GROUPS = ("settings", "config", "task", "model", "guard")
"""The parts of `resolved_config.json` that contain settings."""


@dataclass(frozen=True)
class ResolvedArm:
    """An arm, and what its recipe resolves to; `written` is what `resolved_config.json` has."""

    arm: Arm
    resolved: Resolved

    @cached_property
    def written(self) -> dict[str, Any]:
        return json.loads(json.dumps(self.resolved.to_dict(), default=str))

    @cached_property
    def settings(self) -> dict[str, Any]:
        """All settings of all groups, without names and places."""
        groups = {key: value for group in GROUPS for key, value in self.written[group].items()}
        return without_place({"profile": self.written["profile"]} | groups)

    @property
    def declared(self) -> set[str]:
        return {*self.resolved.changes, *self.arm.overrides} - {*named("place")}


@without_traces()
def resolve_plan(study: Study, *, to_run: bool = False) -> Plan:
    """Resolve the arms; raises `ConfigurationError` if an arm differs in an undeclared setting.

    Args:
        to_run: also refuse what the runs would refuse at their start; a report needs no data.
    """
    base = base_of(study.arms[0].recipe)
    checked(dict(study.overrides), f"{study.path.name}: overrides")
    study, arms = _legal(_with_own_files(study))
    for one in arms:
        _check_not_silenced(one, study)
        _prove(base, one, study)
    if to_run:
        _check_starts(arms, study.primary_metric)
        if study.judge == "two_part":
            _check_success(study, arms)
    keys = sorted({key for one in arms for key in one.declared})
    resolved = [one.resolved for one in arms]
    asked: dict[str, Any] = study.asked() | {"profile": resolved[0].profile}
    return Plan(
        **asked,
        study=study.name,
        path=study.place,
        profile_reason=resolved[0].profile_reason,
        base=base.name,
        compared=len(arms[0].settings),
        for_gpu=resolved[0].for_gpu,
        arms=tuple(_planned(one, study, keys) for one in arms),
        files={path: known for one in resolved for path, known in one.files.items()},
        miniatures=_miniatures(resolved),
    )


def _miniatures(resolved: Sequence[Resolved]) -> tuple[tuple[float, str], ...]:
    pairs = {(str(one.model.model_name_or_path), str(one.task.dataset)) for one in resolved}
    if any(one.for_gpu for one in resolved) or not all(is_miniature(model) for model, _ in pairs):
        return ()
    return tuple(sorted({(millions_of_parameters(m), in_full(dataset)) for m, dataset in pairs}))


def _with_own_files(study: Study) -> Study:
    """The study whose overrides name code and templates beside `study.yaml` by absolute paths,
    unless a run finds them beside its recipe. A run is known by their content, not their place."""
    folder = Path(os.path.abspath(study.path.parent))
    alone = {arm.recipe.parent for arm in study.arms} == {folder}

    def whole(key: str, value: Any) -> Any:
        beside, found = Anchor(), (Path(), folder) if alone else ()
        new = beside.settings({key: value}, folder)[key]
        known = key in named("code", "file") and all(map(os.path.isfile, beside.files))
        return new if known and new != Anchor().settings({key: value}, *found)[key] else value

    def anchored(given: Mapping[str, Any]) -> dict[str, Any]:
        return {key: whole(key, value) for key, value in given.items()}

    arms = tuple(replace(arm, overrides=anchored(arm.overrides)) for arm in study.arms)
    return replace(study, arms=arms, overrides=anchored(study.overrides))


def _legal(study: Study) -> tuple[Study, list[ResolvedArm]]:
    """The study without the cells of its design that a recipe may not have, and its arms
    resolved."""
    design, tuning = study.design, study.tuning
    if design is None:
        return study, [_resolve(arm, study) for arm in study.arms]
    study = _without_defaults(study, design)
    found: dict[str, ResolvedArm] = {}
    refused: dict[str, str] = {}
    for arm in study.arms:
        try:
            found[arm.name] = _resolve(arm, study)
        except ConfigurationError as error:
            refused[arm.name] = str(error)
    of_cell = tuning.arms if tuning else {cell: [cell] for cell in design.cells}
    why = {cell: [refused[name] for name in of if name in refused] for cell, of in of_cell.items()}
    excluded = {cell: reasons[0] for cell, reasons in why.items() if reasons}
    design = without(design, excluded, f"study {study.path}")
    for cell, other in study.against.items():
        if other in excluded:
            raise ConfigurationError(
                f"study {study.path}: against compares {cell} with {other}, which is refused: "
                f"{excluded[other]}"
            )
    left = {cell: of_cell[cell] for cell in design.cells}
    names = {name for of in left.values() for name in of}
    arms = tuple(arm for arm in study.arms if arm.name in names)
    tuning = tuning and replace(tuning, arms=left)
    study = replace(study, arms=arms, design=design, tuning=tuning)
    return study, [found[arm.name] for arm in arms]


def _without_defaults(study: Study, design: Design) -> Study:
    """The study without overrides of a factor that no layer of the recipe gives and whose level is
    the default, so that a cell has the runs of an arm that does not mention the setting."""
    first = study.arms[0]
    others = {key: value for key, value in first.overrides.items() if key not in design.factors}
    bare = _resolve(replace(first, overrides=others), study)
    defaults = {key: json.dumps(bare.settings[key]) for key in design.factors
                if key in bare.settings and key not in bare.written["settings"]}  # fmt: skip

    def bared(given: Mapping[str, Any]) -> dict[str, Any]:
        return {key: new for key, new in given.items() if json.dumps(new) != defaults.get(key)}

    arms = (replace(arm, overrides=bared(arm.overrides)) for arm in study.arms)
    return replace(study, arms=tuple(arms))


def _resolve(arm: Arm, study: Study) -> ResolvedArm:
    names = {"arm": arm.name, "study": study.name, "seed": arm.seeds[0]}
    checked(dict(arm.overrides), f"{study.path.name}: arm '{arm.name}'")
    overrides = {**study.overrides, **arm.overrides, **names}
    return ResolvedArm(arm, load_recipe(arm.recipe, study.profile, overrides))


def _prove(base: Path, one: ResolvedArm, study: Study) -> None:
    """Rebuild the arm from the base and its declared keys: all settings have to be equal."""
    arm, ours = one.arm, one.settings
    declared = {key: new for key, (_, new) in one.resolved.changes.items()}
    given = {**study.overrides, **arm.overrides}
    given = Anchor().settings(given, Path(), arm.recipe.parent)  # not those beside the base
    overrides = {**declared, **given, "seed": arm.seeds[0]}
    first = study.arms[0].recipe
    profile = profile_of(first, study.profile)
    if profile not in ("auto", NO_PROFILE):
        profile = os.path.abspath(profile_path(profile, first))
    again = load_recipe(base, profile, overrides, as_base=base != first)
    rebuilt = ResolvedArm(arm, again).settings
    for key in sorted(ours):
        if ours[key] != rebuilt.get(key):
            raise ConfigurationError(
                f"arms '{study.arms[0].name}' and '{arm.name}' differ in '{key}' beyond what they "
                f"declare: {base.name} with the declared keys of '{arm.name}' has "
                f"{rebuilt.get(key)!r}, {arm.recipe.name} has {ours[key]!r}; declare '{key}' in "
                f"{arm.recipe.name}, or let both extend {base.name}"
            )


def _check_not_silenced(one: ResolvedArm, study: Study) -> None:
    """The study's overrides must not replace a setting that an arm ablates, nor may its tuning."""
    arm, tuned = one.arm, study.tuning.key if study.tuning else None
    for key in one.resolved.changes:
        if key == tuned:
            what = f"tune replaces the '{key}' that {arm.recipe.name} declares"
        elif key in study.overrides and key not in arm.overrides:
            what = f"the override '{key}' replaces what arm '{arm.name}' declares"
        else:
            continue
        raise ConfigurationError(
            f"study {study.path}: {what}, so the arm changes nothing; remove one of the two"
        )


def _planned(one: ResolvedArm, study: Study, keys: list[str]) -> PlannedArm:
    arm, resolved, config = one.arm, one.resolved, one.resolved.config
    known = identity(portable(one.written["settings"], resolved.files))
    before, after = _words(one, study)
    optimizer_steps = max(0, config.max_steps)  # 0: in epochs, unknown before loading
    steps = int(optimizer_steps * config.grpo_steps_per_optimizer_step)
    return PlannedArm(
        name=arm.name,
        recipe=arm.recipe.name,
        declared={key: one.settings[key] for key in keys if key in one.declared},
        values={key: one.settings[key] for key in keys},
        inert=resolved.inert,
        warnings=tuple(resolved.warnings),
        grpo_steps=steps,
        optimizer_steps=optimizer_steps,
        evaluations=_evaluations(config, optimizer_steps),
        runs=tuple(
            PlannedRun(run_id(known, seed), seed, (*before, str(seed), *after))
            for seed in arm.seeds
        ),
    )


def _evaluations(config: AblationConfig, optimizer_steps: int) -> int:
    """Number of evaluations in a run, with that before its first step."""
    if config.eval_strategy == "no":
        return 0
    per_step = config.grpo_steps_per_optimizer_step
    every = config.eval_steps or max(1, int(optimizer_steps * per_step))
    after = evaluations(optimizer_steps, per_step, every, config.eval_delay)
    return after + bool(config.eval_on_start)


def _words(one: ResolvedArm, study: Study) -> tuple[list[str], list[str]]:
    """The command line of a run before its seed, and after it. If the profile was chosen
    automatically, it is named here, as another machine may execute the run."""
    arm, resolved = one.arm, one.resolved
    suited = (resolved.profile, resolved.profile_reason) == suitable_profile()
    profile = as_word("profile", resolved.profile if suited else study.profile)
    names = ["--arm", as_word("arm", arm.name), "--study", as_word("study", study.name)]
    before = [str(arm.recipe), "--profile", profile, "--seed"]
    return before, [*names, *as_words({**study.overrides, **arm.overrides})]


def _check_starts(arms: Iterable[ResolvedArm], metric: str) -> None:
    """Check every arm; arms that ask the same questions in the same way are checked once."""
    seen = set()
    for one in arms:
        resolved, config = one.resolved, one.resolved.config
        batch = (config.generation_batch_size, config.num_generations)
        look = (repr(resolved.task), repr(resolved.model), config.eval_strategy, batch)
        try:
            _check_is_logged(metric, resolved)
            if look not in seen:
                _check_start(resolved)
        except ConfigurationError as error:
            raise ConfigurationError(f"arm '{one.arm.name}': {error}") from error
        seen.add(look)


def _check_is_logged(metric: str, resolved: Resolved) -> None:
    """Refuse a primary metric that is better where it is lower, or that an evaluation would log
    and none does."""
    config, task = resolved.config, resolved.task
    if is_better_lower(metric) or not metric.strip():
        raise ConfigurationError(
            f"primary_metric is '{brief(metric)}'; name a metric that is better where it is "
            "higher, such as eval_reward"
        )
    if not metric.startswith("eval_"):
        return
    if config.eval_strategy == "no":
        raise ConfigurationError(
            f"with eval_strategy no, a run logs no {metric}; set another eval_strategy, or "
            "primary_metric: reward"
        )
    known = evaluation_metrics(config, task, config.evaluation)
    of_a_reward = "/" in metric or task.reward_funcs  # functions may log metrics of their own
    if metric not in known and not of_a_reward:
        raise ConfigurationError(
            f"primary_metric is '{brief(metric)}', which no evaluation logs"
            f"{nearest(metric, known) or '; one is eval_reward'}"
        )


def _check_success(study: Study, arms: Iterable[ResolvedArm]) -> None:
    """What a study in two parts needs: runs enough to decide, and a base to gain over."""
    from trl_ablate.study.two_part import check_decides

    what, trials = f"study {study.path}", len(study.tuning.seeds) if study.tuning else 0
    names = study.tuning.arms if study.tuning else study.arms
    first, *others = (len(arm.seeds) - trials for arm in study.arms)
    looks = study.looks or (min(others, default=first),)
    check_decides(looks, first, len(names) - 1, what)
    if study.threshold is None and not all(one.resolved.config.eval_on_start for one in arms):
        raise ConfigurationError(
            f"{what}: without an evaluation before training no gain is known, and so no success; "
            "set eval_on_start: true, or success: {threshold: 0.6}"
        )


def _check_start(resolved: Resolved) -> None:
    task, config = resolved.task, resolved.config
    check_quantization(config, resolved.model)
    for setting in named("code"):
        for place in map(code_place, texts_in(setting, getattr(task, setting))):
            if place is not None and place.is_file:
                check_file(place, setting)
    train = _check_prompts(task, "train")
    if train is not None:
        check_enough(train, config)
    if config.eval_strategy != "no":
        for one in (task, *map(task.evaluation_task, task.eval_sets or ())):
            _check_prompts(one, "eval")


def _check_prompts(task: TaskArguments, part: Part):
    """The questions with their prompts; None if they are not on this machine."""
    name = task.dataset
    on_the_hub = name in NAMED_DATASETS or (not is_miniature(name) and is_on_the_hub(name))
    if not on_the_hub and not name.startswith(GYM):
        return to_prompts(load_questions(task, part), task)
    if task.prompt_column is None:
        prompt_writer(task.template, task.prompt_style, task.system_prompt, None)
    return None
