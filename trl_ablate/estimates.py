"""What an evaluation estimates from n samples of each of P prompts. Pure Python.

Samples of one prompt are not independent, so every mean is the mean over prompts of each prompt's
own mean, and its standard error that of P independent numbers. An ungraded sample is as if it had
not been drawn: its prompt is estimated from the others, and not at all if there are too few.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from trl_ablate.metrics import NO_VARIANCE

Row = dict
GRADED = ("reward", "format_reward", "answer_reward")
FULL_MARK = 1.0
"""An `answer_reward` of at least this is a success: shipped ones are 0 or their worth, 1 or 2."""


TRL_METRICS = (
    "reward_std",
    NO_VARIANCE,
    "num_tokens",
    *(f"completions/{which}_length" for which in ("mean", "min", "max")),
    *(f"completions/{which}_terminated_length" for which in ("mean", "min", "max")),
    "completions/clipped_ratio",
    "runtime",
    "samples_per_second",
    "steps_per_second",
)
"""What TRL logs at every evaluation, whatever the reward functions and tools are called."""

MAIN = ""
"""Key of the evaluation set whose metrics have no name of a set in theirs."""


def metric_name(name: str, key: str = MAIN, prefix: str = "eval") -> str:
    """`reward` of the main set is `eval_reward`, of the set gsm8k `eval_gsm8k_reward`."""
    return "_".join(part for part in (prefix, key, name) if part)


def metric_names(samples: int, keys: Iterable[str] = ()) -> list[str]:
    """Names of all metrics of an evaluation, for the main set and the named ones."""
    rates = [f"avg@{samples}", *(f"pass@{k}" for k in passes(samples))] if samples > 1 else []
    own = [*GRADED, "reward_stderr", *rates, "mean_length", "truncated", "ungraded"]
    each = [*own, *TRL_METRICS]
    return [metric_name(name, key) for key in (MAIN, *keys) for name in each]


def summary(rows: Sequence[Row], samples: int = 1) -> dict[str, float]:
    """The metrics of an evaluation: the mean over prompts of each `per_prompt` number.

    With `reward_stderr`. What no prompt has is absent.
    """
    values = per_prompt(rows, samples)
    means = {name: sum(values_P) / len(values_P) for name, values_P in values.items() if values_P}
    return {**means, "reward_stderr": standard_error(values["reward"])}


def standard_errors(rows: Sequence[Row], samples: int = 1) -> dict[str, float]:
    """The standard error of each mean in `summary`."""
    values = per_prompt(rows, samples)
    return {name: standard_error(values_P) for name, values_P in values.items() if values_P}


def per_prompt(rows: Sequence[Row], samples: int) -> dict[str, list[float]]:
    """Each prompt's own numbers; the `samples` rows of a prompt stand one after another.

    `reward`, `format_reward` and `answer_reward` of the graded samples, `mean_length` and
    `truncated` of all, `ungraded` as a share; with several samples also `avg@n` and `pass@k`.
    """
    prompts = [rows[start : start + samples] for start in range(0, len(rows), samples)]
    graded = {
        name: prompt_means([[row.get(name) for row in prompt] for prompt in prompts])
        for name in GRADED
    }
    rates = success_rates([list(map(success, prompt)) for prompt in prompts])
    return {
        **graded,
        **(rates if samples > 1 else {}),
        "mean_length": prompt_means([[row["length"] for row in prompt] for prompt in prompts]),
        "truncated": prompt_means([[row["truncated"] for row in prompt] for prompt in prompts]),
        "ungraded": prompt_means([[row["reward"] is None for row in one] for one in prompts]),
    }


def success(row: Row) -> bool | None:
    """Whether the answer has its full mark; without an `answer_reward`, whether there is a reward.

    None if the row is ungraded.
    """
    if "answer_reward" in row:
        mark = row["answer_reward"]
        return None if mark is None else mark >= FULL_MARK
    return None if row["reward"] is None else row["reward"] > 0


def success_rates(successes_PN: Sequence[Sequence[bool | None]]) -> dict[str, list[float]]:
    """`avg@n`, and `pass@k` for every power of two below n and for n, of each prompt.

    A prompt with fewer than k graded samples has no `pass@k`. `avg@n` is `pass@1`.
    """
    samples = max(map(len, successes_PN))
    graded_P = [[one for one in prompt if one is not None] for prompt in successes_PN]
    rates = {
        f"pass@{k}": [pass_at(k, len(one), sum(one)) for one in graded_P if len(one) >= k]
        for k in passes(samples)
    }
    return {f"avg@{samples}": rates["pass@1"], **rates}


def passes(samples: int) -> list[int]:
    """The k of `pass@k`: 6 -> [1, 2, 4, 6]."""
    return sorted({samples, *(2**power for power in range(samples.bit_length()))})


def pass_at(k: int, samples: int, successes: int) -> float:
    """Unbiased chance that k of the samples, drawn without replacement, hold a success.

    1 - C(n - c, k) / C(n, k) with n samples and c successes; k is at most n. (Chen et al. 2021,
    arXiv:2107.03374)
    """
    subsets = math.comb(samples, k)
    return (subsets - math.comb(samples - successes, k)) / subsets


def prompt_means(values_PN: Sequence[Sequence[float | None]]) -> list[float]:
    """Each prompt's mean over its graded samples; prompts without any are left out."""
    graded_P = [[value for value in prompt if value is not None] for prompt in values_PN]
    return [sum(prompt) / len(prompt) for prompt in graded_P if prompt]


