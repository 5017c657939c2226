"""Which run, metric and step is each cell of a table of? No torch.

The forms that are known:

    TensorBoard   `Wall time, Step, Value`: one metric of one run, named by the file
    chart of W&B  a column `RUN - METRIC` for each run
    long          columns `metric` and `value`, and those that name the run
    wide          one metric, and a column for each run or seed: `grpo-s3`, `seed_2`
    rows          a column for each metric, and those that name the run
    runs of W&B   the same, with a line for each run and the columns `Name` and `State`
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from trl_ablate.errors import ConfigurationError
from trl_ablate.metrics import WATCHED_BY_RULES, translated

STEP_COLUMNS = (
    "train/global_step", "global_step", "step", "steps", "training/global_step",
    "trainer/global_step", "training_step", "iteration", "_step",
)  # fmt: skip
"""The optimizer step, if a table has one, in small letters or large ones. Trackers also count their
own calls, which come last."""

NAMING = {
    "name": ("run_name", "run", "name", "run_id"),
    "arm": ("arm", "method", "variant", "algorithm"),
    "seed": ("seed", "random_seed", "trial", "replicate"),
    "group": ("group", "experiment", "source"),
}
"""Role -> columns that have it, the first that a row fills; upper case counts as lower case."""

METRIC_COLUMNS = ("metric", "variable", "tag", "key")
"""Of a long table: the one that names the metric of each `value`."""

RUN_FILES = ("metrics.jsonl", "trainer_state.json")
"""They have the same name in every run; any other file may be named after its run."""
TENSORBOARD = {"Wall time", "Step", "Value"}
RUNS_OF_WANDB = {"Name", "State"}
_TAG = re.compile(r"(?:run-(?P<run>.+)-)?tag-(?P<tag>.+)")
_CHART_PART = re.compile(r"(?P<run>.+) - (?P<metric>.+)")
_BETWEEN = "-_ ./=,:|()[]"
_SEEDS = [
    re.compile(rf"(?:^|[-_ ./=,:|(\[]){word}[-_ =:]*(\d+)(?![A-Za-z0-9]|\.\d)", re.IGNORECASE)
    for word in ("seed", "s")
]

Table = Sequence[Mapping[str, Any]]


class Owner(NamedTuple):
    """The run that rows are of: its name, and what the file itself calls its arm and so on."""

    name: str
    arm: str | None = None
    seed: str | None = None
    group: str | None = None
    line: int | None = None
    """Of a table without steps, where every line is a run."""


Columns = Mapping[str, str]
"""Role -> the column that the user named. A reader of runs, not of one log, gives it, if only an
empty one: then a table may have final values alone."""


def arm_and_seed(name: str) -> tuple[str, int | None]:
    """`dr_grpo_seed_2` -> dr_grpo, 2; `seed3/grpo` -> grpo, 3; `len_norm` -> len_norm, None."""
    found = next((found for seed in _SEEDS if (found := seed.search(name))), None)
    if found is None:
        return name, None
    return (name[: found.start()] + name[found.end() :]).strip(_BETWEEN), int(found[1])


def owned(
    table: Table, header: Sequence[str], file: Path, columns: Columns | None
) -> Iterator[tuple[int, Owner, dict[str, Any]]]:
    """The line, the run, and its values there, with a step if the table has steps."""
    if {*header} == TENSORBOARD:
        owner, of_all = _curve(file)
        for number, row in _lines(table):
            yield number, owner, {"step": row.get("Step"), of_all: row.get("Value", "nan")}
        return
    form = _form(table, header, file, columns)
    apart = _Apart(table, header, form)
    for number, row in _lines(table):
        step = row.get(form.step) if form.step else 0
        if form.is_of_calls and step in ("", None):
            continue  # of W&B: a table that was logged by itself
        for of, values in form.parts(number, row):
            apart.check(number, row, of, values)
            yield number, of, values | {"step": step}


@dataclass(frozen=True)
class _Form:
    """What the columns of one table are."""

    file: Path
    roles: dict[str, list[str]]
    step: str | None
    rest: list[str]
    """The columns that name neither a run nor the step."""
    charts: dict[str, re.Match[str]]
    """Columns `RUN - METRIC`."""
    seeds: list[str]
    """Columns that are a run or a seed each, and so their values are of one metric."""
    by_row: bool
    """Whether those are seeds of the arm that the row names."""
    metric: str | None
    value: str
    """Of a long table: the columns of a metric's name and of its value."""
    a_line_each: bool
    """Whether each line is a run."""
    times: Counter[tuple[Owner, str]] = field(default_factory=Counter)
    """Of a long table without steps: how often a run has had a metric."""

    @property
    def is_of_calls(self) -> bool:
        """Whether the table has W&B's count of calls beside the step."""
        return self.step not in (None, "_step") and "_step" in self.rest

    def parts(self, number: int, row: Mapping[str, Any]) -> list[tuple[Owner, dict[str, Any]]]:
        """The runs that a line has values of."""
        given = {name: row[name] for name in self.rest if row.get(name, "") != ""}
        line = number if self.a_line_each and not self.metric else None
        owner = _owner(row, self.roles, self.file, line)
        if self.charts:
            return [
                (Owner(part["run"]), {part["metric"]: given[column]})
                for column, part in self.charts.items()
                if column in given and not part["metric"].endswith(("__MIN", "__MAX"))
            ]
        if self.metric:
            return [self._named(number, owner, given, self.metric)]
        if len(self.seeds) > 1:
            there = [name for name in self.seeds if name in given]
            named = self.by_row
            return [(_of_column(one, owner, named=named), {"value": given[one]}) for one in there]
        return [(owner, given)]

    def _named(
        self, number: int, owner: Owner, given: Mapping[str, Any], metric: str
    ) -> tuple[Owner, dict[str, Any]]:
        if metric not in given:
            raise ConfigurationError(
                f"{self.file}, line {number}, names no metric; name it in the column '{metric}', "
                "or remove the line"
            )
        name = str(given[metric])
        line = self.times[owner, name] if self.step is None else None
        self.times[owner, name] += 1
        return owner._replace(line=line), {name: given.get(self.value, "nan")}


