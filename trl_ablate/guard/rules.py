"""The guard: rules that detect a failing run from its own metrics. No torch.

Each rule reads the rows that a run logs, one after the other. A setting decides whether it warns,
stops the run or does nothing. The rules compare values with the run's own past, not with absolute
limits, so that they work for a 0.4 M model and for a 7 B model.

`grad_norm` and `length_spread` are early warnings: they compare the last steps with the run's usual
level, that of the steps since learning started, whose reward is at least some share of the best.
Before that, gradient norms and lengths change for good reasons.
"""

import math
import statistics
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean
from typing import Any

from trl_ablate import metrics
from trl_ablate.guard.arguments import Action, GuardArguments

Row = Mapping[str, Any]

NONFINITE = "nonfinite"
"""The rule for a loss or gradient norm that is not a finite number: the weights are lost."""
EARLY = ("grad_norm", "spike", "length_spread")
"""Rules that compare the last GRPO steps with those before."""
LIKE_AT_FIRST = ("length", "entropy", "shortcut", "sampling")
"""Rules that compare with the median of the first rows, a window of them."""
RIGHT_FORMAT, FLAT, POOR = 0.9, 0.1, 0.5
"""Short responses are shortcuts if more than this share is in the right format, and the answer
mark (without one, the reward) rose by less than the second and is below the third. Where it rose by
more, other lengths are no alert either."""


SIMPLE: dict[str, tuple[Callable[[float, float, GuardArguments], bool], str]] = {
    "length": (
        lambda now, then, a: max(now, then) > a.guard_length_factor * min(now, then),
        "responses have {now:.0f} tokens; at first they had {then:.0f}",
    ),
    "entropy": (
        lambda now, then, a: now * a.guard_entropy_factor < then,
        "entropy is {now:.3g}; at first it was {then:.3g}",
    ),
    "reward": (
        lambda now, then, a: then > 0 and now * a.guard_reward_factor < then,
        "reward is {now:.3g}; its best was {then:.3g}",
    ),
    "sampling": (
        lambda now, then, a: now > max(a.guard_sampling_gap, a.guard_sampling_factor * then),
        "the engine's log-probabilities differ from the trainer's by {now:.2g}; at first by "
        "{then:.2g}; the engine may not receive the new weights",
    ),
    "special_tokens": (
        lambda now, then, a: now > then,
        "{now:.0%} of the completions contain only special tokens",
    ),
    "no_variance": (
        lambda now, then, a: now >= then,
        "in {a.guard_no_variance_steps} logged rows no group had any variance in its rewards",
    ),
}
"""Rule on one metric -> whether it holds, and its sentence, of the value `now` and what it is
compared with: `then`, the first rows, the best reward, or a fixed share."""


Reading = tuple[str, bool, float | None, float | None, str]
"""Of a rule on one row: its name, whether it holds, the value, what it is compared with, and a
sentence."""


@dataclass(frozen=True)
class Alert:
    """What a rule detected: a sentence for people, and numbers, if any, for programs."""

    rule: str
    action: Action
    step: int
    value: float | None
    reference: float | None
    sentence: str


def patience_of(rule: str, arguments: GuardArguments) -> int:
    """For how many rows in a row a rule has to hold before it fires."""
    if rule == "no_variance":
        return arguments.guard_no_variance_steps
    return 1 if rule in (NONFINITE, *EARLY) else arguments.guard_patience


