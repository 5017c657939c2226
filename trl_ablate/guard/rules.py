"""The guard: rules that see a run go wrong in its own metrics. No torch.

Each rule reads the rows that a run logs, one after the other, and says when something is off.
Whether that warns, stops the run or does nothing is a setting. The rules look at ratios to the
run's own past, not at absolute values, so that they mean the same for a 0.4 M and for a 7 B model.

`grad_norm` and `length_spread` are early warnings: where instability grows, they speak before the
reward has fallen. They compare the last steps with those since learning set in. As a policy learns,
its responses to one question grow alike; where they come to differ in length again, it is losing
what it had learned. The other rules say that something has happened.
"""

import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from trl_ablate.guard.arguments import Action, GuardArguments
from trl_ablate.guard.recent import RecentSteps, least_mean, upper

GRAD_NORM = "grad_norm"
LENGTH = "completions/mean_length"
LENGTH_SPREAD = "completions/length_spread"

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Alert:
    """What a rule saw: a sentence for a person, numbers (if they are any) for a program."""

    rule: str
    action: Action
    step: int
    value: float | None
    reference: float | None
    sentence: str

    def numbers(self) -> dict[str, Any]:
        """What a program wants to know: which rule, where, and what it compared."""
        return {key: getattr(self, key) for key in ("rule", "step", "value", "reference")}


class Guard:
    """All rules over one run. `observe` takes the logged rows in order.

    A rule speaks once when its condition has held for its patience, and again only after the
    condition has ceased.
    """

    def __init__(self, arguments: GuardArguments):
        self._arguments = arguments
        self._recent = RecentSteps(
            (GRAD_NORM, LENGTH_SPREAD),
            arguments.guard_window,
            arguments.guard_history,
            arguments.guard_learned,
        )
        self._first_lengths: list[float] = []
        self._first_entropies: list[float] = []
        self._first_gaps: list[float] = []
        self._held: dict[str, int] = {}

    def observe(self, row: Row) -> list[Alert]:
        """The alerts that this row sets off."""
        if GRAD_NORM not in row and "loss" not in row:
            return []
        self._recent.see(row)
        step = int(row.get("step", 0))
        return [
            Alert(rule, action, step, value, reference, sentence)
            for rule, holds, patience, value, reference, sentence in self._rules(row)
            if (action := self._action(rule)) != "off" and self._speaks(rule, holds, patience)
        ]

    def _action(self, rule: str) -> Action:
        return getattr(self._arguments, f"guard_{rule}")

    def _speaks(self, rule: str, holds: bool, patience: int) -> bool:
        self._held[rule] = self._held.get(rule, 0) + 1 if holds else 0
        return self._held[rule] == patience

    def _rules(self, row: Row) -> Iterator[tuple[str, bool, int, float | None, float | None, str]]:
        """(rule, whether it holds now, its patience, value, reference, sentence)."""
        yield from self._nonfinite(row)
        yield from self._grad_norm()
        yield from self._length_spread()
        yield from self._length(row)
        yield from self._entropy(row)
        yield from self._reward(row)
        yield from self._sampling(row)
        yield from self._outputs(row)

    def _nonfinite(self, row: Row):
        values = {key: row[key] for key in ("loss", GRAD_NORM) if key in row}
        broken = {k: v for k, v in values.items() if v is None or not math.isfinite(v)}
        what = " and ".join(broken) or "loss"
        yield "nonfinite", bool(broken), 1, None, None, f"{what} is not a finite number"

    def _grad_norm(self):
        norms = self._recent.compared(GRAD_NORM)
        if norms is not None:
            late, usual, last = upper(norms.late), upper(norms.usual), norms.late[-1]
            yield (
                "grad_norm",
                late > self._arguments.guard_grad_norm_factor * usual,
                1,
                late,
                usual,
                f"three in ten gradient norms of late are above {late:.3g}; {usual:.3g} is usual",
            )
            yield (
                "spike",
                last > self._arguments.guard_spike_factor * usual,
                1,
                last,
                usual,
                f"the gradient norm is {last:.3g}; up to {usual:.3g} is usual",
            )

    def _length_spread(self):
        spreads = self._recent.compared(LENGTH_SPREAD)
        if spreads is not None:
            arguments = self._arguments
            late, least = fmean(spreads.late), least_mean(spreads.usual, arguments.guard_window)
            limit = max(least, arguments.guard_length_spread_least)
            yield (
                "length_spread",
                late > arguments.guard_length_spread_factor * limit,
                1,
                late,
                least,
                f"responses to one question differ in length by {late:.1%}; it was {least:.1%}",
            )

    def _length(self, row: Row):
        length = row.get(LENGTH)
        if length is None:
            return
        first = self._at_first(self._first_lengths, length)
        if first is not None:
            factor = self._arguments.guard_length_factor
            off = length * factor < first or length > first * factor
            yield (
                "length",
                off,
                self._arguments.guard_patience,
                length,
                first,
                (f"responses have {length:.0f} tokens; at first they had {first:.0f}"),
            )

    def _entropy(self, row: Row):
        entropy = row.get("entropy")
        if entropy is None:
            return
        first = self._at_first(self._first_entropies, entropy)
        if first is not None:
            low = entropy * self._arguments.guard_entropy_factor < first
            yield (
                "entropy",
                low,
                self._arguments.guard_patience,
                entropy,
                first,
                (f"entropy is {entropy:.3g}; at first it was {first:.3g}"),
            )

    def _reward(self, row: Row):
        reward = row.get("reward")
        if reward is None:
            return
        best = self._recent.best_reward
        fell = reward * self._arguments.guard_reward_factor < best
        yield (
            "reward",
            fell and best > 0,
            self._arguments.guard_patience,
            reward,
            best,
            (f"reward is {reward:.3g}; its best was {best:.3g}"),
        )

    def _sampling(self, row: Row):
        gap = row.get("sampling/sampling_logp_difference/mean")
        if gap is None:
            return
        first = self._at_first(self._first_gaps, gap)
        if first is not None:
            limit = max(
                self._arguments.guard_sampling_gap, self._arguments.guard_sampling_factor * first
            )
            yield (
                "sampling",
                gap > limit,
                self._arguments.guard_patience,
                gap,
                first,
                (
                    f"the engine's log-probabilities are {gap:.2g} off the trainer's; at first it "
                    f"was {first:.2g}: it may not be given the new weights"
                ),
            )

    def _outputs(self, row: Row):
        special = row.get("completions/only_special")
        if special is not None:
            yield (
                "special_tokens",
                special > 0.5,
                self._arguments.guard_patience,
                special,
                0.5,
                (f"{special:.0%} of the completions hold nothing but special tokens"),
            )
        flat = row.get("frac_reward_zero_std")
        if flat is not None:
            steps = self._arguments.guard_no_variance_steps
            yield (
                "no_variance",
                flat >= 1.0,
                steps,
                flat,
                1.0,
                (f"for {steps} steps no group had any variance in its rewards: nothing is learned"),
            )

    def _at_first(self, seen: list[float], value: float) -> float | None:
        """The median over the first window, once that is full."""
        if len(seen) < self._arguments.guard_window:
            seen.append(value)
            return None
        return statistics.median(seen)
