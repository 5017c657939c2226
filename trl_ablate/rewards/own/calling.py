"""A user's reward function as TRL calls it, with its errors kept to the rows that cause them.

TRL passes lists: prompts, completions, completion ids, and every column of the data set. If a call
raises, the function is called again for each row alone, and a row that raises again is ungraded
(None), which is not 0. None and NaN are ungraded, too. What a call logs is kept only if it returns.

An error on every row of a call, and rewards of the wrong number or type, are errors of the function
and not of a row: they raise a `RewardError` with one sentence.
"""

import inspect
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from trl_ablate.errors import RewardError, shortened
from trl_ablate.named_code import line_of, one_line
from trl_ablate.rewards.own.contained import in_this_process

logger = logging.getLogger(__name__)

PER_ROW = ("prompts", "completions", "completion_ids")
FROM_TRAINER = ("trainer_state", "log_extra", "log_metric", "environments")
SHOWN = 80

Reward = float | None


@dataclass
class Calls:
    """How a function is called, and what it returned. `function` may be async.

    Attributes:
        name: of the reward, in metrics and messages.
        kwargs: arguments from the recipe, added to every call.
        file: of the function, to find the line that raised.
    """

    name: str
    function: Callable[..., Any]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    file: str | None = None
    warned: bool = False

    def arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments that the function takes, of all that TRL gives and the recipe's own."""
        found = {**given, **self.kwargs}
        taken = self._parameters()
        if any(one.kind is one.VAR_KEYWORD for one in taken):
            return found
        names = {one.name for one in taken}
        return {name: value for name, value in found.items() if name in names}

    def required(self) -> list[str]:
        """The arguments that the function cannot be called without."""
        return [
            one.name
            for one in self._parameters()
            if one.default is one.empty
            and one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
        ]

    def needed(self) -> list[str]:
        """The columns that the function cannot be called without."""
        given = (*PER_ROW, *FROM_TRAINER, *self.kwargs)
        return [name for name in self.required() if name not in given]

    def _parameters(self) -> list[inspect.Parameter]:
        return list(inspect.signature(self.function).parameters.values())

    def settled(self, rewards: list[Reward], errors: Mapping[int, str], log: "CallLog") -> None:
        """Count what is ungraded, and warn the first time."""
        count = {"ungraded": rewards.count(None), "errors": len(errors)}
        log.counts(self.name, count)
        if errors and not self.warned:
            self.warned = True
            first = min(errors)
            logger.warning(
                "reward function '%s' failed on %d of %d rows, which are ungraded and counted in "
                "grader/%s/errors; the first: %s",
                self.name, len(errors), len(rewards), self.name, errors[first],
            )  # fmt: skip

    def failure(self, error: BaseException, completion: Any) -> str:
        line, file = line_of(error, self.file)
        return f"{one_line(error)} (line {line} of {file}) on {shown(completion)}"


class CallLog:
    """What a function logs, kept until its call has returned."""

    def __init__(self, given: Mapping[str, Any]):
        self._metric: Callable[[str, float], None] | None = given.get("log_metric")
        self._extra: Callable[[str, list], None] | None = given.get("log_extra")
        self._kept: list[tuple[Callable[..., None], str, Any]] = []

    def for_call(self) -> dict[str, Any]:
        """Arguments that replace TRL's two log functions."""
        self._kept.clear()
        both = {"log_metric": self._metric, "log_extra": self._extra}
        return {name: None if log is None else self._keeping(log) for name, log in both.items()}

    def _keeping(self, log: Callable[..., None]) -> Callable[[str, Any], None]:
        return lambda name, value: self._kept.append((log, name, value))

    def write(self) -> None:
        for log, name, value in self._kept:
            log(name, value)
        self._kept.clear()

    def counts(self, reward: str, count: Mapping[str, int]) -> None:
        """Counts of this call, as `grader/<reward>/ungraded` and so on."""
        if self._metric is not None:
            for name, value in count.items():
                self._metric(f"grader/{reward}/{name}", float(value))


def guarded(calls: Calls) -> Callable[..., Any]:
    """The function for TRL's `reward_funcs`; async if the user's function is."""
    is_async = inspect.iscoroutinefunction(calls.function) or inspect.iscoroutinefunction(
        calls.function.__call__
    )
    function = _async(calls) if is_async else _plain(calls)
    function.__name__ = calls.name
    return function


def _plain(calls: Calls) -> Callable[..., list[Reward]]:
    def reward(**given: Any) -> list[Reward]:
        call = _Call(calls, given)
        with in_this_process(calls.name, calls.file):
            try:
                output = calls.function(**call.whole())
            except Exception:
                for index, row in enumerate(call.rows()):
                    with call.attempted(index):
                        call.outputs.append(calls.function(**row))
                output = call.joined()
        return call.finished(output)

    return reward


