"""What `reward_funcs` of a recipe names: built-in rewards, functions, reward models. No torch."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

from trl_ablate.errors import ConfigurationError, nearest
from trl_ablate.named_code import CodePlace, code_place

MATH_REWARDS = ("answer", "format", "r1_zero", "question_only", "last_number")
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
    def logged(self) -> str:
        """What metrics call it, as far as that is known before it is imported or loaded."""
        return self.name or (self.place.name if self.place else self.path)

    @property
    def place(self) -> CodePlace | None:
        """Where the function is, for the kind `code`."""
        return None if _looks_like_a_model(self.path) else code_place(self.path)


def reward_specs(entries: Iterable[Any]) -> list[RewardSpec]:
    """The checked entries of `reward_funcs`; nothing is imported or loaded."""
    specs = [_spec(entry) for entry in entries]
    if not specs:
        raise ConfigurationError(
            "reward_funcs is an empty list; name a reward, or leave it out for the template's own"
        )
    return specs


def _spec(entry: Any) -> RewardSpec:
    if not isinstance(entry, str | Mapping):
        raise ConfigurationError(f"reward_funcs has {str(entry)[:80]!r}; give {_allowed()}")
    given: dict[str, Any] = {"path": entry} if isinstance(entry, str) else {**entry}

    def refuse(sentence: str) -> NoReturn:
        raise ConfigurationError(f"reward_funcs: {sentence}")

    for key in given:
        if key not in KEYS:
            refuse(f"unknown key {str(key)[:80]!r}; use {', '.join(KEYS)}")
    path, weight, name = given.get("path"), given.get("weight", 1.0), given.get("name")
    kwargs = given.get("kwargs", {})
    if not isinstance(path, str) or not path:
        refuse(f"path is {path!r}; give {_allowed()}")
    shown = repr(path[:80])
    if type(weight) not in (int, float) or not math.isfinite(weight):
        refuse(f"the weight of {shown} is {str(weight)[:80]!r}; give a number")
    if not isinstance(kwargs, Mapping):
        refuse(f"the kwargs of {shown} are {str(kwargs)[:80]!r}; give a mapping of arguments")
    if path == GYM_REWARD:
        path, name = GYM_SCORE, name or GYM_REWARD
    if name is not None and (not isinstance(name, str) or not name or not name.isprintable()):
        refuse(f"the name of {shown} is {str(name)[:80]!r}; give a text without control characters")
    spec = RewardSpec(path, float(weight), dict(kwargs), name)
    if spec.kind == "model" and not _looks_like_a_model(path):
        meant = nearest(path, [*OWN_REWARDS, *TRL_REWARDS], f"give {_allowed()}")
        refuse(f"{shown} is no reward{meant}")
    if name is not None and spec.kind == "model":
        refuse(f"{shown} is a reward model, which TRL names by its path; remove name {name[:80]!r}")
    if kwargs and spec.kind in ("model", "own"):
        names = ", ".join(map(str, kwargs))[:80]
        refuse(f"{shown} takes no kwargs, but has {names!r}; remove them")
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
