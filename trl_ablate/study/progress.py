"""The grid of arms × seeds that shows the progress of a study."""

from statistics import mean
from typing import NamedTuple

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from trl_ablate.run.fitting import FirstThatFits
from trl_ablate.study.planned import Plan, PlannedArm, PlannedRun
from trl_ablate.study.runs import StudyRuns

MARKS = {
    "finished": ("✓", "green"),
    "stopped": ("■", "yellow"),
    "failed": ("✗", "red"),
    "running": ("▶", "cyan"),
    "interrupted": ("…", "yellow"),
    "to do": ("·", "dim"),
}
"""The symbol and style of each status."""
LEGEND = "✓ finished  ■ stopped by a rule  ✗ failed  ▶ running  … interrupted  · to do"


class Cell(NamedTuple):
    """What is seen of a run."""

    mark: Text
    step: str = ""
    """While it goes on."""
    value: float | None = None
    """The last one of the primary metric."""


def grid(runs: StudyRuns) -> FirstThatFits:
    """The state of every run, its step while it runs, and the last value of the primary metric;
    where that has no room, the states alone, and the mean of the last values.

    Runs that the outcomes so far do not ask for, as another value was chosen, have no cell.
    """
    plan = runs.plan
    seeds = [
        "/".join(map(str, sorted({arm.runs[n].seed for arm in plan.arms if n < len(arm.runs)})))
        for n in range(max(len(arm.runs) for arm in plan.arms))
    ]
    alone = _table(plan, [f"seed {n}" for n in seeds])
    together = _table(plan, [f"seeds {seeds[0]} to {seeds[-1]}", "mean"])
    ids = {run.id for run in runs.needed}
    for arm in plan.arms:
        cells = [_cell(arm, run, runs) if run.id in ids else Cell(Text(" ")) for run in arm.runs]
        alone.add_row(arm.name, *map(_alone, cells))
        values = [cell.value for cell in cells if cell.value is not None]
        marks = Text().join(cell.mark for cell in cells)
        together.add_row(arm.name, marks, f"{mean(values):.3f}" if values else "")
    return FirstThatFits(alone, together)


def _table(plan: Plan, columns: list[str]) -> Table:
    table = Table(title=f"{plan.study}: {plan.primary_metric}", title_justify="left", box=None,
                  caption=LEGEND, caption_justify="left", padding=(0, 3, 0, 0))  # fmt: skip
    table.add_column("arm", overflow="fold")
    for name in columns:
        table.add_column(name, no_wrap=True)
    return table


def _cell(arm: PlannedArm, run: PlannedRun, runs: StudyRuns) -> Cell:
    status, metric = runs.states[run.id].status, runs.plan.primary_metric
    rows = list(runs.store.directory(run.id).metrics()) if status != "to do" else []
    goes_on = status in ("running", "interrupted") and rows
    step = f"{rows[-1]['grpo_step']:g}/{arm.grpo_steps}" if goes_on else ""
    values = [row[metric] for row in rows if row.get(metric) is not None]
    return Cell(Text(*MARKS[status]), step, values[-1] if values else None)


def _alone(cell: Cell) -> Text:
    words = [cell.step, "" if cell.value is None else f"{cell.value:.3f}"]
    return Text(" ").join([cell.mark, *(Text(word) for word in words if word)])


class LiveGrid:
    """The grid, redrawn at the bottom of the terminal. Without a terminal, only lines are
    printed."""

    def __init__(self, runs: StudyRuns, console: Console):
        self._runs, self._console = runs, console
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None

    def __enter__(self) -> "LiveGrid":
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *ended: object) -> None:
        if self._live:
            self._live.stop()

    def redraw(self) -> None:
        if self._live:
            self._live.update(grid(self._runs.again()), refresh=True)

    def say(self, text: str) -> None:
        self._console.print(text)
