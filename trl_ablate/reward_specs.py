"""What `reward_funcs` of a recipe names: built-in rewards, functions, reward models. No torch."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Literal

from trl_ablate.errors import ConfigurationError
from trl_ablate.named_code import CodePlace, code_place

MATH_REWARDS = ("answer", "format", "r1_zero", "question_only")
"""Rewards that this package's grader gives; `answer` and `format` in the template's format."""
OWN_REWARDS = (*MATH_REWARDS, "eos_penalty")
GYM = "reasoning_gym/"
"""Datasets that begin with it are tasks of reasoning-gym."""
GYM_REWARD, GYM_SCORE = "reasoning_gym", "trl_ablate.rewards.gym.score"
"""The name of its scorers as a reward, and the function that calls them."""
TRL_FACTORIES: dict[str, dict[str, Any]] = {
    "get_soft_overlong_punishment": {"max_completion_len": 1280, "soft_punish_cache": 256},
    "get_cosine_scaled_reward": {},
    "get_repetition_penalty_reward": {},
}
"""Functions of `trl.rewards` that make a reward from their arguments: name -> the arguments that
`trl grpo` gives."""
TRL_REWARDS = (
    "accuracy_reward",
    "reasoning_accuracy_reward",
    "think_format_reward",
    *TRL_FACTORIES,
)
KEYS = ("path", "weight", "kwargs", "name")

Kind = Literal["own", "trl", "code", "model"]


@dataclass(frozen=True)
class RewardSpec:
    """One entry of `reward_funcs`."""

    path: str
    weight: float = 1.0
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    name: str | None = None
    """What metrics call it, if not by the function's own name."""

    @property
    def kind(self) -> Kind:
        if self.path in OWN_REWARDS:
            return "own"
        if self.path in TRL_REWARDS:
            return "trl"
        return "model" if self.place is None else "code"

    @property
    def place(self) -> CodePlace | None:
        """Where the function is, for the kind `code`."""
        return None if _looks_like_a_model(self.path) else code_place(self.path)


def reward_specs(entries: Iterable[Any], what: str = "reward_funcs") -> list[RewardSpec]:
    """The checked entries of `reward_funcs`; nothing is imported or loaded."""
    specs = [_spec(entry, what) for entry in entries]
    if not specs:
        raise ConfigurationError(
            f"{what} is an empty list; name a reward, or leave it out for the template's own"
        )
    return specs


def _spec(entry: Any, what: str) -> RewardSpec:
    given: dict[str, Any] = {"path": entry} if isinstance(entry, str) else {**entry}
    for key in given:
        if key not in KEYS:
            raise ConfigurationError(
                f"{what}: unknown key {str(key)[:80]!r}; use {', '.join(KEYS)}"
            )
    path, weight = given.get("path"), given.get("weight", 1.0)
    if not isinstance(path, str) or not path:
        raise ConfigurationError(f"{what}: path is {path!r}; give {_allowed()}")
    if type(weight) not in (int, float) or not math.isfinite(weight):
        raise ConfigurationError(
            f"{what}: the weight of {path[:80]!r} is {str(weight)[:80]!r}; give a number"
        )
    if not isinstance(given.get("kwargs", {}), Mapping):
        raise ConfigurationError(
            f"{what}: the kwargs of {path[:80]!r} are {str(given['kwargs'])[:80]!r}; give a "
            "mapping of arguments"
        )
    name = given.get("name")
    if path == GYM_REWARD:
        path, name = GYM_SCORE, name or GYM_REWARD
    if name is not None and (not isinstance(name, str) or not name or not name.isprintable()):
        raise ConfigurationError(
            f"{what}: the name of {path[:80]!r} is {str(name)[:80]!r}; give a text without control "
            "characters"
        )
    spec = RewardSpec(path, float(weight), dict(given.get("kwargs", {})), name)
    if spec.kind == "model" and not _looks_like_a_model(path):
        close = get_close_matches(path, [*OWN_REWARDS, *TRL_REWARDS], n=1)
        meant = f"did you mean '{close[0]}'? Otherwise " if close else ""
        raise ConfigurationError(f"{what}: {path[:80]!r} is no reward; {meant}give {_allowed()}")
    if spec.kwargs and (spec.kind == "model" or spec.kind == "own"):
        raise ConfigurationError(
            f"{what}: {path[:80]!r} takes no kwargs, but has "
            f"{', '.join(map(str, spec.kwargs))[:80]!r}; remove them"
        )
    return spec


def _looks_like_a_model(path: str) -> bool:
    """A Hub id or a folder has a slash; a file of Python has its suffix."""
    return "/" in path and ".py:" not in path and not path.endswith(".py")


def _allowed() -> str:
    return (
        f"one of {', '.join([*OWN_REWARDS, GYM_REWARD, *TRL_REWARDS])}, a function as "
        "FILE.py:FUNCTION or package.module.function, or a reward model as its Hub id (org/name) "
        "or folder (./name)"
    )
