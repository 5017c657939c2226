"""The guard's rules over a log that is already complete, and which of them the log allows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trl_ablate.guard.arguments import GuardArguments
from trl_ablate.guard.rules import Alert, Guard
from trl_ablate.metrics import READ_BY


@dataclass(frozen=True)
class Replay:
    """What the rules found in a log, and which rules could not look."""

    alerts: list[Alert]
    unread: dict[str, str]
    """Rule -> the metric that the log lacks."""
    short: list[str]
    """Rules that compare with the first steps, or with earlier ones, of which there are too few."""


def replay(rows: Sequence[Mapping[str, Any]], arguments: GuardArguments) -> Replay:
    """All alerts of a log, in the order of its steps."""
    guard = Guard(arguments)
    alerts = [alert for row in rows for alert in guard.observe(row)]
    counts = {metric: sum(metric in row for row in rows) for metric in READ_BY.values()}
    window = arguments.guard_window
    needed: dict[str, int] = dict.fromkeys(("grad_norm", "spike", "length_spread"), 2 * window)
    needed |= dict.fromkeys(("length", "entropy", "sampling"), window + 1)
    on = {rule: metric for rule, metric in READ_BY.items() if guard.action_of(rule) != "off"}
    return Replay(
        alerts,
        unread={rule: metric for rule, metric in on.items() if not counts[metric]},
        short=[rule for rule, metric in on.items() if 0 < counts[metric] < needed.get(rule, 1)],
    )
