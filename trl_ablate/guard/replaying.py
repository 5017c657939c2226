"""The rules on a log that is complete: what they find, and which of them cannot look. No torch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trl_ablate.guard.arguments import GuardArguments
from trl_ablate.guard.rules import EARLY, LIKE_AT_FIRST, NONFINITE, Alert, Guard, Row, patience_of
from trl_ablate.metrics import GRAD_NORM, READ_BY

LOSING = (NONFINITE, "reward", "shortcut", "special_tokens", "no_variance")
"""Rules whose condition makes the compute useless for as long as it holds."""


@dataclass(frozen=True)
class Replay:
    alerts: list[Alert]
    unread: dict[str, str]
    """Rule -> the metric that the log lacks."""
    short: list[str]
    """Rules that could not have fired: they need more steps than the log has."""
    lost: tuple[str, int] | None = None
    """A rule that makes the compute useless, fired, and held from this step to the end."""


def replay(rows: Sequence[Row], arguments: GuardArguments) -> Replay:
    """All alerts of a log, in the order of its steps."""
    guard = Guard(arguments)
    alerts = [alert for row in rows for alert in guard.observe(row)]
    found = Replay(alerts, {}, [], _lost(guard, alerts, rows))
    for rule, metric in READ_BY.items():
        also = GRAD_NORM if rule == NONFINITE else metric
        count = sum(metric in row or also in row for row in rows)
        seen = guard.recent.count(metric) if rule in EARLY else count
        if guard.action_of(rule) == "off":
            continue
        if not count:
            found.unread[rule] = metric
        elif seen < _rows_needed(rule, arguments):
            found.short.append(rule)
    return found


def _rows_needed(rule: str, arguments: GuardArguments) -> int:
    """With how many rows a rule can fire at the earliest; GRPO steps of `EARLY`."""
    if rule in EARLY:
        return 2 * arguments.guard_window
    before = {"reward": 1} | dict.fromkeys(LIKE_AT_FIRST, arguments.guard_window)
    return before.get(rule, 0) + patience_of(rule, arguments)


def _lost(guard: Guard, alerts: Sequence[Alert], rows: Sequence[Row]) -> tuple[str, int] | None:
    """The first of the rules that fired and whose conditions then held to the end. Rewards without
    variance are no loss while other terms give a gradient, or `baseline: none` does."""
    fired = {alert.rule: alert.step for alert in alerts if alert.rule in LOSING}
    since = {rule: guard.holds_since(rule) for rule in fired}
    held = {rule: at for rule, at in since.items() if at is not None and at <= fired[rule]}
    if any(row.get(GRAD_NORM) for row in rows if row["step"] >= held.get("no_variance", math.inf)):
        del held["no_variance"]
    return min(held.items(), key=lambda one: one[1]) if held else None
