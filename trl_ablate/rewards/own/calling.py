"""A user's reward function as TRL calls it, with its errors kept to the rows that cause them.

TRL passes lists: prompts, completions, completion ids, and every column of the data set. If a call
raises, the function is called again for each row alone, and a row that raises again is ungraded
(None), which is not 0. None and NaN are ungraded, too. What is logged for a row alone is dropped.

An error on every row of a call, and rewards of the wrong number or type, are errors of the function
and not of a row: they raise a `RewardError` with one sentence.
"""

import inspect
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from trl_ablate.errors import RewardError, shortened
from trl_ablate.named_code import line_of, one_line

logger = logging.getLogger(__name__)

PER_ROW = ("prompts", "completions", "completion_ids")
LOGS = ("log_metric", "log_extra")
FROM_TRAINER = ("trainer_state", "environments", *LOGS)
END = os._exit
_calls = 0
"""How many are in progress: of two async functions, the first to begin may be the first to end."""

LARGEST = 3.4e38
"""Of what float32 holds, which rewards become."""
Reward = float | None


def not_logged(name: str, value: Any) -> None:
    """A log function for calls whose log is dropped."""


def raised(name: str, error: BaseException, file: str | None = None) -> RewardError:
    """The error of a run whose reward function raised; `file` is the function's."""
    line, where = line_of(error, file)
    return RewardError(
        f"reward function '{name}' raised {one_line(error)} (line {line} of {where}); fix it, then "
        "rerun with --resume"
    )


def log_counts(log_metric: Callable | None, counts: Mapping[str, int], of: str = "") -> None:
    """Log counts so that TRL's mean over the processes is their sum."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    for name, count in counts.items():
        if log_metric is not None:
            log_metric(f"grader/{of}{name}", float(count * processes))


@dataclass
class Calls:
    """How a function, plain or async, is called, and what it returned."""

    name: str  # of the reward, in metrics and messages
    function: Callable[..., Any]
    kwargs: Mapping[str, Any] = field(default_factory=dict)  # of the recipe, added to every call
    file: str | None = None  # to find the line that raised
    warned: bool = False

    def arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments that the function takes, of all that TRL gives and the recipe's own."""
        found = {**given, **self.kwargs}
        taken = inspect.signature(self.function).parameters.values()
        if any(one.kind is one.VAR_KEYWORD for one in taken):
            return found
        return {one.name: found[one.name] for one in taken if one.name in found}

    def required(self) -> list[str]:
        """The arguments that the function cannot be called without."""
        return [
            one.name
            for one in inspect.signature(self.function).parameters.values()
            if one.default is one.empty
            and one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
        ]

    def needed(self) -> list[str]:
        """The columns that the function cannot be called without."""
        given = (*PER_ROW, *FROM_TRAINER, *self.kwargs)
        return [name for name in self.required() if name not in given]

    def failure(self, error: BaseException, completion: Any) -> str:
        line, file = line_of(error, self.file)
        return f"{one_line(error)} (line {line} of {file}) on {shown(completion)}"

    def settled(
        self,
        rewards: list[Reward],
        errors: Mapping[int, str],
        given: Mapping[str, Any],
        call: str | None = None,
        **more: int,
    ) -> list[Reward]:
        """Log what is ungraded, and warn the first time; refuse a call without any success. `call`
        is the error of a call whose rows alone have none, which counts as one."""
        if errors and len(errors) == len(rewards):
            raise RewardError(
                f"reward function '{self.name}' failed on all {len(errors)} rows of a call, first "
                f"with {errors[0]}; fix it, then rerun with --resume"
            )
        counts = {"ungraded": rewards.count(None), "errors": len(errors) or int(bool(call)), **more}
        log_counts(given.get("log_metric"), counts, f"{self.name}/")
        counted = f"grader/{self.name}/errors"
        if errors:
            call = (
                f"{len(errors)} of {len(rewards)} rows, which are ungraded and counted in "
                f"{counted}; the first: {errors[min(errors)]}"
            )
        elif call is not None:
            call = (
                f"a call, but on none of its {len(rewards)} rows alone, so that the rewards are "
                f"wrong if it compares rows; {counted} counts the call: {call}"
            )
        if call is not None and not self.warned:
            self.warned = True
            logger.warning("reward function '%s' failed on %s", self.name, call)
        return rewards


