"""Which saved completions show why a rule fired? No torch.

rollouts/step_N.jsonl               of a run of this package
completions/completions_N.parquet   of TRL, with a column for each reward function
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trl_ablate.errors import ConfigurationError, shortened
from trl_ablate.guard.logs import INNER
from trl_ablate.guard.remedies import is_short
from trl_ablate.guard.rules import Alert
from trl_ablate.run.json_files import read_jsonl
from trl_ablate.run.untrusted import for_picture

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


class Sample(NamedTuple):
    """A saved completion, and what each reward function gave it."""

    text: str
    scores: Mapping[str, float]


def evidence(alert: Alert, path: Path) -> Iterator[str]:
    """Lines with the completions that show an alert, if completions were saved beside a log."""
    files = saved(home_of(path))
    step = min((at for at in files if at >= alert.step), default=max(files, default=None))
    picks = PICKS.get("shorter" if alert.rule == "length" and is_short(alert) else alert.rule, ())
    samples = read(files[step]) if step is not None and picks else []
    for label, text in filter(None, (pick(samples) for pick in picks if samples)):
        yield f"step {step}, {label}: '{for_picture(text, LETTERS)}'"


def home_of(path: Path) -> Path:
    """The folder of the run that a log belongs to."""
    folder = path if path.is_dir() else path.parent
    return folder.parent if INNER.fullmatch(folder.name) else folder


def saved(folder: Path) -> dict[int, Path]:
    """Step -> the file with its completions."""
    files = [*folder.glob("completions/*.parquet"), *folder.glob("rollouts/*.jsonl")]
    return {int(found[1]): file for file in files if (found := _FILE.fullmatch(file.name))}


def read(file: Path) -> list[Sample]:
    """The completions of a file."""
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
    scores = {name: float(value) for name, value in row.items()
              if name not in aside and isinstance(value, int | float)}  # fmt: skip
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
    "length": (longest, most_repetitive),
    "length_spread": (shortest, longest),
    "entropy": (most_frequent, most_repetitive),
    "reward": (format_alone, most_frequent, most_repetitive, shortest, longest),
    "shortcut": (format_alone, shortest),
    "special_tokens": (shortest,),
    "no_variance": (most_frequent, format_alone),
}
"""Rule -> what may show it; the other rules are about numbers alone."""
