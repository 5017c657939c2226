"""Estimates of an evaluation from n samples of each of P prompts. Pure Python.

Samples of one prompt are not independent. So each metric is first averaged within a prompt, then
over prompts, and its standard error is that of P independent numbers. Ungraded samples are left
out: a prompt is estimated from its graded samples, and skipped if it has too few of them.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from trl_ablate.errors import ConfigurationError
from trl_ablate.metrics import NO_VARIANCE

Row = dict
GRADED = ("reward", "format_reward", "answer_reward")
FULL_MARK = 1.0
"""An `answer_reward` of at least this is a success (shipped: 0 if wrong, 1 or 2 if right)."""

TRL_METRICS = (
    *("reward_std", NO_VARIANCE, "num_tokens", "completions/clipped_ratio"),
    *(f"completions/{which}_length" for which in ("mean", "min", "max")),
    *(f"completions/{which}_terminated_length" for which in ("mean", "min", "max")),
    *("runtime", "samples_per_second", "steps_per_second"),
)
"""The metrics of TRL's evaluation whose names do not depend on reward functions or tools."""
GROUP = "group"
"""Key of a row's group: the value that its question has in the column `eval_by`."""
MOST_GROUPS = 50
WHOLE_SET_ONLY = ("mean_length", "truncated", "ungraded")
"""Metrics that groups do not have, as they do not measure answers."""
MAIN = ""
"""Key of the main evaluation set: its metric names contain no set name."""


def metric_name(name: str, key: str = MAIN, prefix: str = "eval") -> str:
    """`eval_reward` for `reward` of the main set; `eval_gsm8k_reward` for the set gsm8k."""
    return "_".join(part for part in (prefix, key, name) if part)


def metric_names(samples: int, keys: Iterable[str] = (), *, one_shot: bool = True) -> list[str]:
    """Names of all metrics of an evaluation, for the main set and the named ones. TRL's evaluation
    has no `summary`: of it only what reward functions log."""
    rates = [f"avg@{samples}", *(f"pass@{k}" for k in passes(samples))] if samples > 1 else []
    own = ["reward_stderr", *rates, *WHOLE_SET_ONLY] if one_shot else []
    each = [*GRADED, *own, *TRL_METRICS]
    return [metric_name(name, key) for key in (MAIN, *keys) for name in each]


def summary(rows: Sequence[Row], samples: int = 1) -> dict[str, float]:
    """The metrics of an evaluation: the mean over prompts of each `per_prompt` number, if any has
    it, and `reward_stderr`."""
    values = per_prompt(rows, samples)
    means = {name: sum(values_P) / len(values_P) for name, values_P in values.items() if values_P}
    return {**means, "reward_stderr": standard_error(values["reward"])}


def standard_errors(rows: Sequence[Row], samples: int = 1) -> dict[str, float]:
    values = per_prompt(rows, samples)
    return {name: standard_error(values_P) for name, values_P in values.items() if values_P}