def guarded(calls: Calls) -> Callable[..., Any]:
    """The function for TRL's `reward_funcs`; async if the user's function is."""
    is_async = inspect.iscoroutinefunction(calls.function) or inspect.iscoroutinefunction(
        calls.function.__call__
    )

    async def awaited(**given: Any) -> list[Reward]:
        return await _rewards(calls, given, is_async)

    def plain(**given: Any) -> list[Reward]:
        try:
            _rewards(calls, given, is_async).send(None)
        except StopIteration as done:  # nothing is awaited, so that the first step is the last
            return done.value
        raise AssertionError

    function = awaited if is_async else plain
    function.__name__ = calls.name
    return function


async def _rewards(calls: Calls, given: Mapping[str, Any], is_async: bool) -> list[Reward]:
    async def output_of(arguments: Mapping[str, Any]) -> Any:
        # Copies, because the function may change its lists.
        own = {name: one[:] if type(one) is list else one for name, one in arguments.items()}
        output = calls.function(**calls.arguments(own))
        return await output if is_async else output

    completions = given["completions"]
    outputs: list[tuple[Any, Sequence[Any]]] = []
    errors: dict[int, str] = {}
    failed: str | None = None
    with in_this_process(calls.name, calls.file):
        try:
            outputs.append((await output_of(given), completions))
        except Exception as error:
            failed = calls.failure(error, completions)
            for index, row in enumerate(_each_row(given)):
                try:
                    output = await output_of(row)
                except Exception as of_row:
                    output = [None]
                    errors[index] = calls.failure(of_row, completions[index])
                outputs.append((output, [completions[index]]))
    rewards = [one for output, texts in outputs for one in checked(calls.name, output, texts)]
    return calls.settled(rewards, errors, given, failed)


def _each_row(given: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The arguments of a call for each row alone; what a row logs is dropped."""
    shared = {name: given[name] for name in FROM_TRAINER if name in given}
    shared |= {name: not_logged for name in LOGS if name in shared}
    for index, row in enumerate(columns_by_row(given)):
        if shared.get("environments") is not None:
            row["environments"] = [given["environments"][index]]
        yield {**shared, **row}


def columns_by_row(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What TRL passes for each row, without what comes from the trainer, as lists of one."""
    columns = {name: values for name, values in given.items() if name not in FROM_TRAINER}
    return [
        {name: [values[index]] for name, values in columns.items()}
        for index in range(len(given["completions"]))
    ]


def checked(name: str, output: Any, completions: Sequence[Any]) -> list[Reward]:
    """A reward or None for each completion; refuses any other output. Arrays become lists."""
    found = output.tolist() if hasattr(output, "tolist") else output
    if isinstance(found, str | bytes) or not isinstance(found, Sequence):
        raise RewardError(
            f"reward function '{name}' returned {shown(output)}, a {type(output).__name__}; return "
            "a list with one number or None for each completion, then rerun with --resume"
        )
    if len(found) != len(completions):
        raise RewardError(
            f"reward function '{name}' returned {len(found)} rewards for {len(completions)} "
            f"completions, the first of them {shown(completions[0])}; return one for each, then "
            "rerun with --resume"
        )
    return [_number(name, one, text) for one, text in zip(found, completions, strict=True)]


def _number(name: str, value: Any, completion: Any) -> Reward:
    try:
        found = None if value is None else float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        found = math.inf
    if isinstance(value, str | bytes) or (found is not None and abs(found) > LARGEST):
        raise RewardError(
            f"reward function '{name}' returned {shown(value)} for {shown(completion)}; return a "
            "finite number, or None for an ungraded completion, then rerun with --resume"
        )
    return None if found is None or math.isnan(found) else found


def shown(value: Any) -> str:
    """A value for a message: one line, not too long."""
    return shortened(repr(value), 80)


@contextmanager
def in_this_process(name: str, file: str | None) -> Iterator[None]:
    """Raise a `RewardError` if the function `name` exits. A process that it has forked ends when it
    comes back from the function: it would train in the same folder."""
    global _calls
    own = os.getpid()

    def leave(code: int = 0) -> None:
        if os.getpid() == own:
            raise SystemExit(code)
        END(code)

    if _calls == 0:
        os._exit = leave  # pyright: ignore[reportAttributeAccessIssue]
    _calls += 1
    try:
        yield
    except SystemExit as error:
        if os.getpid() != own:
            END(error.code if isinstance(error.code, int) else int(error.code is not None))
        raise raised(name, error, file) from error
    finally:
        if os.getpid() != own:
            END(1)
        _calls -= 1
        if _calls == 0:
            os._exit = END
