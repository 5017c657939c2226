"""The grid of arms × seeds that shows the progress of a study."""

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from trl_ablate.study.outcomes import finished
from trl_ablate.study.plan import Plan, PlannedArm, PlannedRun
from trl_ablate.study.schedule import needed
from trl_ablate.study.store import RunStore

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


def grid(plan: Plan, store: RunStore) -> Table:
    """The state of every run, its step while it runs, and the last value of the primary metric.

    Runs that the outcomes so far do not ask for, as another value was chosen, have no cell.
    """
    table = Table(title=f"{plan.study}: {plan.primary_metric}", title_justify="left", box=None,
                  caption=LEGEND, caption_justify="left", padding=(0, 3, 0, 0))  # fmt: skip
    table.add_column("arm", no_wrap=True)
    for position in range(max(len(arm.runs) for arm in plan.arms)):
        seeds = sorted({arm.runs[position].seed for arm in plan.arms})
        table.add_column(f"seed {'/'.join(map(str, seeds))}", no_wrap=True)
    known = needed(plan, finished(plan, store)) if plan.tuning else plan.runs().values()
    ids = {run.id for run in known}
    for arm in plan.arms:
        cells = (_cell(arm, run, plan, store) if run.id in ids else Text() for run in arm.runs)
        table.add_row(arm.name, *cells)
    return table


def _cell(arm: PlannedArm, run: PlannedRun, plan: Plan, store: RunStore) -> Text:
    state = store.state(run.id)
    words = [Text(*MARKS[state.status])]
    rows = list(store.directory(run.id).metrics()) if state.status != "to do" else []
    if state.status in ("running", "interrupted") and rows:
        words.append(Text(f"{rows[-1]['grpo_step']:g}/{arm.grpo_steps}"))
    values = [row[plan.primary_metric] for row in rows if row.get(plan.primary_metric) is not None]
    if values:
        words.append(Text(f"{values[-1]:.3f}"))
    return Text(" ").join(words)


class LiveGrid:
    """The grid, redrawn at the bottom of the terminal. Without a terminal, only lines are
    printed."""

    def __init__(self, plan: Plan, store: RunStore, console: Console):
        self._plan, self._store, self._console = plan, store, console
        self._live: Live | None = None

    def __enter__(self) -> "LiveGrid":
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, *ended: object) -> None:
        if self._live:
            self._live.stop()
            self._live = None

    def redraw(self) -> None:
        if self._live:
            self._live.update(grid(self._plan, self._store), refresh=True)

    def say(self, text: str) -> None:
        self._console.print(text)