def by_group(rows: Sequence[Row], samples: int, column: str | None) -> dict[str, float]:
    """The metrics of each group, as `reward/level=3`, in the order of the groups' names."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if GROUP in row:
            groups.setdefault(row[GROUP], []).append(row)
    if len(groups) > MOST_GROUPS:
        raise ConfigurationError(
            f"eval_by is '{column}', which has {len(groups)} values in the eval questions, such as "
            f"'{min(groups)}'; name a column with at most {MOST_GROUPS}"
        )
    return {
        f"{name}/{column}={group}": value
        for group in sorted(groups)
        for name, value in summary(groups[group], samples).items()
        if name not in WHOLE_SET_ONLY
    }


def per_prompt(rows: Sequence[Row], samples: int) -> dict[str, list[float]]:
    """The numbers of each prompt, whose `samples` rows are adjacent: the rewards, as means over its
    graded samples, `avg@n` and `pass@k` of several samples, and means over all samples."""
    prompts = [rows[start : start + samples] for start in range(0, len(rows), samples)]

    def means(value: Callable[[Row], float | None]) -> list[float]:
        """Of each prompt over its graded samples; prompts without graded samples are left out."""
        graded_P = [
            [one for row in prompt if (one := value(row)) is not None] for prompt in prompts
        ]
        return [sum(prompt) / len(prompt) for prompt in graded_P if prompt]

    def marked(row: Row, name: str) -> float | None:
        return None if row["reward"] is None else row.get(name)

    rates = success_rates([list(map(success, prompt)) for prompt in prompts])
    return {
        **{name: means(lambda row, name=name: marked(row, name)) for name in GRADED},
        **(rates if samples > 1 else {}),
        "mean_length": means(lambda row: row["length"]),
        "truncated": means(lambda row: row["truncated"]),
        "ungraded": means(lambda row: row["reward"] is None),
    }


def asked(row: Row) -> str:
    """The question of a row, or its prompt if it has none: what its pass rate is found by."""
    return str(row.get("question") or row.get("prompt"))


def pass_rates(rows: Sequence[Row], samples: int = 1) -> list[dict[str, Any]]:
    """For each question (or else prompt) how many of its samples were graded, and the share of
    successes in them."""
    found = []
    for start in range(0, len(rows), samples):
        graded = [one for row in rows[start : start + samples] if (one := success(row)) is not None]
        rate = sum(graded) / len(graded) if graded else None
        found.append({"question": asked(rows[start]), "pass_rate": rate, "graded": len(graded)})
    return found


def success(row: Row) -> bool | None:
    """Whether `answer_reward` is a full mark; in rows without it, whether `reward` is above 0. None
    if the row is ungraded."""
    if "answer_reward" in row:
        mark = row["answer_reward"]
        return None if mark is None else mark >= FULL_MARK
    return None if row["reward"] is None else row["reward"] > 0


def success_rates(successes_PN: Sequence[Sequence[bool | None]]) -> dict[str, list[float]]:
    """`avg@n` and `pass@k` of each prompt, for k = n and every power of two below n. A prompt with
    fewer than k graded samples has no `pass@k`. `avg@n` equals `pass@1`."""
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
    """Unbiased probability of a success among k of the samples, drawn without replacement:
    1 - C(n - c, k) / C(n, k) with n ≥ k samples and c successes (arXiv:2107.03374)."""
    subsets = math.comb(samples, k)
    return (subsets - math.comb(samples - successes, k)) / subsets


def standard_error(means_P: Sequence[float]) -> float:
    """Standard error of the mean of P prompts (ddof 1); 0 for fewer than two."""
    if len(means_P) < 2:
        return 0.0
    mean = sum(means_P) / len(means_P)
    variance = sum((value - mean) ** 2 for value in means_P) / (len(means_P) - 1)
    return math.sqrt(variance / len(means_P))


def reward_metrics(
    rewards: Mapping[str, Sequence[float | None]], totals: Sequence[float | None], samples: int
) -> dict[str, float | None]:
    """TRL's metrics of the rewards of a set, by TRL's names: mean and standard deviation (ddof 1)
    of each reward function over the completions it graded, None if there are too few; the deviation
    of the weighted sums `totals`, and the share of questions whose samples all have the same sum.

    With one sample per question, that share is 1, as in TRL; with several, a question with fewer
    than two graded samples does not count as equal.
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
    """The standard deviation (ddof 1) of the graded values; None for fewer than two, or if one is
    not finite."""
    graded = [value for value in values if value is not None]
    defined = len(graded) > 1 and all(map(math.isfinite, graded))
    return statistics.stdev(graded) if defined else None


def merged(calls: Sequence[Mapping[str, float]], counts: Sequence[int]) -> dict[str, float | None]:
    """The metrics of several calls as those of all completions: means over what they are means of,
    and sums of what the grader counts. A call in which a metric is missing or NaN is left out;
    None if no call has the metric."""
    found: dict[str, float | None] = {}
    for name in dict.fromkeys(name for call in calls for name in call):
        known = [
            (call[name], count * _per_row(name, call))
            for call, count in zip(calls, counts, strict=True)
            if not math.isnan(call.get(name, math.nan))
        ]
        if not known:
            found[name] = None
        elif name.startswith("grader/"):
            found[name] = sum(value for value, _ in known)
        else:
            weight = sum(count for _, count in known)  # 0 if no tool was called
            found[name] = sum(value * count for value, count in known) / weight if weight else 0.0
    return found


def _per_row(name: str, call: Mapping[str, float]) -> float:
    """How many of what the metric is a mean over there are per completion: tool calls of
    `tools/failure_frequency`, and for `style/S_reward` and `_length` completions in style S."""
    if name == "tools/failure_frequency":
        return call["tools/call_frequency"]
    style = name.removesuffix("_reward").removesuffix("_length")
    is_of_style = name.startswith("style/") and style != name
    return call.get(style, 1.0) if is_of_style else 1.0
