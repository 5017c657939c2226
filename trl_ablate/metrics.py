"""Names of logged metrics that several subpackages read. Most are TRL's own."""

REWARD = "reward"
EVAL_REWARD = "eval_reward"
GRAD_NORM = "grad_norm"
ENTROPY = "entropy"
LENGTH = "completions/mean_length"
LENGTH_SPREAD = "completions/length_spread"
ONLY_SPECIAL = "completions/only_special"
NO_VARIANCE = "frac_reward_zero_std"
SAMPLING_GAP = "sampling/sampling_logp_difference/mean"


def stderr_of(metric: str) -> str:
    """The metric of its standard error: `eval_reward_stderr/level=3` for `eval_reward/level=3`."""
    name, slash, group = metric.partition("/")
    return f"{name}_stderr{slash}{group}"