class Guard:
    """All rules on one run. `observe` receives the logged rows in order.

    A rule fires once when its condition has held for as many rows as its patience. It can fire
    again only after the condition has stopped holding.
    """

    def __init__(self, arguments: GuardArguments):
        self._arguments = arguments
        self.recent = RecentSteps(arguments)
        self._first: dict[str, list[float]] = {}
        self._held = dict.fromkeys(metrics.READ_BY, 0)
        self._since: dict[str, int] = {}

    def observe(self, row: Row) -> list[Alert]:
        if all(row.get(metric) is None for metric in metrics.WATCHED_BY_RULES):
            return []  # such as the row of an evaluation
        self.recent.see(row)
        step = int(row.get("step", 0))
        return [
            Alert(rule, action, step, value, reference, sentence)
            for rule, holds, value, reference, sentence in self._readings(row)
            if (action := self.action_of(rule)) != "off" and self._speaks(rule, holds, step)
        ]

    def action_of(self, rule: str) -> Action:
        return getattr(self._arguments, f"guard_{rule}")

    def holds_since(self, rule: str) -> int | None:
        """The step since which the condition of a rule has held in every row, if it holds."""
        return self._since[rule] if self._held[rule] else None

    def rearm(self) -> None:
        """Let rules that stop a run, have fired and still hold fire again, after as many rows as
        their patience: someone has resumed the run."""
        for rule, held in self._held.items():
            if self.action_of(rule) == "stop" and held >= patience_of(rule, self._arguments):
                self._held[rule] = 0

    def _speaks(self, rule: str, holds: bool, step: int) -> bool:
        held = self._held[rule] = self._held[rule] + 1 if holds else 0
        if held == 1:
            self._since[rule] = step
        return held == patience_of(rule, self._arguments)

    def _readings(self, row: Row) -> Iterator[Reading]:
        yield _nonfinite(row)
        yield from self._grad_norm(finite(row, metrics.GRAD_NORM))
        yield from self._length_spread()
        yield from self._shortcut(row)
        learns = self._learns(row)
        for rule in SIMPLE:
            value = row.get(metrics.READ_BY[rule])
            yield from self._simple(rule, value, fine=learns and rule == "length")

    def _grad_norm(self, norm: float | None) -> Iterator[Reading]:
        compared = self.recent.compared(metrics.GRAD_NORM)
        if compared is None:
            return
        late, usual = map(upper, compared)
        above = late > self._arguments.guard_grad_norm_factor * usual
        sentence = f"30 % of recent gradient norms are above {late:.3g}; {usual:.3g} is usual"
        yield "grad_norm", above, late, usual, sentence
        if norm is not None:
            far_above = norm > self._arguments.guard_spike_factor * usual
            sentence = f"the gradient norm is {norm:.3g}; values up to {usual:.3g} are usual"
            yield "spike", far_above, norm, usual, sentence

    def _length_spread(self) -> Iterator[Reading]:
        compared = self.recent.compared(metrics.LENGTH_SPREAD)
        if compared is None:
            return
        arguments = self._arguments
        late, least = fmean(compared[0]), least_mean(compared[1], arguments.guard_window)
        limit = max(least, arguments.guard_length_spread_least)
        wider = late > arguments.guard_length_spread_factor * limit
        sentence = f"responses to one question differ in length by {late:.1%}; it was {least:.1%}"
        yield "length_spread", wider, late, least, sentence

    def _shortcut(self, row: Row) -> Iterator[Reading]:
        """The policy has learned the format and, before any working paid, to stop early."""
        mark = mark_of(row)
        read = (metrics.LENGTH, metrics.FORMAT, mark)
        length, form, answers = (finite(row, metric) for metric in read)
        if length is None or form is None or answers is None:
            return
        first = self._at_first("length of a shortcut", length)
        right = self._at_first("answers of a shortcut", answers)
        if first is None or right is None:
            return
        short = length < min(self._arguments.guard_shortcut_length, first / 2)
        holds = short and form > RIGHT_FORMAT and answers < min(right + FLAT, POOR)
        sentence = (
            f"responses have {length:.0f} tokens, at first {first:.0f}; the format mark is "
            f"{form:.3g}, the {mark.replace('_reward', ' mark')} {answers:.3g}"
        )
        yield "shortcut", holds, length, first, sentence

    def _learns(self, row: Row) -> bool:
        answers = finite(row, mark_of(row))
        first = None if answers is None else self._at_first("answers", answers)
        return answers is not None and first is not None and answers >= first + FLAT

    def _simple(self, rule: str, value: float | None, *, fine: bool) -> Iterator[Reading]:
        holds, sentence = SIMPLE[rule]
        if value is None or math.isnan(value):
            return
        then = {"reward": self.recent.best_reward, "special_tokens": 0.5, "no_variance": 1.0}
        reference = self._at_first(rule, value) if rule in LIKE_AT_FIRST else then[rule]
        if reference is not None:
            text = sentence.format(now=value, then=reference, a=self._arguments)
            met = not fine and holds(value, reference, self._arguments)
            yield rule, met, value, reference, text

    def _at_first(self, what: str, value: float) -> float | None:
        """The median over the first window, once the window is full."""
        seen = self._first.setdefault(what, [])
        if len(seen) < self._arguments.guard_window:
            seen.append(value)
            return None
        return statistics.median(seen)


