"""The rules on a log that is complete: what they find, and which of them cannot look. No torch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trl_ablate.guard.arguments import GuardArguments
from trl_ablate.guard.rules import EARLY, NONFINITE, Alert, Guard, Row
from trl_ablate.metrics import GRAD_NORM, READ_BY

LOSING = (NONFINITE, "reward", "shortcut", "special_tokens", "no_variance")
"""Rules whose condition makes the compute useless for as long as it holds."""


@dataclass(frozen=True)
class Replay:
    """What the rules found in a log, and which rules could not look."""

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
    counts = {metric: sum(metric in row for row in rows) for metric in READ_BY.values()}
    counts[READ_BY[NONFINITE]] = sum("loss" in row or GRAD_NORM in row for row in rows)
    needed = _rows_needed(arguments)
    on = {rule: metric for rule, metric in READ_BY.items() if guard.action_of(rule) != "off"}
    seen = {rule: guard.steps_with(metric) if rule in EARLY else counts[metric]
            for rule, metric in on.items()}  # fmt: skip
    return Replay(
        alerts,
        unread={rule: metric for rule, metric in on.items() if not counts[metric]},
        short=[rule for rule, metric in on.items() if counts[metric] and seen[rule] < needed[rule]],
        lost=_lost(guard, alerts, rows),
    )


def _rows_needed(arguments: GuardArguments) -> dict[str, int]:
    """Each rule, and with how many rows it can fire at the earliest; GRPO steps of `EARLY`."""
    window, patience = arguments.guard_window, arguments.guard_patience
    needed = dict.fromkeys(READ_BY, 1) | dict.fromkeys(EARLY, 2 * window)
    needed |= dict.fromkeys(("length", "entropy", "sampling", "shortcut"), window + patience)
    needed |= {"reward": 1 + patience, "special_tokens": patience}
    return needed | {"no_variance": arguments.guard_no_variance_steps}


def _lost(guard: Guard, alerts: Sequence[Alert], rows: Sequence[Row]) -> tuple[str, int] | None:
    """The first of the rules that fired and whose conditions then held to the end. Rewards without
    variance are no loss while other terms give a gradient, or `baseline: none` does."""
    fired = {alert.rule: alert.step for alert in alerts if alert.rule in LOSING}
    since = {rule: guard.holds_since(rule) for rule in fired}
    held = {rule: at for rule, at in since.items() if at is not None and at <= fired[rule]}
    if any(row.get(GRAD_NORM) for row in rows if row["step"] >= held.get("no_variance", math.inf)):
        del held["no_variance"]
    return min(held.items(), key=lambda one: one[1]) if held else None