def _async(calls: Calls) -> Callable[..., Any]:
    async def reward(**given: Any) -> list[Reward]:
        call = _Call(calls, given)
        with in_this_process(calls.name, calls.file):
            try:
                output = await calls.function(**call.whole())
            except Exception:
                for index, row in enumerate(call.rows()):
                    with call.attempted(index):
                        call.outputs.append(await calls.function(**row))
                output = call.joined()
        return call.finished(output)

    return reward


class _Call:
    """One call of TRL, and what has become of it."""

    def __init__(self, calls: Calls, given: Mapping[str, Any]):
        self._calls, self._given, self._log = calls, given, CallLog(given)
        self._completions = given["completions"]
        self.outputs: list[Any] = []
        self.errors: dict[int, str] = {}

    def whole(self) -> dict[str, Any]:
        return self._calls.arguments({**self._given, **self._log.for_call()})

    def rows(self) -> Iterator[dict[str, Any]]:
        self._log.for_call()  # forget what the failed call has logged
        return (self._calls.arguments(row) for row in rows_of(self._given))

    @contextmanager
    def attempted(self, index: int) -> Iterator[None]:
        """An error in the block leaves the row ungraded."""
        try:
            yield
        except Exception as error:
            self.outputs.append([None])
            self.errors[index] = self._calls.failure(error, self._completions[index])

    def joined(self) -> list[Any]:
        return joined(self._calls.name, self.outputs, self.errors, self._completions)

    def finished(self, output: Any) -> list[Reward]:
        rewards = checked(self._calls.name, output, self._completions)
        self._log.write()
        self._calls.settled(rewards, self.errors, self._log)
        return rewards


def rows_of(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The arguments of a call for each row alone; what a row logs is dropped."""
    shared = {name: given[name] for name in FROM_TRAINER if name in given}
    shared |= {name: not_logged for name in ("log_metric", "log_extra") if name in shared}
    environments = shared.pop("environments", None)
    rows = columns_by_row(given)
    if environments is not None:
        rows = [{**row, "environments": [environments[n]]} for n, row in enumerate(rows)]
    return [{**shared, **row} for row in rows]


def columns_by_row(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What TRL passes for each row, without what comes from the trainer, as lists of one."""
    columns = {name: values for name, values in given.items() if name not in FROM_TRAINER}
    return [
        {name: [values[index]] for name, values in columns.items()}
        for index in range(len(given["completions"]))
    ]


def not_logged(name: str, value: Any) -> None:
    """A log function for calls whose log is dropped."""


def all_failed(name: str, errors: Mapping[int, str]) -> RewardError:
    return RewardError(
        f"reward function '{name}' failed on all {len(errors)} rows of a call, first with "
        f"{errors[0]}; fix it, then rerun with --resume"
    )


def joined(
    name: str, outputs: Sequence[Any], errors: Mapping[int, str], completions: Sequence[Any]
) -> list[Any]:
    """The rewards of calls with one row each; an error if all of them failed."""
    if len(errors) == len(outputs):
        raise all_failed(name, errors)
    rewards = []
    for output, completion in zip(outputs, completions, strict=True):
        rewards += checked(name, output, [completion])
    return rewards


def checked(name: str, output: Any, completions: Sequence[Any]) -> list[Reward]:
    """A reward or None for each completion; refuses any other output."""
    if isinstance(output, str | bytes | Mapping) or not isinstance(output, Sequence):
        output = _as_list(name, output)
    if len(output) != len(completions):
        raise RewardError(
            f"reward function '{name}' returned {len(output)} rewards for {len(completions)} "
            f"completions, the first of them {shown(completions[0])}; return one for each, then "
            "rerun with --resume"
        )
    return [_number(name, one, text) for one, text in zip(output, completions, strict=True)]


def _as_list(name: str, output: Any) -> list[Any]:
    """An array or a tensor as a list."""
    try:
        found = output.tolist()
    except AttributeError:
        found = None
    if not isinstance(found, list):
        raise RewardError(
            f"reward function '{name}' returned {shown(output)}, a {type(output).__name__}; return "
            "a list with one number or None for each completion, then rerun with --resume"
        )
    return found


def _number(name: str, value: Any, completion: Any) -> Reward:
    try:
        found = None if value is None else float(value)
    except (TypeError, ValueError, RuntimeError):
        found = math.inf
    if isinstance(value, str | bytes) or (found is not None and math.isinf(found)):
        raise RewardError(
            f"reward function '{name}' returned {shown(value)} for {shown(completion)}; return a "
            "finite number, or None for an ungraded completion, then rerun with --resume"
        )
    return None if found is None or math.isnan(found) else found


def shown(value: Any) -> str:
    """A value for a message: one line, not too long."""
    return shortened(repr(value), SHOWN)
