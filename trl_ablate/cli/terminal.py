"""What commands print on the terminal: plain tables without boxes, lines to copy. No torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Any, TextIO

from rich.table import Table
from rich.text import Text

from trl_ablate.run.untrusted import SafeConsole

if TYPE_CHECKING:
    from trl_ablate.recipe.resolving import Resolved
    from trl_ablate.run.directory import RunDirectory
    from trl_ablate.study.report.document import Document
    from trl_ablate.training.machine import Finding

WIDE = 1000
"""Columns for tables that may be wider than the terminal, which then breaks their lines."""

console = SafeConsole(soft_wrap=True)


@contextmanager
def outlive_the_reader() -> Iterator[None]:
    """Drop output whose reader has closed it, as in `… | head -1`, or which has
    nowhere to go, as in `… >&-`, instead of raising an error."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        out: Any = _Lasting(sys.stdout or nowhere)
        err: Any = _Lasting(sys.stderr or nowhere)
        with redirect_stdout(out), redirect_stderr(err):
            yield


class _Lasting:
    """A text stream that its reader may close."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def write(self, text: str) -> int:
        self._try(self._stream.write, text)
        return len(text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, act: Callable[..., object], *words: str) -> None:
        """Raise an error once, but never the one of a closed reader."""
        try:
            act(*words)
        except OSError as error:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())  # also what is in the buffer, and of children
            os.close(nowhere)
            if not isinstance(error, BrokenPipeError):
                raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def show_recipe(resolved: Resolved, everything: bool) -> None:
    """Print one line on the profile; with `everything`, all resolved settings."""
    console.print(
        f"{resolved.recipe.name} on profile '{resolved.profile}' ({resolved.profile_reason})"
    )
    for warning in resolved.warnings:
        console.print(f"warning: {warning}")
    if not everything:
        return
    layers, settings = resolved.layers, sorted(resolved.settings.items())
    shown = [(key, layers.get(key, "derived"), str(value)) for key, value in settings]
    console.print(table("settings", shown))
    declared = [(key, f"{old} -> {new}") for key, (old, new) in resolved.changes.items()]
    console.print(table("declared changes from the base", declared or [("none", "")]))
    console.print(table("inert knobs", resolved.inert.items() or [("none", "")]))


def show_findings(findings: list[Finding]) -> int:
    """Print every finding, then what fixes each one that stops a run; the number of those."""
    rows = [(each.what, each.found + " (not needed)" * (not each.needed)) for each in findings]
    console.print(table("here", rows))
    missing = [finding for finding in findings if finding.stops]
    for finding in missing:
        console.print(f"missing: {finding.what}; fix: {finding.fix}")
    console.print(f"cannot run here: {len(missing)} missing" if missing else "can run here")
    return len(missing)


def show_end(directory: RunDirectory, *, on_trackio: bool) -> None:
    evaluations = [row for row in directory.metrics() if row.get("eval_reward") is not None]
    record = directory.read()
    rows = {"run": str(directory.path), "time": f"{record['seconds']:.0f} s"}
    if record.get("reason"):
        rows[record["status"]] = record["reason"]
    if evaluations:
        best = max(evaluations, key=lambda row: row["eval_reward"])
        rows["eval reward, first"] = f"{evaluations[0]['eval_reward']:.3f}"
        rows["eval reward, best"] = f"{best['eval_reward']:.3f} at step {best['step']}"
        rows["eval reward, last"] = f"{evaluations[-1]['eval_reward']:.3f}"
        error = evaluations[-1].get("eval_reward_stderr")  # TRL's own evaluation has none
        rows["eval reward, last"] += "" if error is None else f" ± {error:.3f}"
    if directory.checkpoint_last.exists():
        rows["model"] = str(directory.checkpoint_last)
    rows["metrics"] = str(directory.metrics_file)
    if on_trackio:
        rows["dashboard"] = "trackio show"
    console.print(table("done", rows.items()))


def show_document(document: Document) -> None:
    from trl_ablate.study.report.document import Grid, Items

    console.print(document.lead)
    for section in document.sections:
        shown = [each for each in section.blocks if isinstance(each, Items | Grid)]
        if shown:
            console.print(f"\n{section.title}", style="bold")
        for block in shown:
            if isinstance(block, Items):
                for item in block.items:
                    console.print(f"  {item}")
            else:
                grid = table("", block.rows, block.header, numbers_from=block.numbers_from)
                SafeConsole(soft_wrap=True, width=WIDE).print(grid)


def table(
    title: str,
    rows: Iterable[Sequence[str]],
    header: Sequence[str] = (),
    *,
    numbers_from: int = WIDE,
) -> Table:
    """Rows of cells, with a header or without. Columns from `numbers_from` on are numbers, which
    are on the right of their column."""
    made = Table(
        title=title, title_justify="left", show_header=bool(header), box=None, padding=(0, 2, 0, 0)
    )
    rows = [*rows]
    width = max(map(len, [header, *rows]))
    for place, name in enumerate([*header, *[""] * width][:width]):
        right = place >= numbers_from
        made.add_column(name, overflow="fold", justify="right" if right else "left")
    for cells in rows:
        made.add_row(*map(Text, cells))
    return made