def mark_of(row: Row) -> str:
    """The metric that says how many answers are right."""
    return metrics.ANSWER if metrics.ANSWER in row else metrics.REWARD


def _nonfinite(row: Row) -> Reading:
    values = {key: row[key] for key in ("loss", metrics.GRAD_NORM) if key in row}
    broken = {k: v for k, v in values.items() if v is None or not math.isfinite(v)}
    what = " and ".join(broken) or "loss"
    return NONFINITE, bool(broken), None, None, f"{what} is not a finite number"


class RecentSteps:
    """The last GRPO steps, a window of them, those before, and the best reward so far."""

    def __init__(self, arguments: GuardArguments):
        self._window, self._learned = arguments.guard_window, arguments.guard_learned
        kept = self._window + arguments.guard_history
        self._steps: deque[tuple[float, dict[str, list[float]]]] = deque(maxlen=kept)
        """Reward, and each metric's value in every optimizer step that logged one."""
        self.best_reward = -math.inf

    def see(self, row: Row) -> None:
        """Add a logged row; a row with a reward starts a new GRPO step."""
        reward = finite(row, "reward")
        if reward is not None or not self._steps:
            self._steps.append((-math.inf if reward is None else reward, {}))
            self.best_reward = max(self.best_reward, self._steps[-1][0])
        for metric in (metrics.GRAD_NORM, metrics.LENGTH_SPREAD):
            value = finite(row, metric)
            no_gradient = value == 0 and metric == metrics.GRAD_NORM
            if value is not None and not no_gradient:
                self._steps[-1][1].setdefault(metric, []).append(value)

    def count(self, metric: str) -> int:
        """How many of the steps that the early warnings look at have logged a metric."""
        return sum(metric in values for _, values in self._steps)

    def compared(self, metric: str) -> tuple[list[float], list[float]] | None:
        """The values of the last steps, and of those before; None until both are a window long.
        Steps count whose reward is some share of the best one; all, where none is above 0 yet."""
        floor = self._learned * max(self.best_reward, 0.0)
        steps = [
            values[metric]
            for reward, values in self._steps
            if metric in values and max(reward, 0.0) >= floor
        ]
        late, before = steps[-self._window :], steps[: -self._window]
        if len(before) < self._window:
            return None
        return list(chain.from_iterable(late)), list(chain.from_iterable(before))


def finite(row: Row, metric: str) -> float | None:
    """The value of a metric in a row; None if it is missing or not finite."""
    value = row.get(metric)
    return value if value is not None and math.isfinite(value) else None


def upper(values: Sequence[float]) -> float:
    """The 70th percentile of the values (linear interpolation)."""
    return statistics.quantiles(values, n=10, method="inclusive")[6]


def least_mean(values: Sequence[float], window: int) -> float:
    """The lowest mean of `window` consecutive values; with fewer values, the mean of all."""
    starts = range(max(1, len(values) - window + 1))
    return min(fmean(values[start : start + window]) for start in starts)
