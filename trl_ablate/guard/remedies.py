"""What a run's alerts mean: what to try, how much was computed after the run was lost, and which
saved completions show it. No torch.

rollouts/step_N.jsonl               of a run of this package
completions/completions_N.parquet   of TRL, with a column for each reward function
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trl_ablate.errors import ConfigurationError, shortened
from trl_ablate.guard.logs import home_of
from trl_ablate.guard.replaying import Replay
from trl_ablate.guard.rules import Alert
from trl_ablate.run.json_files import read_jsonl
from trl_ablate.run.untrusted import for_picture

LOWER_RATE = (
    "start anew from the weights of a checkpoint before this step (model_name_or_path) with half "
    "of learning_rate; a resume keeps the old rate"
)

REMEDIES = {
    "nonfinite": f"{LOWER_RATE}; train in bf16 or fp32, and check the rewards of this step",
    "grad_norm": f"{LOWER_RATE}; with several optimizer steps per rollout batch, take fewer",
    "spike": "lower max_grad_norm, and look at the completions of this step",
    "length_spread": LOWER_RATE,
    "shorter": "divide the loss by a constant (length_norm: constant; in TRL's GRPO loss_type: "
    "dr_grpo), and subtract a baseline",
    "longer": "mask truncated completions (mask_truncated_completions) or penalise their length",
    "entropy": "halve learning_rate; with several optimizer steps per rollout batch, raise "
    "epsilon_high (0.28 instead of 0.2)",
    "reward": f"{LOWER_RATE}; if the format is right and the answers are not, weigh answers more",
    "shortcut": "start again with another seed, the std of the group (scale_rewards: group), or an "
    "easier prompt; later steps have not recovered such a run",
    "special_tokens": "check the chat template, the EOS token and the stop strings",
    "no_variance": "take easier or harder questions, more generations per group, or a finer reward",
    "sampling": "check that the engine receives new weights; keep the importance sampling "
    "correction on",
}
"""Rule -> what to try; `length` has two."""
LETTERS = 160
"""How many letters of a completion are shown, from both ends."""
WINDOW = 4
"""Words in a row that count as repeated where they occur again."""
REPEATS = 0.3
"""Share of repeated words above which a completion counts as repetitive."""
_FILE = re.compile(r"(?:step|completions)_(\d+)\.(?:jsonl|parquet)")
_WORD = re.compile(r"\w+|[^\w\s]")

Shown = tuple[str, str]
"""What a completion shows, and the completion."""


def kind_of(alert: Alert) -> str:
    """The rule; of `length`, whether responses became shorter or longer."""
    if alert.rule != "length":
        return alert.rule
    return "shorter" if (alert.value or 0.0) < (alert.reference or 0.0) else "longer"


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
            yield f"  try: {REMEDIES[kind_of(alert)]}"
            yield from (f"  {line}" for line in evidence(alert))
    if not found.alerts:
        yield "no rule fired"
    if found.lost is not None:
        yield lost_compute(rows, *found.lost)
    for rule, metric in found.unread.items():
        yield f"not checked: {rule}, because the log has no {metric}"
    if found.short:
        yield f"not checked: {', '.join(found.short)}, because the log has too few steps to compare"


def lost_compute(rows: Sequence[Mapping[str, Any]], rule: str, step: int) -> str:
    """The share of the steps after the last row before a step, and of the time if it was logged."""
    last = rows[-1]["step"]
    before = max((row["step"] for row in rows if row["step"] < step), default=0)
    spent = seconds_by_step(rows)
    shares = [f"{(last - before) / max(1, last):.0%} of {last} steps"]
    if spent and (total := max(spent.values())) > 0:
        later = total - max((s for at, s in spent.items() if at < step), default=0.0)
        shares.append(f"{later / 3600:.2g} of {total / 3600:.2g} h")
    return f"no return after step {before} ({rule}): {', '.join(shares)} came after it"


def seconds_by_step(rows: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    """Step -> seconds since the start: `seconds`, or the sum of TRL's `step_time`."""
    given = {row["step"]: row["seconds"] for row in rows if row.get("seconds") is not None}
    return given or summed_step_times(rows)