def standard_error(means_P: Sequence[float]) -> float:
    """Standard error of the mean of P prompts (ddof 1); 0 of fewer than two."""
    if len(means_P) < 2:
        return 0.0
    mean = sum(means_P) / len(means_P)
    variance = sum((value - mean) ** 2 for value in means_P) / (len(means_P) - 1)
    return math.sqrt(variance / len(means_P))


def reward_metrics(
    rewards: Mapping[str, Sequence[float | None]],
    totals: Sequence[float | None],
    samples: int,
) -> dict[str, float | None]:
    """TRL's metrics of the rewards of a set, by TRL's names.

    Per reward function the mean and the standard deviation (ddof 1) over the completions that it
    graded; the deviation of the weighted sums `totals`; the share of questions whose samples all
    have the same. None where fewer are graded than it takes. A single sample has no deviation, as
    in TRL; of a question with a single graded sample it is unknown.
    """
    found: dict[str, float | None] = {}
    for name, values in rewards.items():
        graded = [value for value in values if value is not None]
        found[f"rewards/{name}/mean"] = sum(graded) / len(graded) if graded else None
        found[f"rewards/{name}/std"] = deviation(values)
    groups = [totals[start : start + samples] for start in range(0, len(totals), samples)]
    same = [samples == 1 or deviation(group) == 0 for group in groups]
    found["reward_std"] = deviation(totals)
    found[NO_VARIANCE] = sum(same) / len(same)
    return found


def deviation(values: Sequence[float | None]) -> float | None:
    """The standard deviation (ddof 1) of the graded values; None of fewer than two."""
    graded = [value for value in values if value is not None]
    return statistics.stdev(graded) if len(graded) > 1 else None


def merged(calls: Sequence[Mapping[str, float]], counts: Sequence[int]) -> dict[str, float | None]:
    """Metrics of several calls as those of all their completions: means weighted by `counts`.

    `tools/failure_frequency` is a share of tool calls, not of completions, and weighted by these.
    A call that does not have a metric, or has NaN, takes no part; None where no call has it.
    """
    found: dict[str, float | None] = {}
    for name in dict.fromkeys(name for call in calls for name in call):
        known = [
            (call[name], count * _calls_per_row(name, call))
            for call, count in zip(calls, counts, strict=True)
            if not math.isnan(call.get(name, math.nan))
        ]
        weight = sum(count for _, count in known)
        found[name] = sum(value * count for value, count in known) / weight if weight else None
        if known and not weight:  # no tool was called
            found[name] = 0.0
    return found


def _calls_per_row(name: str, call: Mapping[str, float]) -> float:
    return call["tools/call_frequency"] if name == "tools/failure_frequency" else 1.0
