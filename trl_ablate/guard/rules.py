"""The guard: rules that detect a failing run from its own metrics. No torch.

Each rule reads the rows that a run logs, one after the other, and reports a problem. A setting
decides whether that warns, stops the run or does nothing. The rules compare values with the run's
own past, not with absolute limits, so that they work for a 0.4 M model and for a 7 B model.

`grad_norm` and `length_spread` are early warnings: when a run becomes unstable, they fire before
the reward falls. They compare the last steps with the run's usual level: that of the steps since
learning started, whose reward is at least some share of the best reward. Before that, gradient
norms and lengths change for good reasons. While a policy learns, its responses to one question
become similar; if their lengths start to differ again, it is losing what it learned. The other
rules report what has already happened.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from trl_ablate.guard.arguments import Action, GuardArguments
from trl_ablate.guard.recent_steps import RecentSteps, finite, least_mean, upper
from trl_ablate.metrics import (
    ANSWER,
    ENTROPY,
    FORMAT,
    GRAD_NORM,
    LENGTH,
    LENGTH_SPREAD,
    NO_VARIANCE,
    ONLY_SPECIAL,
    REWARD,
    SAMPLING_GAP,
    WATCHED_BY_RULES,
)

Row = Mapping[str, Any]

NONFINITE = "nonfinite"
"""The rule for a loss or gradient norm that is not a finite number: the weights are lost."""
EARLY = ("grad_norm", "spike", "length_spread")
"""Rules that compare the last GRPO steps with those before."""
RIGHT_FORMAT, FLAT, POOR = 0.9, 0.1, 0.5
"""Short responses are shortcuts if more than this share is in the right format, and the answer
mark (without one, the reward) rose by less than the second and is below the third."""


@dataclass(frozen=True)
class Reading:
    """The result of one rule on one row."""

    rule: str
    holds: bool
    value: float | None
    reference: float | None
    sentence: str
    patience: int = 1
    """For how many consecutive rows the condition must hold before the rule fires."""


@dataclass(frozen=True)
class Alert:
    """What a rule detected: a sentence for people, and numbers, if any, for programs."""

    rule: str
    action: Action
    step: int
    value: float | None
    reference: float | None
    sentence: str

    def numbers(self) -> dict[str, Any]:
        """The parts for programs: the rule, the step, and the two values it compared."""
        return {key: getattr(self, key) for key in ("rule", "step", "value", "reference")}


class Guard:
    """All rules on one run. `observe` receives the logged rows in order.

    A rule fires once when its condition has held for as many rows as its patience. It can fire
    again only after the condition has stopped holding.
    """

    def __init__(self, arguments: GuardArguments):
        self._arguments = arguments
        self._recent = RecentSteps(
            (GRAD_NORM, LENGTH_SPREAD),
            arguments.guard_window,
            arguments.guard_history,
            arguments.guard_learned,
        )
        self._first: dict[str, list[float]] = {}
        self._held: dict[str, int] = {}
        self._since: dict[str, int] = {}
        self._fired: set[str] = set()
        self._by_metric: dict[str, Callable[[float], Reading | None]] = {
            LENGTH: self._length,
            ENTROPY: self._entropy,
            REWARD: self._reward,
            SAMPLING_GAP: self._sampling,
            ONLY_SPECIAL: self._special_tokens,
            NO_VARIANCE: self._no_variance,
        }

    def observe(self, row: Row) -> list[Alert]:
        """The alerts that this row triggers."""
        if all(row.get(metric) is None for metric in WATCHED_BY_RULES):
            return []  # such as the row of an evaluation
        self._recent.see(row)
        step = int(row.get("step", 0))
        return [
            Alert(one.rule, action, step, one.value, one.reference, one.sentence)
            for one in self._readings(row)
            if (action := self.action_of(one.rule)) != "off" and self._speaks(one, step)
        ]

    def action_of(self, rule: str) -> Action:
        """What the settings ask for if a rule fires."""
        return getattr(self._arguments, f"guard_{rule}")

    def steps_with(self, metric: str) -> int:
        """How many of the GRPO steps that the early warnings look at have logged a metric."""
        return self._recent.count(metric)

    def holds_since(self, rule: str) -> int | None:
        """The step since which the condition of a rule has held in every row, if it holds."""
        return self._since[rule] if self._held.get(rule) else None

    def rearm(self) -> None:
        """Let rules that stop a run, and have fired, fire again. Those whose condition still holds
        do so after as many rows as their patience: someone has resumed the run."""
        for rule in self._fired:
            if self.action_of(rule) == "stop":
                self._held.pop(rule, None)

    def _speaks(self, reading: Reading, step: int) -> bool:
        held = self._held.get(reading.rule, 0) + 1 if reading.holds else 0
        self._held[reading.rule] = held
        if held == 1:
            self._since[reading.rule] = step
        if fires := held == reading.patience:
            self._fired.add(reading.rule)
        return fires

    def _readings(self, row: Row) -> Iterator[Reading]:
        yield _nonfinite(row)
        yield from self._grad_norm(finite(row, GRAD_NORM))
        yield from self._length_spread()
        yield from self._shortcut(row)
        for metric, rule in self._by_metric.items():
            value = row.get(metric)
            reading = None if value is None or math.isnan(value) else rule(value)
            if reading is not None:
                yield reading

    def _grad_norm(self, norm: float | None) -> Iterator[Reading]:
        norms = self._recent.compared(GRAD_NORM)
        if norms is None:
            return
        late, usual = upper(norms.late), upper(norms.usual)
        above = late > self._arguments.guard_grad_norm_factor * usual
        sentence = f"30 % of recent gradient norms are above {late:.3g}; {usual:.3g} is usual"
        yield Reading("grad_norm", above, late, usual, sentence)
        if norm is not None:
            far_above = norm > self._arguments.guard_spike_factor * usual
            sentence = f"the gradient norm is {norm:.3g}; values up to {usual:.3g} are usual"
            yield Reading("spike", far_above, norm, usual, sentence)

    def _length_spread(self) -> Iterator[Reading]:
        spreads = self._recent.compared(LENGTH_SPREAD)
        if spreads is None:
            return
        arguments = self._arguments
        late, least = fmean(spreads.late), least_mean(spreads.usual, arguments.guard_window)
        limit = max(least, arguments.guard_length_spread_least)
        wider = late > arguments.guard_length_spread_factor * limit
        sentence = f"responses to one question differ in length by {late:.1%}; it was {least:.1%}"
        yield Reading("length_spread", wider, late, least, sentence)

    def _length(self, length: float) -> Reading | None:
        first, factor = self._at_first(LENGTH, length), self._arguments.guard_length_factor
        if first is None:
            return None
        off = length * factor < first or length > first * factor
        sentence = f"responses have {length:.0f} tokens; at first they had {first:.0f}"
        return self._patiently("length", off, length, first, sentence)

    def _shortcut(self, row: Row) -> Iterator[Reading]:
        """The policy has learned the format and, before any working paid, to stop early."""
        mark = ANSWER if ANSWER in row else REWARD
        length, form, answers = (finite(row, name) for name in (LENGTH, FORMAT, mark))
        if length is None or form is None or answers is None:
            return
        first, right = self._at_first(FORMAT, length), self._at_first(ANSWER, answers)
        if first is None or right is None:
            return
        short = length < min(self._arguments.guard_shortcut_length, first / 2)
        holds = short and form > RIGHT_FORMAT and answers < min(right + FLAT, POOR)
        sentence = (
            f"responses have {length:.0f} tokens, at first {first:.0f}; the format mark is "
            f"{form:.3g}, the {mark.replace('_reward', ' mark')} {answers:.3g}"
        )
        yield self._patiently("shortcut", holds, length, first, sentence)

    def _entropy(self, entropy: float) -> Reading | None:
        first = self._at_first(ENTROPY, entropy)
        if first is None:
            return None
        low = entropy * self._arguments.guard_entropy_factor < first
        sentence = f"entropy is {entropy:.3g}; at first it was {first:.3g}"
        return self._patiently("entropy", low, entropy, first, sentence)

    def _reward(self, reward: float) -> Reading:
        best = self._recent.best_reward
        fell = best > 0 and reward * self._arguments.guard_reward_factor < best
        sentence = f"reward is {reward:.3g}; its best was {best:.3g}"
        return self._patiently("reward", fell, reward, best, sentence)

    def _sampling(self, gap: float) -> Reading | None:
        first, factor = self._at_first(SAMPLING_GAP, gap), self._arguments.guard_sampling_factor
        if first is None:
            return None
        wide = gap > max(self._arguments.guard_sampling_gap, factor * first)
        sentence = (
            f"the engine's log-probabilities differ from the trainer's by {gap:.2g}; at first by "
            f"{first:.2g}; the engine may not receive the new weights"
        )
        return self._patiently("sampling", wide, gap, first, sentence)

    def _special_tokens(self, share: float) -> Reading:
        sentence = f"{share:.0%} of the completions contain only special tokens"
        return self._patiently("special_tokens", share > 0.5, share, 0.5, sentence)

    def _no_variance(self, flat: float) -> Reading:
        steps = self._arguments.guard_no_variance_steps
        sentence = f"in {steps} logged rows no group had any variance in its rewards"
        return Reading("no_variance", flat >= 1.0, flat, 1.0, sentence, steps)

    def _patiently(
        self, rule: str, holds: bool, value: float, reference: float, sentence: str
    ) -> Reading:
        return Reading(rule, holds, value, reference, sentence, self._arguments.guard_patience)

    def _at_first(self, metric: str, value: float) -> float | None:
        """The median over the first window, once the window is full."""
        seen = self._first.setdefault(metric, [])
        if len(seen) < self._arguments.guard_window:
            seen.append(value)
            return None
        return statistics.median(seen)


def _nonfinite(row: Row) -> Reading:
    values = {key: row[key] for key in ("loss", GRAD_NORM) if key in row}
    broken = {k: v for k, v in values.items() if v is None or not math.isfinite(v)}
    what = " and ".join(broken) or "loss"
    return Reading(NONFINITE, bool(broken), None, None, f"{what} is not a finite number")
