"""Read curves from `metrics.jsonl` in one pass, and only what a report needs. No torch.

A row has about fifty metrics and a report needs five. So a line is parsed only if it contains the
deciding metric, or if it is one of about a thousand lines that are drawn.
"""

import json
import math
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

POINTS = 1000
"""About this many points of a metric are drawn: a picture is about 400 pixels wide."""
CHUNK = 1 << 20

Points = dict[str, dict[float, tuple[float, float]]]
"""Metric -> step -> value and seconds."""


@dataclass
class Series:
    """One metric over GRPO steps; `seconds` since the first logged row, if known."""

    steps: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


def read_series(
    metrics: Path, exact: Collection[str], drawn: Collection[str]
) -> tuple[dict[str, Series], int]:
    """The curves, and the number of lines that are not logged rows.

    Of a step that occurs twice, after a resume, the last row counts. A last line without a line end
    is skipped: a process may be writing it.

    Args:
        exact: metrics of which every value is kept.
        drawn: metrics of which only every n-th row and the last are kept in a long run.
    """
    reader = _Reader(exact, drawn, every=max(1, _lines(metrics) // POINTS))
    with metrics.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                reader.take(line)
    reader.end()
    return reader.series(), reader.skipped


class _Reader:
    def __init__(self, exact: Collection[str], drawn: Collection[str], every: int):
        self._exact, self._drawn, self._every = exact, drawn, every
        self._marks = [json.dumps(name).encode() for name in exact]
        self._points: Points = {}
        self._numbers, self._last, self._start = [0, 0], b"", None
        self._step = -math.inf
        self.skipped = 0

    def take(self, line: bytes) -> None:
        """Process a line. Rows with and without the deciding metric are counted separately, as they
        may alternate."""
        self._last = line
        decides = any(mark in line for mark in self._marks)
        is_drawn = self._numbers[decides] % self._every == 0
        self._numbers[decides] += 1
        if decides or is_drawn:
            self._read(line, [*self._exact, *(self._drawn if is_drawn else ())])

    def end(self) -> None:
        """Process the end of the file: the last row is always drawn."""
        if self._every > 1:
            self._read(self._last, (*self._exact, *self._drawn), again=True)

    def series(self) -> dict[str, Series]:
        return {
            name: Series(
                steps=sorted(found),
                values=[found[step][0] for step in sorted(found)],
                seconds=[found[step][1] for step in sorted(found)],
            )
            for name, found in self._points.items()
        }

    def _read(self, line: bytes, wanted: Collection[str], again: bool = False) -> None:
        place = _place(row := _parsed(line))
        if row is None or place is None:
            self.skipped += not again
            return
        step, seconds = place
        self._start = seconds if self._start is None else self._start
        if step < self._step and self._every > 1:
            self._forget_from(step)
        self._step = step
        for name in wanted:
            if (value := _number(row.get(name))) is not None:
                self._points.setdefault(name, {})[step] = (value, seconds - self._start)

    def _forget_from(self, step: float) -> None:
        """After a resume: delete the points from this step on, as some will not be drawn again."""
        for name in self._drawn:
            for drawn in [each for each in self._points.get(name, {}) if each >= step]:
                del self._points[name][drawn]


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _place(row: dict[str, Any] | None) -> tuple[float, float] | None:
    """Step and seconds of a logged row; None if it is not one."""
    step, seconds = (_number((row or {}).get(name)) for name in ("grpo_step", "seconds"))
    return None if step is None or seconds is None else (step, seconds)


def _number(value: Any) -> float | None:
    known = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if known and math.isfinite(value) else None


def _lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(CHUNK), b""))
