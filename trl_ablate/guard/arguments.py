"""The settings of the guard: the action of each rule, and its thresholds."""

from dataclasses import dataclass, fields
from typing import Literal

from trl_ablate.errors import ConfigurationError
from trl_ablate.settings import check_choices, check_ranges, setting

Action = Literal["off", "warn", "stop"]


@dataclass
class GuardArguments:
    """The action of each rule of the guard, and its thresholds."""

    guard_nonfinite: Action = setting("stop", "Loss or gradient norm is NaN or infinite.")
    guard_grad_norm: Action = setting("warn", "Recent gradient norms are above their usual level.")
    guard_spike: Action = setting("warn", "A gradient norm is far above the usual level.")
    guard_length_spread: Action = setting(
        "warn", "Responses to one question differ more in length than before."
    )
    guard_length: Action = setting("warn", "Responses become much shorter or longer than at first.")
    guard_entropy: Action = setting("warn", "Entropy falls to a fraction of its first value.")
    guard_reward: Action = setting("warn", "The reward falls far below its best.")
    guard_shortcut: Action = setting(
        "warn", "Responses are short, in the right format, and wrong: the working is gone."
    )
    guard_special_tokens: Action = setting(
        "warn", "More than half of the completions contain only special tokens."
    )
    guard_no_variance: Action = setting("warn", "No group has any variance in its rewards.")
    guard_sampling: Action = setting(
        "warn", "The engine's log-probabilities drift away from the trainer's."
    )
    guard_window: int = setting(
        10,
        "Number of logged rows, steps if each is logged, that count as recent, and as the start of "
        "the run.",
        least=2,
    )
    guard_history: int = setting(
        100, "Logged GRPO steps before the recent ones that define the usual level."
    )
    guard_learned: float = setting(
        0.33, "Share of the best reward above which a step counts as usual.", least=0, most=1
    )
    guard_patience: int = setting(
        3,
        "Rows for which length, entropy, reward, shortcut, special_tokens and sampling must hold "
        "before they fire.",
        least=1,
    )
    guard_grad_norm_factor: float = setting(
        2.0, "Highest allowed ratio of recent gradient norms to their usual level.", above=1
    )
    guard_spike_factor: float = setting(
        20.0, "Highest allowed ratio of one gradient norm to the usual level.", above=1
    )
    guard_length_spread_factor: float = setting(
        1.75,
        "Highest allowed ratio of the spread of lengths in a group to its lowest value.",
        above=1,
    )
    guard_length_spread_least: float = setting(
        0.01, "Smallest value used as the lowest spread, as a share of the mean length.", least=0
    )
    guard_length_factor: float = setting(
        2.0, "How many times shorter or longer than at first responses may become.", above=1
    )
    guard_entropy_factor: float = setting(
        20.0, "How many times smaller than at first entropy may become.", above=1
    )
    guard_reward_factor: float = setting(
        2.0, "How many times smaller than its best value the reward may be.", above=1
    )
    guard_shortcut_length: float = setting(
        30.0, "Tokens below which responses, half as long as at first, may be shortcuts.", least=0
    )
    guard_sampling_factor: float = setting(
        5.0, "Highest allowed ratio of the engine's gap to its first value.", above=1
    )
    guard_sampling_gap: float = setting(
        0.02, "Mean gap of a token's log-probability below which the rule never fires.", least=0
    )
    guard_no_variance_steps: int = setting(
        20, "Logged rows in a row without any variance.", least=1
    )

    def __post_init__(self):
        check_choices(self, GuardArguments)
        for one in fields(GuardArguments):
            name, value, kind = one.name, getattr(self, one.name), type(one.default)
            if kind is not str and (type(value) is bool or not isinstance(value, (int, kind))):
                what = "a whole number" if kind is int else "a number"
                raise ConfigurationError(f"{name} is {value!r}; it has to be {what}")
        check_ranges(self)
        if self.guard_history < self.guard_window:
            raise ConfigurationError(
                f"guard_history {self.guard_history} has to be at least guard_window "
                f"{self.guard_window}, because its steps define the usual level"
            )