def _form(table: Table, header: Sequence[str], file: Path, columns: Columns | None) -> _Form:
    roles = _roles(header, file, columns)
    step = next((found for one in STEP_COLUMNS if (found := _column(header, one))), None)
    if header and step is None and columns is None:
        raise ConfigurationError(
            f"{file} has no column of steps; name one of its columns {', '.join(STEP_COLUMNS)}"
        )
    value = _column(header, "value") or ""
    if "metric" in header and not value:
        raise ConfigurationError(
            f"{file} has a column 'metric' and no column 'value'; in long form the columns are "
            "run_name, metric, step, value"
        )
    metric = next((found for one in METRIC_COLUMNS if (found := _column(header, one))), None)
    named = [column for columns in roles.values() for column in columns]
    rest = [name for name in header if name and name not in (*named, step)]
    charts = {name: part for name in rest if (part := _CHART_PART.fullmatch(name))}
    if len(charts) < len(rest) - 1:  # but for an axis of W&B's own, all columns are of charts
        charts = {}
    rows = charts or any(translated(name) in WATCHED_BY_RULES for name in rest)
    seeds = [name for name in rest if not rows and arm_and_seed(name)[1] is not None]
    one_arm = len({arm_and_seed(name)[0] for name in seeds}) == 1
    form = _Form(
        file, roles, step, rest, charts, seeds,
        by_row=one_arm and bool({*roles} & {"arm", "name"}),
        metric=metric if value else None, value=value,
        a_line_each=step is None or _is_of_runs(header, table, step),
    )  # fmt: skip
    if step is None and not (charts or form.metric or {*header} >= RUNS_OF_WANDB):
        _check_lines(table, form)
    return form


def _check_lines(table: Table, form: _Form) -> None:
    """Without steps each line is a run, but several lines of one run may be its steps."""
    times = Counter(_owner(row, form.roles, form.file, None) for _, row in _lines(table))
    for owner, count in times.items() if "name" in form.roles or len(form.rest) > 1 else ():
        if count > 1 and owner.seed is None:
            raise ConfigurationError(
                f"{form.file} has {count} lines of '{owner.name}' and no column of steps or seeds; "
                "if one of its columns counts the steps, call it step, if the seeds, seed"
            )


