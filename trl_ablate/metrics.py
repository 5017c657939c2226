"""Names of logged metrics that several subpackages read. Most are TRL's own."""

import re

REWARD = "reward"
EVAL_REWARD = "eval_reward"
GRAD_NORM = "grad_norm"
ENTROPY = "entropy"
LENGTH = "completions/mean_length"
LENGTH_SPREAD = "completions/length_spread"
FORMAT = "format_reward"
ANSWER = "answer_reward"
ONLY_SPECIAL = "completions/only_special"
NO_VARIANCE = "frac_reward_zero_std"
TURNS = "tools/turns"
GENERATED_TOKENS = "rollouts/generated_tokens"
SAMPLING_GAP = "sampling/sampling_logp_difference/mean"

READ_BY = {
    "nonfinite": "loss",  # and GRAD_NORM
    "grad_norm": GRAD_NORM,
    "spike": GRAD_NORM,
    "length_spread": LENGTH_SPREAD,
    "length": LENGTH,
    "entropy": ENTROPY,
    "reward": REWARD,
    "shortcut": FORMAT,
    "special_tokens": ONLY_SPECIAL,
    "no_variance": NO_VARIANCE,
    "sampling": SAMPLING_GAP,
}
"""Rule of the guard -> the metric that it reads."""

WATCHED_BY_RULES = frozenset(READ_BY.values())
"""Metrics that the rules of the guard read."""

OTHER_NAMES = {
    "loss/policy_avg": "loss",
    "mean_response_length": LENGTH,
    "mean_token_entropy": ENTROPY,
    "objective/scores": REWARD,
    "policy/entropy_avg": ENTROPY,
    "token_entropy": ENTROPY,
}
"""Names of TRL's former PPO trainer, and of others, without a tracker's `train/` -> TRL's."""

LOWER_PARTS = (
    "truncated", "ungraded", "stderr", "/std", "clipped_ratio", "runtime", "zero_std",
)  # fmt: skip
"""Parts of the names of metrics that are better where they are lower."""
LOWER_WORDS = {
    "loss", "perplexity", "ppl", "bpb", "kl", "nll", "error", "mae", "mse", "rmse", "wer", "cer",
}  # fmt: skip
"""Whole words of such names."""
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def is_better_lower(metric: str) -> bool:
    words = {word.lower() for word in WORD.findall(metric)}
    return any(part in metric for part in LOWER_PARTS) or bool(LOWER_WORDS & words)


def stderr_of(metric: str) -> str:
    """The metric of its standard error: `eval_reward_stderr/level=3` for `eval_reward/level=3`."""
    name, slash, group = metric.partition("/")
    return f"{name}_stderr{slash}{group}"


def translated(metric: str) -> str:
    """A tracker's name as TRL logs it: `eval/reward` -> `eval_reward`, `train/loss` -> `loss`."""
    if metric.startswith("eval/"):
        return "eval_" + metric.removeprefix("eval/")
    name = metric.removeprefix("train/")
    return OTHER_NAMES.get(name, name)
