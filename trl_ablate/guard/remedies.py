"""What a run's alerts mean: what to try, and how much was computed after the run was lost."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from trl_ablate.guard.rules import Alert, Replay

LOWER_RATE = "resume from a checkpoint before this step with half of learning_rate"

REMEDIES = {
    "nonfinite": f"{LOWER_RATE}, in bf16 or fp32; check the rewards of this step",
    "grad_norm": f"{LOWER_RATE}, or with fewer optimizer steps per rollout batch",
    "spike": "lower max_grad_norm, and look at the completions of this step",
    "length_spread": LOWER_RATE,
    "shorter": "divide the loss by a constant (loss_type: dr_grpo), and subtract a baseline",
    "longer": "mask truncated completions (mask_truncated_completions) or penalise their length",
    "entropy": "raise epsilon_high (0.28 instead of 0.2), or halve learning_rate",
    "reward": f"{LOWER_RATE}; if the format is right and the answers are not, weigh answers more",
    "shortcut": "start again with another seed, the std of the group (scale_rewards: group), or an "
    "easier prompt; later steps have not recovered such a run",
    "special_tokens": "check the chat template, the EOS token and the stop strings",
    "no_variance": "take easier or harder questions, more generations per group, or a finer reward",
    "sampling": "check that the engine receives new weights; keep the importance sampling "
    "correction on",
}
"""Rule -> what to try, in TRL's names. `length` has two: for responses that became too short or too
long."""


def remedy(alert: Alert) -> str:
    """What to try after an alert, in one sentence."""
    if alert.rule == "length":
        return REMEDIES["shorter" if is_short(alert) else "longer"]
    return REMEDIES[alert.rule]


def is_short(alert: Alert) -> bool:
    """Whether a length that a rule compared is below its reference."""
    return (alert.value or 0.0) < (alert.reference or 0.0)


def verdict(
    rows: Sequence[Mapping[str, Any]],
    found: Replay,
    evidence: Callable[[Alert], Iterable[str]] = lambda alert: (),
) -> Iterator[str]:
    """The alerts, each rule's first one with a remedy and the `evidence` for it; the compute that
    was lost; what was not checked."""
    advised = set()
    for alert in found.alerts:
        yield f"step {alert.step}: {alert.rule} ({alert.action}): {alert.sentence}"
        if alert.rule not in advised:
            advised.add(alert.rule)
            yield f"  try: {remedy(alert)}"
            yield from (f"  {line}" for line in evidence(alert))
    if not found.alerts:
        yield "no rule fired"
    if found.lost is not None:
        yield lost_compute(rows, *found.lost)
    for rule, metric in found.unread.items():
        yield f"not checked: {rule}, because the log has no {metric}"
    if found.short:
        yield f"not checked: {', '.join(found.short)}, because the log has too few steps"


def lost_compute(rows: Sequence[Mapping[str, Any]], rule: str, step: int) -> str:
    """The share of the steps after the last row before a step, and of the time if it was logged."""
    last = rows[-1]["step"]
    before = max((row["step"] for row in rows if row["step"] < step), default=0)
    spent = seconds_by_step(rows)
    shares = [f"{(last - before) / last:.0%} of {last} steps"] if last else []
    if spent and (total := max(spent.values())) > 0:
        later = total - max((s for at, s in spent.items() if at < step), default=0.0)
        shares.append(f"{later / 3600:.2g} of {total / 3600:.2g} h")
    return f"no return after step {before} ({rule}): {', '.join(shares)} came after it"


def seconds_by_step(rows: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    """Step -> seconds since the start: `seconds`, or the sum of TRL's `step_time`."""
    given = {row["step"]: row["seconds"] for row in rows if row.get("seconds") is not None}
    if given:
        return given
    total, before, summed = 0.0, 0, {}
    for row in rows:
        if row.get("step_time") is not None:
            total += row["step_time"] * (row["step"] - before)
            before = row["step"]
            summed[before] = total
    return summed
