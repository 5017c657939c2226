"""A user's reward function in worker processes that are killed when a row takes too long.

`reward_timeout` in a recipe chooses this. The function is imported by its path in every worker and
is called for one row at a time, so it has to grade a row without the others. What it logs with
`log_metric` and `log_extra` is dropped, and it gets no `trainer_state` and no `environments`.
"""

import base64
import json
import pickle
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trl_ablate.errors import ConfigurationError, RewardError
from trl_ablate.reward_specs import RewardSpec
from trl_ablate.rewards.grading.pool import Outcome, WorkerPool
from trl_ablate.rewards.own.calling import CallLog, Calls, Reward, all_failed, columns_by_row

WORKER_SCRIPT = Path(__file__).with_name("own_worker.py")
START_SECONDS = 120.0
NO_MEMORY_LIMIT = -1
NOT_PASSED = ("trainer_state", "environments")


@dataclass(frozen=True)
class Timed:
    """How many worker processes a function has, and how long one row may take."""

    workers: int
    timeout: float


def timed(calls: Calls, spec: RewardSpec, limits: Timed) -> Callable[..., list[Reward]]:
    """The function for TRL's `reward_funcs`, which calls the user's in worker processes."""
    if missing := [name for name in calls.required() if name in NOT_PASSED]:
        raise ConfigurationError(
            f"reward function '{calls.name}' needs {missing[0]}, which cannot be passed to worker "
            "processes; set reward_timeout to null, or give the argument a default"
        )
    program = (str(WORKER_SCRIPT), json.dumps({"spec": asdict(spec), "path": sys.path}))
    pool = WorkerPool(limits.workers, limits.timeout, NO_MEMORY_LIMIT, START_SECONDS, program)

    def reward(**given: Any) -> list[Reward]:
        outcomes = pool.run([(_packed(calls, row),) for row in columns_by_row(given)])
        return _rewards(calls, outcomes, given)

    reward.__name__ = calls.name
    return reward


def _packed(calls: Calls, row: Mapping[str, Any]) -> str:
    """A row as text. Only this process and its own workers write and read it."""
    try:
        return base64.b64encode(pickle.dumps(calls.arguments(row))).decode()
    except Exception as error:
        raise ConfigurationError(
            f"reward function '{calls.name}' has a reward_timeout, but a row cannot be passed to a "
            f"worker process ({error}); set reward_timeout to null"
        ) from error


def _rewards(calls: Calls, outcomes: list[Outcome], given: Mapping[str, Any]) -> list[Reward]:
    rewards: list[Reward] = []
    errors: dict[int, str] = {}
    for index, outcome in enumerate(outcomes):
        report = outcome.verdict or {}
        if "wrong" in report:
            raise RewardError(report["wrong"])
        rewards.append(report.get("reward"))
        if "error" in report:
            errors[index] = report["error"]
        elif not report and not outcome.timed_out:
            errors[index] = "its worker process ended"
    if len(errors) == len(outcomes):
        raise all_failed(calls.name, errors)
    log = CallLog(given)
    calls.settled(rewards, errors, log)
    log.counts(calls.name, {"timeouts": sum(outcome.timed_out for outcome in outcomes)})
    return rewards
