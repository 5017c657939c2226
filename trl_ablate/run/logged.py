"""Curves from `metrics.jsonl`, in one pass: of a long run only what a picture or verdict needs.

A row has some fifty metrics and a reader wants five, so a line of a long run is parsed only if it
has the metric that decides, or if it is one of some hundreds that are drawn (0.02 s for 10,000
rows; pyarrow takes 0.04 s for the wanted columns of all). `RunDirectory.metrics` has whole rows. No
torch.
"""

import json
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trl_ablate.run.json_files import SURROGATES

POINTS = 250
"""A panel is some 300 pixels wide: about as many points of a long run's metrics are drawn."""


@dataclass
class Series:
    """One metric over GRPO steps; `seconds` since the first logged row, if known."""

    steps: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


def read_series(
    metrics: Path, decides: str, with_it: Collection[str] = (), drawn: Collection[str] = ()
) -> tuple[dict[str, Series], int]:
    """The curves, and the number of lines among those read that are no logged row.

    Of a step that occurs twice, after a resume, the last row counts. A last line without a line end
    is skipped: a process may be writing it.

    Args:
        decides: the metric of which every value counts.
        with_it: metrics that stand in the same rows.
        drawn: metrics of which every k-th row of a long run is read, and the last one. Rows with
            `decides` are counted by themselves: they often lack the other metrics.
    """
    points: dict[str, dict[float, tuple[float, float]]] = {}
    start, skipped, latest = None, 0, -math.inf
    for line, wanted, is_last in _chosen(metrics, decides, with_it, drawn):
        row = _parsed(line)
        step, seconds = (_number(row.get(name)) for name in ("grpo_step", "seconds"))
        if step is None or seconds is None:
            skipped += not is_last
            continue
        if step < latest and not is_last:  # a resume went back, and reads other steps again
            for name in drawn:
                of = points.get(name, {})
                points[name] = {at: of[at] for at in of if at <= step}
        latest = latest if is_last else step
        start = seconds if start is None else start
        for name in wanted:
            if (value := _number(row.get(name))) is not None:
                points.setdefault(name, {})[step] = (value, seconds - start)
    return {name: _series(found) for name, found in points.items() if found}, skipped


def _chosen(
    metrics: Path, decides: str, with_it: Collection[str], drawn: Collection[str]
) -> Iterator[tuple[bytes, Collection[str], bool]]:
    """The lines to parse, and the metrics that are wanted of each; at the end the last line with
    `decides`, and the last one without."""
    mark = json.dumps(decides, ensure_ascii=False).encode(errors=SURROGATES)  # as it is written
    seen, last = {False: 0, True: 0}, {False: (0, b""), True: (0, b"")}
    with metrics.open("rb") as file:
        stride = max(1, metrics.stat().st_size // (POINTS * max(1, len(file.readline()))))
        file.seek(0)
        for number, line in enumerate(file):
            marked = mark in line
            is_drawn = seen[marked] % stride == 0
            seen[marked] += 1
            last[marked] = (number, b"" if is_drawn else line)
            if (marked or is_drawn) and line.endswith(b"\n"):
                wanted = (decides, *with_it) if marked else ()
                yield line, (*wanted, *drawn) if is_drawn else wanted, False
    for _, line in sorted(last.values()):
        if line.endswith(b"\n"):
            yield line, drawn, True


def _series(found: Mapping[float, tuple[float, float]]) -> Series:
    steps = sorted(found)
    return Series(steps, [found[at][0] for at in steps], [found[at][1] for at in steps])


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line.decode())  # bytes are searched for their encoding first
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}


def _number(value: Any) -> float | None:
    if type(value) not in (int, float):  # which leaves out True
        return None
    return value if math.isfinite(value) else None
