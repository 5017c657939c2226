"""Read curves from `metrics.jsonl` in one pass, and only what a report needs. No torch.

A row has some fifty metrics and a report needs five, so that a line of a long run is parsed only if
it has the metric that decides, or if it is one of some hundreds that are drawn.
"""

import json
import math
import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

POINTS = 250
"""A panel is some 300 pixels wide: about as many points of a long run's metrics are drawn."""
HEAD = 1 << 16
BLOCK = 1 << 18
"""A block that stays in the processor's cache is searched twice as fast as one of 4 MiB."""

Points = dict[str, dict[float, tuple[float, float]]]
"""Metric -> step -> value and seconds."""


@dataclass
class Series:
    """One metric over GRPO steps; `seconds` since the first logged row, if known."""

    steps: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


def read_series(
    metrics: Path, decides: str, with_it: Collection[str], drawn: Collection[str]
) -> tuple[dict[str, Series], int]:
    """The curves, and the number of lines among those read that are no logged row.

    Of a step that occurs twice, after a resume, the last row counts. A last line without a line end
    is skipped: a process may be writing it.

    Args:
        decides: the metric of which every value counts.
        with_it: metrics that stand in the same rows.
        drawn: metrics of which a long run's rows are read here and there, and at its end.
    """
    reader = _Reader((decides, *with_it), drawn)
    with metrics.open("rb") as file:
        mark = json.dumps(decides).encode()
        lines, is_short = _lines_here_and_there(file, mark)
        reader.take_drawn(lines)
        if is_short:
            reader.take_deciding(lines)
        else:
            reader.take_deciding(_lines_with(mark, file))
    return reader.series(), reader.skipped


def _lines_here_and_there(file: BinaryIO, mark: bytes) -> tuple[list[bytes], bool]:
    """Every line of a file, and True; or some, evenly spread over a long one, and the last ones.

    Where rows with the mark and rows without alternate, it takes those without.
    """
    size = os.fstat(file.fileno()).st_size
    head = file.read(HEAD)
    usual = len(head) / max(1, head.count(b"\n"))
    file.seek(0)
    if size <= 2 * POINTS * usual:
        return [line for line in file if line.endswith(b"\n")], True
    found = [next(file)]
    for part in range(1, POINTS):
        file.seek(part * size // POINTS)
        file.readline()  # the rest of the line before
        line = file.readline()
        found.append(file.readline() or line if mark in line else line)
    file.seek(max(0, size - HEAD))
    found += file.read().splitlines(keepends=True)[1:][-2:]
    return [line for line in found if line.endswith(b"\n")], False


def _lines_with(mark: bytes, file: BinaryIO) -> Iterator[bytes]:
    """The whole lines that hold the mark; the others cost no more than a look at their bytes."""
    file.seek(0)
    rest = b""
    while block := file.read(BLOCK):
        block = rest + block
        end = block.rfind(b"\n") + 1
        rest, place = block[end:], 0
        while (place := block.find(mark, place, end)) >= 0:
            start, stop = block.rfind(b"\n", 0, place) + 1, block.find(b"\n", place) + 1
            yield block[start:stop]
            place = stop


class _Reader:
    def __init__(self, exact: Collection[str], drawn: Collection[str]):
        self._exact, self._drawn = exact, drawn
        self._points: Points = {}
        self._start: float | None = None
        self._damaged: set[bytes] = set()

    @property
    def skipped(self) -> int:
        return len(self._damaged)

    def take_drawn(self, lines: Iterable[bytes]) -> None:
        """Where a resume went back, what was drawn of the steps after it is dropped: of a long run
        not every one of them is read again."""
        last = -math.inf
        for line in lines:
            step = self._read(line, self._drawn, last)
            last = last if step is None else step

    def take_deciding(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            self._read(line, self._exact)

    def series(self) -> dict[str, Series]:
        return {
            name: Series(
                steps=sorted(found),
                values=[found[step][0] for step in sorted(found)],
                seconds=[found[step][1] for step in sorted(found)],
            )
            for name, found in self._points.items()
        }

    def _read(self, line: bytes, wanted: Collection[str], last: float = -math.inf) -> float | None:
        """Take the wanted metrics of a row; its step."""
        place = _place(row := _parsed(line))
        if row is None or place is None:
            self._damaged.add(line)
            return None
        step, seconds = place
        self._start = seconds if self._start is None else self._start
        if step < last:
            self._forget_from(step)
        for name in wanted:
            if (value := _number(row.get(name))) is not None:
                self._points.setdefault(name, {})[step] = (value, seconds - self._start)
        return step

    def _forget_from(self, step: float) -> None:
        """After a resume: delete the points from this step on, as some will not be drawn again."""
        for name in self._drawn:
            for drawn in [each for each in self._points.get(name, {}) if each >= step]:
                del self._points[name][drawn]


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line.decode())  # bytes are searched for their encoding first
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _place(row: dict[str, Any] | None) -> tuple[float, float] | None:
    """Step and seconds of a logged row; None if it is not one."""
    step, seconds = (_number((row or {}).get(name)) for name in ("grpo_step", "seconds"))
    return None if step is None or seconds is None else (step, seconds)


def _number(value: Any) -> float | None:
    if type(value) not in (int, float):  # which leaves out True
        return None
    return value if math.isfinite(value) else None
