"""What can be set about the guard: what each rule does, and its thresholds."""

from dataclasses import dataclass
from typing import Literal

from trl_ablate.errors import ConfigurationError
from trl_ablate.settings import check_ranges, setting

Action = Literal["off", "warn", "stop"]


@dataclass
class GuardArguments:
    """What each rule of the guard does, and its thresholds."""

    guard_nonfinite: Action = setting("stop", "Loss or gradient norm is NaN or infinite.")
    guard_grad_norm: Action = setting("warn", "Gradient norms of late are above what is usual.")
    guard_spike: Action = setting("warn", "A gradient norm is far above what is usual.")
    guard_length_spread: Action = setting(
        "warn", "Responses to one question differ more in length than they did."
    )
    guard_length: Action = setting("warn", "Responses become much shorter or longer than at first.")
    guard_entropy: Action = setting("warn", "Entropy falls to a fraction of what it was at first.")
    guard_reward: Action = setting("warn", "The reward falls far below its best.")
    guard_special_tokens: Action = setting("warn", "Completions hold nothing but special tokens.")
    guard_no_variance: Action = setting("warn", "No group has any variance in its rewards.")
    guard_sampling: Action = setting(
        "warn", "The engine's log-probabilities drift away from the trainer's."
    )
    guard_window: int = setting(10, "Steps that 'of late', or 'at first', is taken over.", least=2)
    guard_history: int = setting(100, "GRPO steps before those of late that show what is usual.")
    guard_learned: float = setting(
        0.33, "Share of the best reward below which a step is not usual.", least=0, most=1
    )
    guard_patience: int = setting(3, "Steps in a row that a rule must hold to speak.", least=1)
    guard_grad_norm_factor: float = setting(2.0, "Times the usual that gradient norms may be.")
    guard_spike_factor: float = setting(20.0, "Times the usual that a gradient norm may be.")
    guard_length_spread_factor: float = setting(
        1.75, "Times its least that the spread of lengths in a group may be."
    )
    guard_length_spread_least: float = setting(
        0.01,
        "Share of the mean length that the least spread counts as, where it is smaller.",
        least=0,
    )
    guard_length_factor: float = setting(2.0, "Times shorter or longer that responses may become.")
    guard_entropy_factor: float = setting(20.0, "Times smaller that entropy may become.")
    guard_reward_factor: float = setting(2.0, "Times smaller than its best that the reward may be.")
    guard_sampling_factor: float = setting(
        5.0, "Times its value at first that the engine's gap may be."
    )
    guard_sampling_gap: float = setting(
        0.02, "Mean gap of a token's log-probability below which nothing is said.", least=0
    )
    guard_no_variance_steps: int = setting(20, "Steps in a row without any variance.", least=1)

    def __post_init__(self):
        for name, value in vars(self).items():
            rule = name.removesuffix("_factor")
            if name.startswith("guard_") and rule != name and value <= 1:
                raise ConfigurationError(
                    f"{name} is {value}; it has to be more than 1 (off: {rule}: off)"
                )
        check_ranges(self)
        if self.guard_history < self.guard_window:
            raise ConfigurationError(
                f"guard_history {self.guard_history} has to be at least guard_window "
                f"{self.guard_window}: it shows what is usual"
            )
