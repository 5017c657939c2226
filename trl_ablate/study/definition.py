"""Read and check `study.yaml`: the question, the arms, the seeds. No torch.

    question: ...                 the question of the study
    arms: [a.yaml, b.yaml]        recipes; the first is the reference. Or a mapping of names to
                                  recipes, or to {recipe, overrides, seeds, against, expect}
    seeds: [0, 1, 2]              or {looks: [3, 5, 8, 12]}: seeds are added at these numbers, until
                                  a comparison is decided; `first: 100` begins with seed 100
    judge: two_part               runs are not paired: which share succeeds, and how well do those
                                  do (see `two_part`); default: paired
    reference_seeds: 64           two_part: runs of the first arm, which serve all comparisons
    success: {threshold: 0.6}     two_part: from where on a run succeeds; default: half of what the
                                  median run of the reference gains
    profile: miniature            where it runs; default: `auto`
    primary_metric: eval_reward   the metric that decides; higher is better
    decide_on: final              or best, auc, last_third: the summary of its curve that decides
    equivalence_margin: 0.02      smaller differences of the primary metric count as equal
    expect: {a: better}           what theory predicts, written before the runs: better, worse,
                                  equal, collapse, fails, or the difference as a number
    overrides: {grpo_steps: 30}   settings for every arm
    seeds_answer: ...             an earlier result, for the report
    against: {a: b}               compare arm a with arm b, not with the first arm; b should differ
                                  from a only in the setting that the study asks about
    notes: [...]                  remarks for the reader of the report, one sentence each
    factors: {key: [a, b]}        in place of arms: all combinations of these levels (see `factors`)
    fraction: 1/2                 run only this share of the combinations
    recipe: grpo.yaml             the recipe that the levels change; default: grpo.yaml
    tune: {key: [a, b], seeds: 2} first find each arm's best value of one setting (see `tuning`)

Recipes are searched in the study's folder, in every folder above it, and among the shipped ones.
A profile, code and templates are searched in the study's folder, and then as `recipe` does.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from trl_ablate.errors import ConfigurationError
from trl_ablate.metrics import EVAL_REWARD
from trl_ablate.recipe.places import SHIPPED, SUFFIXES
from trl_ablate.recipe.strict import check_value, nearest, read_mapping
from trl_ablate.study.factors import Design, read_design
from trl_ablate.study.tuning import Statistic, Tuning, make_tuning
from trl_ablate.study.verdict import Expectation, Judge, check_looks, check_margin

RESERVED = ("arm", "extends", "output_dir", "profile", "run_name", "seed", "study")
"""Settings that the study sets for every run."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a study asks, in its file and in its plan. All fields are what JSON can hold."""

    question: str
    seeds_answer: str = ""
    profile: str = "auto"
    primary_metric: str = EVAL_REWARD
    decide_on: Statistic = "final"
    judge: Judge = "paired"
    against: dict[str, str] = field(default_factory=dict)
    expect: dict[str, Expectation | float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    equivalence_margin: float | None = None
    looks: tuple[int, ...] = ()
    threshold: float | None = None
    design: Design | None = None
    """The cells of the design are the arms."""
    tuning: Tuning | None = None
    """The candidates are the arms."""


STATED_OTHERWISE = ("looks", "threshold", "design", "tuning")
AS_GIVEN = {k: hint for k, hint in get_type_hints(Asked).items() if k not in STATED_OTHERWISE}
KEYS: dict[str, Any] = AS_GIVEN | {
    "arms": list[str] | dict,
    "seeds": list[int] | dict,
    "expect": dict,
    "reference_seeds": int,
    "success": dict,
    "overrides": dict,
    "factors": dict[str, list[Any]],
    "fraction": str | int,
    "recipe": str,
    "tune": dict,
}
ARM_KEYS: dict[str, Any] = {
    "recipe": str,
    "overrides": dict,
    "seeds": list[int],
    "against": str,
    "expect": Expectation | float,
}
TUNE_KEYS: dict[str, Any] = {"seeds": int, "by": Statistic, "halving": bool}
"""Options of `tune`; its one other key is the setting that is tuned."""


@dataclass(frozen=True)
class Arm:
    """A named recipe. If an arm has its own seeds, they are paired with the study's by position."""

    name: str
    recipe: Path
    overrides: Mapping[str, Any]
    seeds: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Study(Asked):
    """A question with its arms and seeds. The first arm is the reference."""

    path: Path
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    overrides: Mapping[str, Any]
    """Settings that every arm gets in addition to its recipe."""

    @property
    def name(self) -> str:
        """The name of the folder of `study.yaml`; for another file, the file's name."""
        return self.path.resolve().parent.name if self.path.stem == "study" else self.path.stem

    @property
    def place(self) -> str:
        return str(self.path.resolve())

    def asked(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(Asked)}


def load_study(path: Path) -> Study:
    """Read and check a study; raises `ConfigurationError` if anything in it is wrong."""
    what = f"study {path}"
    given = checked(read_mapping(path, "study"), KEYS, what)
    _check_together(given, what)
    design = None
    if "factors" in given:
        _check_free(given["factors"], what)
        design = read_design(given["factors"], str(given.get("fraction", "1")), what)
    for key in ("question", "arms", "seeds"):
        if not given.get(key) and not (design and key == "arms"):
            raise ConfigurationError(f"{what} has no `{key}`; add it")
    looks, seeds = _looks_and_seeds(given["seeds"], f"{what}: seeds")
    _check_free(given.get("overrides", {}), what)
    if design:
        recipe = find_recipe(given.get("recipe", "grpo.yaml"), path)
        arms = [Arm(name, recipe, cell, seeds) for name, cell in design.cells.items()]
    else:
        arms = _arms(given["arms"], seeds, path)
    if "reference_seeds" in given:
        arms[0] = _with_more_seeds(arms[0], given["reference_seeds"], what)
    if given.get("equivalence_margin") is not None:
        check_margin(given["equivalence_margin"], f"{what}: equivalence_margin")
    asked: dict[str, Any] = {key: given[key] for key in AS_GIVEN if key in given}
    profile = path.parent / asked.get("profile", "")
    if profile.suffix in SUFFIXES and os.path.isfile(profile):
        asked["profile"] = os.path.abspath(profile)
    asked |= checked(given.get("success", {}), {"threshold": float}, what)
    asked |= _references(given, [arm.name for arm in arms], what)
    study = Study(
        **asked, path=path, arms=tuple(arms), seeds=seeds, looks=looks, design=design,
        overrides=given.get("overrides", {}),
    )  # fmt: skip
    return _with_candidates(study, given["tune"], what) if "tune" in given else study


def _check_together(given: Mapping[str, Any], what: str) -> None:
    """Refuse keys that do not go together."""
    two_part, factors = given.get("judge") == "two_part", "factors" in given
    looks = isinstance(given.get("seeds"), dict) and not two_part
    both = given.get("factors", {}).keys() & given.get("overrides", {}).keys()
    only = "applies to `factors` only; remove it, or give factors"
    fixed = "which need a fixed number of seeds; give `seeds` as a list"
    pooled = "needs `judge: two_part`; add it"
    for holds, sentence in (
        (not two_part and "reference_seeds" in given, f"reference_seeds {pooled}"),
        (not two_part and "success" in given, f"success {pooled}"),
        (not factors and "fraction" in given, f"'fraction' {only}"),
        (not factors and "recipe" in given, f"'recipe' {only}"),
        (factors and "arms" in given, "it has both `arms` and `factors`; keep one: the "
         "combinations of the factors are the arms"),
        (factors and two_part, "it has factors, whose effects are not judged in two parts; remove "
         "`judge`"),
        (factors and "equivalence_margin" in given, "it has factors, whose effects are not judged "
         "by a margin; remove `equivalence_margin`"),
        (looks and factors, f"it has looks and factors, {fixed}"),
        (looks and "tune" in given, f"it has looks and tune, {fixed}"),
        (both, f"'{', '.join(sorted(both))}' is a factor and an override, which would replace all "
         "its levels; remove one of the two"),
    ):  # fmt: skip
        if holds:
            raise ConfigurationError(f"{what}: {sentence}")


def _with_more_seeds(arm: Arm, number: int, what: str) -> Arm:
    """The arm with this many seeds: its own, and the numbers after them."""
    own, after = arm.seeds, max(arm.seeds) + 1
    if number < len(own):
        raise ConfigurationError(
            f"{what}: reference_seeds is {number}; give {len(own)} or more, the seeds of every arm"
        )
    seeds = [*own, *range(after, after + number - len(own))]
    return replace(arm, seeds=_seeds(seeds, f"{what}: reference_seeds"))


def _arms(given: list[str] | dict[str, Any], seeds: tuple[int, ...], study: Path) -> list[Arm]:
    """An arm that is given as a recipe has the name of its file; `lr_1.5e-5` is a whole name."""
    if isinstance(given, list):
        names = [Path(name).stem if name.endswith(SUFFIXES) else Path(name).name for name in given]
        for name in names:
            if names.count(name) > 1:
                raise ConfigurationError(
                    f"study {study}: arm '{name}' occurs twice; give one of the two another name "
                    "(arms: a mapping of names to recipes)"
                )
        given = dict(zip(names, given, strict=True))
    return [_arm(name, entry, seeds, study) for name, entry in given.items()]


def _arm(name: str, entry: Any, seeds: tuple[int, ...], study: Path) -> Arm:
    what = f"study {study}: arm '{name}'"
    if not isinstance(entry, (str, dict)):
        raise ConfigurationError(
            f"{what} is {entry!r}; allowed: a recipe file, or {{recipe, overrides, seeds}}"
        )
    given = checked({"recipe": entry} if isinstance(entry, str) else entry, ARM_KEYS, what)
    if "recipe" not in given:
        raise ConfigurationError(f"{what} has no `recipe`; name a recipe file")
    overrides = given.get("overrides", {})
    _check_free(overrides, what)
    own = _seeds(given["seeds"], f"{what}: seeds") if "seeds" in given else seeds
    if len(own) != len(seeds):
        raise ConfigurationError(
            f"{what} has {len(own)} seeds and the study has {len(seeds)}; seeds are paired by "
            f"position, so give {len(seeds)}"
        )
    return Arm(name, find_recipe(given["recipe"], study), overrides, own)


def _references(given: Mapping[str, Any], names: Sequence[str], what: str) -> dict[str, Any]:
    """`against` and `expect`, of the study and of single arms, checked."""
    arms = given["arms"] if isinstance(given.get("arms"), dict) else {}
    found: dict[str, dict[str, Any]] = {}
    for key in ("against", "expect"):
        own = {name: arm[key] for name, arm in arms.items() if isinstance(arm, dict) and key in arm}
        found[key] = {**given.get(key, {}), **own}
    against, expect = found["against"], found["expect"]
    for key, named in (("against", [*against, *against.values()]), ("expect", expect)):
        for name in named:
            if name not in names:
                meant = nearest(str(name), names)
                raise ConfigurationError(f"{what}: {key} has '{name}', which is not an arm{meant}")
    for arm, expected in expect.items():
        check_value(f"{what}: expect: {arm}", expected, Expectation | float)
    if names[0] in against:
        raise ConfigurationError(
            f"{what}: against has '{names[0]}', the first arm, which is the study's reference; "
            "remove it, or put another arm first"
        )
    for arm in against:
        passed = [arm]
        while other := against.get(passed[-1]):
            if other in passed:
                raise ConfigurationError(
                    f"{what}: against compares {' with '.join(passed)} in a circle; let one of "
                    f"them be compared with {names[0]}"
                )
            passed.append(other)
    return found


def find_recipe(name: str, study: Path) -> Path:
    """The recipe in the study's folder, in the nearest folder above it, or among the shipped
    ones."""
    for folder in (study.parent, *study.resolve().parent.parents, SHIPPED):
        for file in (folder / name, folder / f"{name}.yaml"):
            if os.path.isfile(file):  # Path.is_file raises for an impossible name
                return Path(os.path.abspath(file))
    known = (path.name for path in SHIPPED.glob("*.yaml"))
    raise ConfigurationError(f"study {study}: recipe '{name}' does not exist{nearest(name, known)}")


def _with_candidates(study: Study, tune: Mapping[str, Any], what: str) -> Study:
    """The study with each arm replaced by its candidates, whose first seeds are those of tuning."""
    given = {key: value for key, value in tune.items() if key in TUNE_KEYS}
    values_of = {key: value for key, value in tune.items() if key not in TUNE_KEYS}
    options = {"seeds": 2, "by": study.decide_on, "halving": False}
    options |= checked(given, TUNE_KEYS, f"{what}: tune")
    _check_free(values_of, f"{what}: tune")
    tuning = make_tuning(
        values_of, **options, arms=[arm.name for arm in study.arms],
        used={seed for arm in study.arms for seed in arm.seeds}, what=what,
    )  # fmt: skip
    if any(tuning.key in place.overrides for place in (study, *study.arms)):
        raise ConfigurationError(
            f"{what}: tune replaces '{tuning.key}', which is also a factor or an override; "
            "remove one of the two"
        )
    candidates = (
        replace(arm, name=name, overrides={**arm.overrides, tuning.key: value},
                seeds=(*tuning.seeds, *arm.seeds))
        for arm in study.arms
        for name, value in zip(tuning.arms[arm.name], tuning.values, strict=True)
    )  # fmt: skip
    return replace(study, arms=tuple(candidates), tuning=tuning)


def _looks_and_seeds(
    given: list[int] | dict[str, Any], what: str
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The looks, if any, and the seeds: with looks, as many as at the last one, from `first` on."""
    if isinstance(given, list):
        return (), _seeds(given, what)
    known = checked(given, {"looks": list[int], "first": int}, what)
    looks, first = check_looks(known.get("looks", ()), f"{what}: looks"), known.get("first", 0)
    return looks, _seeds([*range(first, first + looks[-1])], what)


def _seeds(seeds: list[int], what: str) -> tuple[int, ...]:
    if len(set(seeds)) != len(seeds) or not seeds:
        raise ConfigurationError(f"{what} are {seeds}; give at least one, and give each once")
    if wrong := [seed for seed in seeds if not 0 <= seed < 2**32]:
        raise ConfigurationError(f"{what}: {wrong[0]} is no seed; allowed: 0 to {2**32 - 1}")
    return tuple(seeds)


def checked(given: Mapping[str, Any], known: Mapping[str, Any], what: str) -> dict[str, Any]:
    """The entries of a mapping of a YAML file, if they are of the known keys and types."""
    for key in given:
        if key not in known:
            raise ConfigurationError(f"{what}: unknown key '{key}'{nearest(key, known)}")
    return {key: check_value(f"{what}: {key}", value, known[key]) for key, value in given.items()}


def _check_free(overrides: Iterable[str], what: str) -> None:
    for key in overrides:
        if key in RESERVED:
            raise ConfigurationError(
                f"{what}: '{key}' cannot be overridden: the study sets it for every run; remove it"
            )
