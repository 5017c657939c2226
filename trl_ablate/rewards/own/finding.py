"""The function that an entry of `reward_funcs` names, imported. No torch, unless it imports it."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from trl_ablate.errors import ConfigurationError
from trl_ablate.named_code import load_code
from trl_ablate.reward_specs import TRL_FACTORIES, TRL_REWARDS, RewardSpec
from trl_ablate.rewards.own.calling import Calls


def calls_of(spec: RewardSpec) -> Calls:
    """A function of the user or of TRL, with the arguments to add to every call.

    A class is made into an object with the arguments, and so is a reward that TRL makes from them.
    """
    found = _found(spec)
    trl_name = spec.path.removeprefix("trl.rewards.")
    function, kwargs = found, spec.kwargs
    if inspect.isclass(found) or trl_name in TRL_FACTORIES:
        function, kwargs = _made(found, spec, TRL_FACTORIES.get(trl_name, {})), {}
    if not callable(function):
        raise ConfigurationError(
            f"reward_funcs: {spec.path} is a {type(function).__name__}, which cannot be called; "
            "name a function, or a class with __call__"
        )
    code = _without_partial(function)
    own = None if spec.place is None else _file_of(code)
    if trl_name in TRL_REWARDS:
        function = _of_messages(function)
    return Calls(spec.name or _name_of(code), function, kwargs, own)


def _of_messages(function: Callable[..., Any]) -> Callable[..., Any]:
    """A reward of TRL, which reads the content of messages, also for completions of text."""

    @functools.wraps(function)
    def reward(*, completions, **given):
        messages = [
            [{"role": "assistant", "content": one}] if isinstance(one, str) else one
            for one in completions
        ]
        return function(completions=messages, **given)

    return reward


def _found(spec: RewardSpec) -> Any:
    if spec.place is not None:
        return load_code(spec.place, "reward_funcs")
    import trl.rewards

    return getattr(trl.rewards, spec.path)


def _made(factory: Callable[..., Any], spec: RewardSpec, usual: dict[str, Any]) -> Any:
    given = {**usual, **spec.kwargs}
    try:
        return factory(**given)
    except TypeError as error:
        raise ConfigurationError(
            f"reward_funcs: {spec.path} cannot be made with kwargs {given}: {error}; correct them"
        ) from error


def _without_partial(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _name_of(function: Any) -> str:
    """As TRL names it: an object without a name by its class."""
    return getattr(function, "__name__", type(function).__name__)


def _file_of(function: Any) -> str | None:
    try:
        return inspect.getsourcefile(function if inspect.isroutine(function) else type(function))
    except TypeError:
        return None
