"""Tools, environments and rollout functions that a recipe names, for TRL's trainer."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from trl_ablate.errors import ConfigurationError
from trl_ablate.named_code import code_place, load_code, one_line
from trl_ablate.task import TaskArguments

SETTINGS = ("tools", "environment_factory", "rollout_func")


def environment_of(task: TaskArguments) -> dict[str, Any]:
    """The arguments of `GRPOTrainer` that the recipe gives, imported; empty for most recipes."""
    factory = task.environment_factory
    found = {
        "tools": task.tools and [_loaded("tools", one) for one in task.tools],
        "environment_factory": {
            name: _loaded("environment_factory", one) for name, one in factory.items()
        }
        if isinstance(factory, dict)
        else factory and _loaded("environment_factory", factory),
        "rollout_func": task.rollout_func and _loaded("rollout_func", task.rollout_func),
    }
    return {name: value for name, value in found.items() if value}


def _loaded(setting: str, path: str) -> Callable[..., Any]:
    place = code_place(path)
    if place is None:
        raise ConfigurationError(
            f"{setting} has {path[:200]!r}; give FILE.py:FUNCTION or package.module.function"
        )
    found = load_code(place, setting)
    if not callable(found):
        raise ConfigurationError(
            f"{setting}: {path} is a {type(found).__name__}, which cannot be called; name a "
            "function or a class"
        )
    return found


@contextmanager
def explained(environment: dict[str, Any]) -> Iterator[None]:
    """TRL refuses tools and environments for many reasons: report them in one sentence."""
    try:
        yield
    except ConfigurationError:
        raise
    except (ImportError, TypeError, ValueError) as error:
        if not environment:
            raise
        raise ConfigurationError(
            f"TRL refuses {' and '.join(environment)} of this recipe: {one_line(error)}"
        ) from error
