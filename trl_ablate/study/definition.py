"""Read and check `study.yaml`: the question, the arms, the seeds. No torch.

    question: ...                 the question of the study
    arms: [a.yaml, b.yaml]        recipes; the first is the reference. Or a mapping of names to
                                  recipes, or to {recipe, overrides, seeds, against, expect}
    seeds: [0, 1, 2]              or {looks: [3, 5, 8, 12]}: seeds are added at these numbers, until
                                  a comparison is decided
    profile: miniature            where it runs; default: `auto`
    primary_metric: eval_reward   the metric that decides; higher is better
    decide_on: final              or best, or auc: the summary of its curve that decides
    equivalence_margin: 0.02      smaller differences of the primary metric count as equal
    expect: {a: better}           what theory predicts, written before the runs: better, worse,
                                  equal or collapse
    overrides: {grpo_steps: 30}   settings for every arm
    stopping: {...}               the same, for settings that end a run early
    seeds_answer: ...             an earlier result, for the report
    against: {a: b}               compare arm a with arm b, not with the first arm; b should differ
                                  from a only in the setting that the study asks about
    notes: [...]                  remarks for the reader of the report, one sentence each
    factors: {key: [a, b]}        in place of arms: all combinations of these levels (see `factors`)
    fraction: 1/2                 run only this share of the combinations
    recipe: grpo.yaml             the recipe that the levels change; default: grpo.yaml
    tune: {key: [a, b], seeds: 2} first find each arm's best value of one setting (see `tuning`)

Recipes are searched in the study's folder, in every folder above it, and among the shipped ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from trl_ablate.errors import ConfigurationError
from trl_ablate.metrics import EVAL_REWARD
from trl_ablate.recipe.strict import read_mapping
from trl_ablate.study.arms import (
    Arm,
    Expectation,
    check_expectations,
    check_free,
    check_references,
    checked,
    find_recipe,
    of_arms,
    read_arms,
    read_seeds,
)
from trl_ablate.study.factors import Design, read_design
from trl_ablate.study.looks import check_looks, check_margin
from trl_ablate.study.tuning import Tuning, make_tuning

Statistic = Literal["final", "best", "auc"]

KEYS: dict[str, Any] = {
    "question": str,
    "arms": list[str] | dict,
    "seeds": list[int] | dict,
    "profile": str,
    "primary_metric": str,
    "decide_on": Statistic,
    "equivalence_margin": float,
    "expect": dict,
    "overrides": dict,
    "stopping": dict,
    "seeds_answer": str,
    "against": dict,
    "notes": list[str],
    "factors": dict[str, list[Any]],
    "fraction": str | int,
    "recipe": str,
    "tune": dict,
}
TUNE_KEYS: dict[str, Any] = {"seeds": int, "by": Statistic, "halving": bool}
"""Options of `tune`; its one other key is the setting that is tuned."""
SEEDS_KEYS: dict[str, Any] = {"looks": list[int]}
REQUIRED = ("question", "arms", "seeds")
OF_FACTORS = ("fraction", "recipe")
DEFAULT_RECIPE = "grpo.yaml"
TUNING_SEEDS = 2


@dataclass(frozen=True)
class Study:
    """A question with its arms and seeds. The first arm is the reference."""

    path: Path
    question: str
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    profile: str
    primary_metric: str
    decide_on: Statistic
    overrides: Mapping[str, Any]
    """Settings that every arm gets in addition to its recipe, stopping rules included."""
    seeds_answer: str
    against: Mapping[str, str]
    """Arms with their own reference, and that reference."""
    notes: tuple[str, ...]
    looks: tuple[int, ...] = ()
    """Numbers of seeds at which comparisons may be decided; none: the seeds are fixed."""
    equivalence_margin: float | None = None
    expect: Mapping[str, Expectation] = field(default_factory=dict)
    design: Design | None = None
    """The factorial design, whose cells are the arms."""
    tuning: Tuning | None = None
    """If the study tunes, its arms are the candidates."""

    @property
    def name(self) -> str:
        """The name of the folder of `study.yaml`; for another file, the file's name."""
        return self.path.resolve().parent.name if self.path.stem == "study" else self.path.stem