class _Apart:
    """Refuses a table that has several values of a run, step and metric, in lines that differ in a
    text such as the name of a dataset. After a resume, values differ and texts do not."""

    def __init__(self, table: Table, header: Sequence[str], form: _Form):
        self._form = form
        self._columns = [name for name in header if self._names(table, name)]
        self._first: dict[tuple[Owner, Any, str], tuple[float, list[Any]]] = {}

    def _names(self, table: Table, column: str) -> bool:
        """Whether its texts may be names: there are several, each in many lines."""
        cells = (row.get(column) for row in table if column != self._form.step)
        texts = [one for one in cells if isinstance(one, str) and one and number_in(one) is None]
        return 1 < len({*texts}) <= len(texts) / 2

    def check(
        self, number: int, row: Mapping[str, Any], of: Owner, values: Mapping[str, Any]
    ) -> None:
        texts = [row.get(name) for name in self._columns]
        for metric in values if texts else ():
            value = number_in(values[metric])
            if value is None or math.isnan(value):
                continue
            step = row.get(self._form.step or "")
            first, others = self._first.setdefault((of, step, metric), (value, texts))
            if value != first and texts != others:
                pairs = zip(self._columns, texts, others, strict=True)
                column = next(name for name, text, other in pairs if text != other)
                raise ConfigurationError(
                    f"{self._form.file}, line {number}: '{of.name}' has a second value of "
                    f"'{metric}' at step {step}, of another '{column}'; keep the lines of one, or "
                    "call that column arm, seed or group"
                )


def number_in(cell: Any) -> float | None:
    """Of a cell of a table or a logged value; `51.2%` is 0.512."""
    if isinstance(cell, bool):
        return None
    try:
        if isinstance(cell, str) and cell.rstrip().endswith("%"):
            return float(cell.rstrip()[:-1]) / 100
        return float(cell)  # also of "NaN" and "-Infinity", as trackio and W&B write them
    except (TypeError, ValueError, OverflowError):
        return None


def _is_of_runs(header: Sequence[str], table: Table, step: str) -> bool:
    """Whether it is W&B's table of runs, in which no name has values of several steps."""
    last: dict[Any, Any] = {}
    return {*header} >= RUNS_OF_WANDB and all(
        last.setdefault(row.get("Name"), row.get(step)) == row.get(step) for row in table
    )


def _lines(table: Table) -> Iterator[tuple[int, Mapping[str, Any]]]:
    return ((number, row) for number, row in enumerate(table, start=2) if row)


def _column(header: Sequence[str], name: str) -> str | None:
    return next((one for one in header if one.lower() == name), None)


def _roles(header: Sequence[str], file: Path, columns: Columns | None) -> dict[str, list[str]]:
    """Role -> its columns in this table: the one that the user named, or all known ones that the
    user named for no other role."""
    stated = columns or {}
    for name in stated.values():
        if name not in header:
            raise ConfigurationError(
                f"{file} has no column '{name}'; it has {', '.join(header)[:300]}"
            )
    free = [name for name in header if name not in stated.values()]
    roles = {
        role: [stated[role]]
        if role in stated
        else [name for one in known if (name := _column(free, one))]
        for role, known in NAMING.items()
    }
    return {role: names for role, names in roles.items() if names}


def _owner(
    row: Mapping[str, Any], roles: Mapping[str, Sequence[str]], file: Path, line: int | None
) -> Owner:
    filled = {
        role: [str(row[name]) for name in names if row.get(name) not in ("", None)]
        for role, names in roles.items()
    }
    given = {role: texts[0] for role, texts in filled.items() if texts}
    parts = [given[role] for role in ("group", "arm", "seed") if role in given]
    of_file = file.parent.name if file.name in RUN_FILES else file.stem
    name = given.pop("name", None) or "-".join(parts) or of_file
    return Owner(name, line=line, **given)


def _of_column(name: str, owner: Owner, *, named: bool) -> Owner:
    """Of a column that is a run, or a seed of the arm that its row names."""
    arm, seed = arm_and_seed(name)
    if named or not arm:
        return owner._replace(name=name, arm=owner.arm or owner.name, seed=str(seed))
    return Owner(name, arm, str(seed), owner.group)


def _curve(file: Path) -> tuple[Owner, str]:
    """The file's name is all that tells which curve of TensorBoard it is."""
    named = _TAG.search(file.stem)
    tag = named["tag"] if named else file.stem
    known = {re.sub(r"\W", "_", name): name for name in WATCHED_BY_RULES}
    metric = re.sub(r"\W", "_", tag).removeprefix("train_")
    return Owner((named and named["run"]) or file.parent.name), known.get(metric, metric)
