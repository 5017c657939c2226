"""A configuration of `trl grpo --config x.yaml` as a recipe: the same data, rewards and settings.

Such a file is known by the arguments of TRL's script, which no recipe has. It is read without a
profile, as its values are complete, and its prompts are the data's own. Where YAML 1.1, which TRL
reads, differs from ours (`yes`, `1e-5`), the value is read as TRL's parser reads it. `env` sets
environment variables, as there.
"""

import os
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from trl_ablate.errors import ConfigurationError, brief
from trl_ablate.recipe.fields import LOADER_KEYS, hints
from trl_ablate.recipe.places import NO_PROFILE
from trl_ablate.recipe.strict import accepts, admits, parse_yaml

OF_THE_SCRIPT = (
    "dataset_name", "dataset_train_split", "dataset_test_split", "dataset_streaming", "datasets",
    "reward_model_name_or_path", "ignore_bias_buffers",
)  # fmt: skip
"""Arguments of `trl grpo` that are not settings of a recipe."""
UNSUPPORTED = {
    "datasets": "name one dataset as dataset_name",
    "dataset_streaming": "remove it: the dataset is loaded whole",
    "ignore_bias_buffers": "remove it",
}
_BOOLEANS = {"yes": True, "on": True, "no": False, "off": False}


@contextmanager
def without_traces():
    """Environment variables that such a file sets within the block are gone after it."""
    before = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def from_trl(given: dict[str, Any], path: Path) -> dict[str, Any]:
    """The settings of a recipe that trains as `trl grpo` does; of a recipe, its own."""
    if not any(key in given for key in OF_THE_SCRIPT):
        return given
    _check(given, path)
    os.environ.update({str(name): str(value) for name, value in (given.get("env") or {}).items()})
    settings = {
        key: _as_trl_reads(key, value)
        for key, value in given.items()
        if key not in (*OF_THE_SCRIPT, "env")
    }
    model = given.get("reward_model_name_or_path")
    rewards = [*([model] if model else []), *(settings.pop("reward_funcs", None) or [])]
    if not rewards:
        raise ConfigurationError(
            f"{path} names no reward; add reward_funcs or reward_model_name_or_path"
        )
    return {
        "profile": NO_PROFILE,
        "dataset": given["dataset_name"],
        "train_split": given.get("dataset_train_split", "train"),
        "eval_split": given.get("dataset_test_split", "test"),
        "prompt_column": "prompt",
        "eval_size": None,
        "reward_funcs": rewards,
        **settings,
    }


def _check(given: Mapping[str, Any], path: Path) -> None:
    def refuse(sentence: str) -> NoReturn:
        raise ConfigurationError(f"{path}: {sentence}")

    for key, fix in UNSUPPORTED.items():
        if given.get(key):
            refuse(f"{key} of `trl grpo` is not supported; {fix}, or train with `trl grpo`")
    of_trl = next(key for key in OF_THE_SCRIPT if key in given)
    for key in ("dataset", *LOADER_KEYS):
        if key in given:
            refuse(
                f"it has {of_trl}, which belongs to `trl grpo`, and {key}, which belongs to a "
                "recipe; use the keys of one of the two"
            )
    name, env = given.get("dataset_name"), given.get("env")
    if not isinstance(name, str):
        refuse(f"dataset_name is {brief(repr(name))}; give a Hub id or a folder")
    if not isinstance(env, Mapping | None) or any("=" in (str(key) or "=") for key in env or ()):
        refuse(f"env is {brief(repr(env))}; give a mapping of environment variables")
    if not isinstance(rewards := given.get("reward_funcs"), str | list | None):
        refuse(f"reward_funcs is {brief(repr(rewards))}; give a list of rewards")


def _as_trl_reads(key: str, value: Any) -> Any:
    """A text in place of a number, a mapping or a boolean is read; one for a list is its entry."""
    if key == "scale_rewards" and isinstance(value, bool):
        return "group" if value else "none"
    hint = hints().get(key, Any)
    if not isinstance(value, str) or hint is Any or accepts(hint, value):
        return value
    if admits(hint, bool) and value.lower() in _BOOLEANS:
        return _BOOLEANS[value.lower()]
    try:
        read = parse_yaml(value)
    except ValueError:
        read = value
    return [read] if not accepts(hint, read) and accepts(hint, [read]) else read
