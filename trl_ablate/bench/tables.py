"""Medians and spreads of alternating rounds, the printed table, and the JSON file."""

import platform
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from trl_ablate.run.fitting import FirstThatFits
from trl_ablate.run.json_files import write_json
from trl_ablate.run.provenance import provenance
from trl_ablate.run.untrusted import SafeConsole


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def spread(values: Sequence[float]) -> float:
    """The largest minus the smallest."""
    return max(values) - min(values)


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> float:
    """How many times as long the first took: the median over pairs that were measured next to each
    other, so that a load of the machine that comes and goes falls on both."""
    return median([a / b for a, b in zip(theirs, ours, strict=True)])


def machine() -> str:
    """A short description of the machine, for the title of a table."""
    if torch.cuda.is_available():
        return f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}"
    return (
        f"{torch.get_num_threads()} CPU threads ({platform.machine()}), torch {torch.__version__}"
    )


def _table(lines: Sequence[Sequence[str]]) -> Table:
    """A table of these lines; the first one names the columns."""
    table = Table(box=None)
    for place, name in enumerate(lines[0]):
        table.add_column(name, justify="right" if place else "left", overflow="fold")
    for line in lines[1:]:
        table.add_row(*line)
    return table


def publish(
    name: str, rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any], output: Path
) -> None:
    """Print the rows as a table with the machine's name; write them to JSON with versions and
    commit."""
    lines = [[f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()] for row in rows]
    lines.insert(0, list(rows[0]))
    console = SafeConsole()
    console.print(f"{name} — {machine()}")
    console.print(FirstThatFits(_table(lines), _table(list(zip(*lines, strict=True)))))
    for fact, value in facts.items():
        console.print(f"{fact}: {value:.6g}" if isinstance(value, float) else f"{fact}: {value}")
    write_json(
        output,
        {
            "benchmark": name,
            "machine": machine(),
            "rows": list(rows),
            "facts": dict(facts),
            **provenance(),
        },
    )
    console.print(f"written to {output}")
