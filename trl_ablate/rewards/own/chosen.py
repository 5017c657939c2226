"""From `reward_funcs` of a recipe to the functions and weights that TRL takes."""

import functools
import inspect
import pickle
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from trl_ablate.errors import ConfigurationError, RewardError
from trl_ablate.named_code import load_code, one_line
from trl_ablate.prompts.templates import TEMPLATES, get_template
from trl_ablate.reward_specs import (
    GYM_SCORE,
    MATH_REWARDS,
    TRL_FACTORIES,
    TRL_REWARDS,
    RewardSpec,
)
from trl_ablate.rewards.functions import GradedRewards, RewardFunction, abuses_eos
from trl_ablate.rewards.grading.grader import MathGrader
from trl_ablate.rewards.grading.pool import WorkerPool
from trl_ablate.rewards.gym import with_entries
from trl_ablate.rewards.own.calling import Calls, Reward, columns_by_row, guarded

START_SECONDS, NO_MEMORY_LIMIT = 120.0, -1
GYM_SECONDS, GYM_MEMORY = 5.0, 4 * 2**30
"""For one answer, whose scorer is not the user's own; a `reward_timeout` replaces the seconds."""


@dataclass(frozen=True)
class Rewards:
    """What `GRPOTrainer` takes: functions or reward models, and a weight for each."""

    functions: list[Any]
    weights: list[float]
    needs: Mapping[str, list[str]] = field(default_factory=dict)  # name -> columns

    def check_columns(self, columns: Sequence[str], what: str) -> None:
        """Refuse data without a column that a reward needs."""
        for name, needed in self.needs.items():
            for column in needed:
                if column not in columns:
                    raise ConfigurationError(
                        f"reward '{name}' needs the column '{column}', but the {what} have "
                        f"{', '.join(columns)}; add the column, or rename the function's argument "
                        "or give it a default"
                    )


@dataclass(frozen=True)
class Tools:
    """What rewards are made with."""

    grader: MathGrader
    form: str | None  # the template whose format `answer` and `format` read
    load_model: Callable[[str], Any]  # by its Hub id or folder
    eos_token_ids: Collection[int] = ()
    special_token_ids: Collection[int] = ()
    timeout: float | None = None  # seconds for a row, in `workers` processes; None: in this one
    workers: int = 2


def template_specs(template: str, eos_penalty: float = 0.0) -> list[RewardSpec]:
    """A template's own rewards as entries of `reward_funcs`."""
    penalty = {"eos_penalty": eos_penalty} if eos_penalty else {}
    worth = {**get_template(template).rewards, **penalty}
    return [RewardSpec(name, weight) for name, weight in worth.items()]


def build_rewards(
    template: str,
    *,
    grader: MathGrader,
    eos_token_ids: Collection[int] = (),
    special_token_ids: Collection[int] = (),
    eos_penalty: float = 0.0,
) -> tuple[list[Any], list[float]]:
    """A template's reward functions and their weights, for `GRPOTrainer` and `GRPOConfig`.

    Each function returns 0 or 1 (`eos_penalty`: 0 or -1), which TRL multiplies by its weight, or
    None for an ungraded completion. The first logs `format_reward` and `answer_reward` (metrics:
    means over the graded completions; columns), and the counts `grader/timeouts`,
    `grader/restarts` and `grader/ungraded` of the batch.
    """
    if eos_penalty < 0 or (eos_penalty and not eos_token_ids):
        raise ConfigurationError(
            f"eos_penalty={eos_penalty!r} is subtracted from the reward and needs eos_token_ids; "
            "give 0 or more, and the tokenizer's end-of-sequence token ids."
        )
    tools = Tools(grader, template, str, eos_token_ids, special_token_ids)  # without models
    made = chosen_rewards(template_specs(template, eos_penalty), tools)
    return made.functions, made.weights


def chosen_rewards(specs: Sequence[RewardSpec], tools: Tools) -> Rewards:
    """The rewards that `reward_funcs` lists, in its order."""
    graders = [spec.path for spec in specs if spec.path in MATH_REWARDS]
    batches: dict[str | None, GradedRewards] = {}
    functions: dict[str, Any] = {}
    needs: dict[str, list[str]] = {}
    for spec in specs:
        if spec.kind == "own":
            function = _own(spec, graders, tools, batches)
            name, needed = function.__name__, ["answer"] if spec.path in MATH_REWARDS else []
        elif spec.kind == "model":
            function, needed = tools.load_model(spec.path), []
            name = spec.path.rstrip("/").split("/")[-1]  # as TRL names it
        else:
            calls = calls_of(spec)
            name, needed = calls.name, calls.needed()
            if spec.path == GYM_SCORE:
                function = with_entries(timed(calls, spec, tools))
            else:
                function = guarded(calls) if tools.timeout is None else timed(calls, spec, tools)
        if name in functions:
            raise ConfigurationError(
                f"reward_funcs has two rewards named '{name}', whose metrics would mix; give one "
                "of them another `name`, or a reward model another folder"
            )
        functions[name], needs[name] = function, needed
    return Rewards(list(functions.values()), [spec.weight for spec in specs], needs)