def load_study(path: Path) -> Study:
    """Read and check a study; raises `ConfigurationError` if anything in it is wrong."""
    given = checked(read_mapping(path, "study"), KEYS, f"study {path}")
    design = _design(given, path)
    for key in REQUIRED:
        if not given.get(key) and not (design and key == "arms"):
            raise ConfigurationError(f"study {path} has no `{key}`; add it")
    looks, seeds = _looks_and_seeds(given["seeds"], f"study {path}: seeds")
    overrides = {**given.get("overrides", {}), **given.get("stopping", {})}
    check_free(overrides, f"study {path}")
    arms = _cells(design, given, seeds, path) if design else read_arms(given["arms"], seeds, path)
    names = [arm.name for arm in arms]
    own = given.get("arms", {})
    against = {**given.get("against", {}), **of_arms(own, "against")}
    check_references(against, names, path)
    expect = {**given.get("expect", {}), **of_arms(own, "expect")}
    check_expectations(expect, names, path)
    margin = given.get("equivalence_margin")
    if margin is not None:
        check_margin(margin, f"study {path}: equivalence_margin")
    if looks and (design or "tune" in given):
        raise ConfigurationError(
            f"study {path} has looks and {'factors' if design else 'tune'}, which need a fixed "
            "number of seeds; give `seeds` as a list"
        )
    study = Study(
        path=path,
        question=given["question"],
        arms=arms,
        seeds=seeds,
        profile=given.get("profile", "auto"),
        primary_metric=given.get("primary_metric", EVAL_REWARD),
        decide_on=given.get("decide_on", "final"),
        overrides=overrides,
        seeds_answer=given.get("seeds_answer", ""),
        against=against,
        notes=tuple(given.get("notes", ())),
        looks=looks,
        equivalence_margin=margin,
        expect=expect,
        design=design,
    )
    return _with_candidates(study, given["tune"]) if "tune" in given else study


def _design(given: Mapping[str, Any], path: Path) -> Design | None:
    """The factorial design of a study that has `factors` in place of `arms`."""
    if "factors" not in given:
        for key in OF_FACTORS:
            if key in given:
                raise ConfigurationError(
                    f"study {path}: '{key}' applies to `factors` only; remove it, or give factors"
                )
        return None
    if "arms" in given:
        raise ConfigurationError(
            f"study {path} has both `arms` and `factors`; keep one: the combinations of the "
            "factors are the arms"
        )
    what = f"study {path}"
    check_free(given["factors"], what)
    for key in given["factors"]:
        if key in given.get("overrides", {}) or key in given.get("stopping", {}):
            raise ConfigurationError(
                f"{what}: '{key}' is a factor and an override, which would replace all its levels; "
                "remove one of the two"
            )
    return read_design(given["factors"], str(given.get("fraction", "1")), what)


def _cells(
    design: Design, given: Mapping[str, Any], seeds: tuple[int, ...], path: Path
) -> tuple[Arm, ...]:
    recipe = find_recipe(given.get("recipe", DEFAULT_RECIPE), path)
    return tuple(Arm(name, recipe, levels, seeds) for name, levels in design.cells.items())


def _with_candidates(study: Study, tune: Mapping[str, Any]) -> Study:
    """The study with each arm replaced by its candidates, whose first seeds are those of tuning."""
    what = f"study {study.path}"
    options = {key: tune[key] for key in TUNE_KEYS if key in tune}
    options = checked(options, TUNE_KEYS, f"{what}: tune")
    values_of = {key: value for key, value in tune.items() if key not in TUNE_KEYS}
    tuning = make_tuning(
        values_of,
        seeds=options.get("seeds", TUNING_SEEDS),
        by=options.get("by", study.decide_on),
        halving=options.get("halving", False),
        arms=[arm.name for arm in study.arms],
        used={seed for arm in study.arms for seed in arm.seeds},
        what=what,
    )
    check_free(values_of, f"{what}: tune")
    for place in (study.overrides, *(arm.overrides for arm in study.arms)):
        if tuning.key in place:
            raise ConfigurationError(
                f"{what}: tune replaces '{tuning.key}', which is also a factor or an override; "
                "remove one of the two"
            )
    candidates = [
        replace(arm, name=name, overrides={**arm.overrides, tuning.key: value},
                seeds=(*tuning.seeds, *arm.seeds))
        for arm in study.arms
        for name, value in zip(tuning.arms[arm.name], tuning.values, strict=True)
    ]  # fmt: skip
    return replace(study, arms=tuple(candidates), tuning=tuning)


def _looks_and_seeds(
    given: list[int] | dict[str, Any], what: str
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The looks, if any, and the seeds: with looks, 0, 1, 2, ... up to the last one."""
    if isinstance(given, list):
        return (), read_seeds(given, what)
    known = checked(given, SEEDS_KEYS, what)
    if "looks" not in known:
        raise ConfigurationError(f"{what} have no `looks`; add them, such as looks: [3, 5, 8, 12]")
    looks = check_looks(known["looks"], f"{what}: looks")
    return looks, tuple(range(looks[-1]))
