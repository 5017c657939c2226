"""Curves from `metrics.jsonl`: of a long run only what a picture or verdict needs.

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
    for line, wanted in _chosen(metrics, decides, with_it, drawn):
        row = _parsed(line)
        step, seconds = (_number(row.get(name)) for name in ("grpo_step", "seconds"))
        if step is None or seconds is None:
            skipped += 1
            continue
        if step < latest:  # a resume went back, and reads other steps again
            for name in drawn:
                of = points.get(name, {})
                points[name] = {at: of[at] for at in of if at <= step}
        latest = step
        start = seconds if start is None else start
        for name in wanted:
            if (value := _number(row.get(name))) is not None:
                points.setdefault(name, {})[step] = (value, seconds - start)
    return {name: _series(found) for name, found in points.items() if found}, skipped


def _chosen(
    metrics: Path, decides: str, with_it: Collection[str], drawn: Collection[str]
) -> Iterator[tuple[bytes, list[str]]]:
    """The lines to parse, in order, and the metrics that are wanted of each."""
    mark = json.dumps(decides, ensure_ascii=False).encode(errors=SURROGATES)  # as it is written
    with metrics.open("rb") as file:
        lines = [line for line in file if line.endswith(b"\n")]
    stride = max(1, sum(map(len, lines)) // (POINTS * len(lines[0]))) if lines else 1
    rows: dict[bool, list[int]] = {True: [], False: []}
    for place, line in enumerate(lines):
        rows[mark in line].append(place)
    pictured = {place for some in rows.values() for place in (*some[::stride], *some[-1:])}
    for place in sorted({*rows[True], *pictured}):
        deciding = (decides, *with_it) if mark in lines[place] else ()
        yield lines[place], [*deciding, *(drawn if place in pictured else ())]


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