def summed_step_times(rows: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    """Step -> seconds of all steps so far: a logged `step_time` is the mean since the last one."""
    total, before, summed = 0.0, 0, {}
    for row in rows:
        if row.get("step_time") is not None:
            total += row["step_time"] * (row["step"] - before)
            before = row["step"]
            summed[before] = total
    return summed


class Sample(NamedTuple):
    """A saved completion, and what each reward function gave it."""

    text: str
    scores: Mapping[str, float]


def evidence(alert: Alert, path: Path) -> Iterator[str]:
    """Lines with the completions that show an alert, if completions were saved beside a log."""
    files = saved(home_of(path))
    step = min((at for at in files if at >= alert.step), default=max(files, default=None))
    picks = PICKS.get(kind_of(alert), ())
    samples = read(files[step]) if step is not None and picks else []
    for label, text in filter(None, (pick(samples) for pick in picks if samples)):
        yield f"step {step}, {label}: '{for_picture(text, LETTERS)}'"


def saved(folder: Path) -> dict[int, Path]:
    """Step -> the file with its completions."""
    files = [*folder.glob("completions/*.parquet"), *folder.glob("rollouts/*.jsonl")]
    return {int(found[1]): file for file in files if (found := _FILE.fullmatch(file.name))}


def read(file: Path) -> list[Sample]:
    if file.suffix == ".jsonl":
        return [_sample(row, row.get("response")) for row in read_jsonl(file)]
    import pyarrow
    from pyarrow import parquet

    try:
        rows = parquet.read_table(file).to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        raise ConfigurationError(
            f"{file} cannot be read ({shortened(str(error), 120)}); delete it, or restore it"
        ) from error
    return [_sample(row, row.get("completion")) for row in rows]


def _sample(row: Mapping[str, Any], completion: Any) -> Sample:
    """A completion is a text, or messages."""
    parts = completion if isinstance(completion, list) else [completion]
    texts = [part.get("content") if isinstance(part, dict) else part for part in parts]
    aside = ("step", "ground_truth", "reward", "advantage")
    numbers = {name: value for name, value in row.items() if isinstance(value, int | float)}
    scores = {name: float(value) for name, value in numbers.items() if name not in aside}
    return Sample("\n".join(str(text) for text in texts if text is not None), scores)


def shortest(samples: Sequence[Sample]) -> Shown:
    text = min((sample.text for sample in samples), key=len)
    return f"shortest of {len(samples)} ({len(text)} letters)", text


def longest(samples: Sequence[Sample]) -> Shown:
    text = max((sample.text for sample in samples), key=len)
    return f"longest of {len(samples)} ({len(text)} letters)", text


def most_frequent(samples: Sequence[Sample]) -> Shown | None:
    text, count = Counter(sample.text for sample in samples).most_common(1)[0]
    return (f"{count} of {len(samples)} are the same", text) if count > 1 else None


def most_repetitive(samples: Sequence[Sample]) -> Shown | None:
    share, text = max((repeated(sample.text), sample.text) for sample in samples)
    return (f"repeats itself ({share:.0%})", text) if share > REPEATS else None


def repeated(text: str) -> float:
    """The share of the windows of four words that have occurred before in the text."""
    words = _WORD.findall(text)
    windows = [tuple(words[at : at + WINDOW]) for at in range(len(words) - WINDOW + 1)]
    return 1 - len(set(windows)) / len(windows) if windows else 0.0


def format_alone(samples: Sequence[Sample]) -> Shown | None:
    """Rewarded by a function that is named after the format, and by no other."""
    found = []
    for text, scores in samples:
        by_format = [value for name, value in scores.items() if "format" in name]
        others = [value for name, value in scores.items() if "format" not in name]
        if by_format and others and max(by_format) > 0 >= max(others):
            found.append(text)
    label = f"{len(found)} of {len(samples)} have the format and no other reward"
    return (label, found[0]) if found else None


PICKS: Mapping[str, Sequence[Callable[[Sequence[Sample]], Shown | None]]] = {
    "shorter": (shortest,),
    "longer": (longest, most_repetitive),
    "length_spread": (shortest, longest),
    "entropy": (most_frequent, most_repetitive),
    "reward": (format_alone, most_frequent, most_repetitive, shortest, longest),
    "shortcut": (format_alone, shortest),
    "special_tokens": (shortest,),
    "no_variance": (most_frequent, format_alone),
}
"""Rule, or kind of `length` -> what may show it; the other rules are about numbers alone."""