def _own(
    spec: RewardSpec,
    graders: Sequence[str],
    tools: Tools,
    batches: dict[str | None, GradedRewards],
) -> RewardFunction:
    """A reward of this package: 0 or 1, the penalty 0 or -1. Those of one format share the grading
    of a batch, which the first of them logs."""
    form, path, name = None, spec.path, spec.name or spec.path
    if graders:  # a task refuses `answer` and `format` without a form
        named = path if path in graders else graders[0]
        form = named if named in TEMPLATES else tools.form
    batch = batches.setdefault(form, GradedRewards(form, tools.grader))
    if path == "eos_penalty":
        eos, special = frozenset(tools.eos_token_ids), frozenset(tools.special_token_ids)
        return batch.function(name, lambda _, ids: -float(abuses_eos(ids, eos, special)))
    part = {"answer": "answer_reward", "format": "format_reward"}.get(path, "reward")
    return batch.function(name, lambda one, _: float(one[part] > 0), logs=path == graders[0])


def calls_of(spec: RewardSpec) -> Calls:
    """A function of the user or of TRL, with the arguments to add to every call.

    A class is made into an object with the arguments, and so is a reward that TRL makes from them.
    """
    trl_name = spec.path.removeprefix("trl.rewards.")
    if spec.place is not None:
        function = load_code(spec.place, "reward_funcs")
    else:
        import trl.rewards

        function = getattr(trl.rewards, spec.path)
    kwargs = spec.kwargs
    if inspect.isclass(function) or trl_name in TRL_FACTORIES:
        made_with, kwargs = {**TRL_FACTORIES.get(trl_name, {}), **kwargs}, {}
        try:
            function = function(**made_with)
        except Exception as error:  # of the user's own code
            raise ConfigurationError(
                f"reward_funcs: {spec.path} cannot be made with kwargs {made_with}: "
                f"{one_line(error)}; correct them"
            ) from error
    if not callable(function):
        raise ConfigurationError(
            f"reward_funcs: {spec.path} is a {type(function).__name__}, which cannot be called; "
            "name a function, or a class with __call__"
        )
    try:
        inspect.signature(function)
    except ValueError as error:  # some compiled ones
        raise ConfigurationError(
            f"reward_funcs: {spec.path} does not say which arguments it takes; call it in a "
            "function of your own"
        ) from error
    code: Any = function
    while isinstance(code, functools.partial):
        code = code.func
    if trl_name in TRL_REWARDS:
        function = _of_messages(function)
    # As TRL names it: an object without a name by its class.
    name, file = spec.name or getattr(code, "__name__", type(code).__name__), None
    if spec.place is not None:
        with suppress(TypeError):  # a built-in function has none
            file = inspect.getsourcefile(code if inspect.isroutine(code) else type(code))
    return Calls(name, function, kwargs, file)


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


def timed(calls: Calls, spec: RewardSpec, tools: Tools) -> Callable[..., list[Reward]]:
    """The function for TRL's `reward_funcs`, which calls the user's in worker processes that are
    killed when a row takes too long: row by row, without `trainer_state` and `environments`."""
    missing = [name for name in calls.required() if name in ("trainer_state", "environments")]
    if missing:
        raise ConfigurationError(
            f"reward function '{calls.name}' needs {missing[0]}, which cannot be passed to worker "
            "processes; set reward_timeout to null, or give the argument a default"
        )
    own = {"reward": asdict(spec), "path": sys.path}
    memory = GYM_MEMORY if spec.path == GYM_SCORE else NO_MEMORY_LIMIT
    pool = WorkerPool(tools.workers, tools.timeout or GYM_SECONDS, memory, START_SECONDS, own)

    def packed(row: Mapping[str, Any]) -> bytes:
        try:
            return pickle.dumps(calls.arguments(row))
        except Exception as error:
            raise ConfigurationError(
                f"reward function '{calls.name}' has a reward_timeout, but a row cannot be passed "
                f"to a worker process ({error}); set reward_timeout to null"
            ) from error

    def reward(**given: Any) -> list[Reward]:
        outcomes = pool.run([(packed(row),) for row in columns_by_row(given)])
        rewards: list[Reward] = []
        errors: dict[int, str] = {}
        for index, outcome in enumerate(outcomes):
            report = outcome.verdict or {}
            if "wrong" in report:
                raise RewardError(report["wrong"])
            rewards.append(report.get("reward"))
            if "error" in report or not (report or outcome.timed_out):
                errors[index] = report.get("error", "its worker process ended")
        timeouts = sum(outcome.timed_out for outcome in outcomes)
        return calls.settled(rewards, errors, given, timeouts=timeouts)

    reward.__name__ = calls.name
    return reward
