"""Which run, metric and step is each cell of a table of? No torch.

The forms that are known:

    TensorBoard   `Wall time, Step, Value`: one metric of one run, named by the file
    chart of W&B  a column `RUN - METRIC` for each run
    long          columns `metric` and `value`, and those that name the run
    wide          one metric, and a column for each run or seed: `grpo-s3`, `seed_2`
    rows          a column for each metric, and those that name the run
    runs of W&B   the same, with a line for each run and the columns `Name` and `State`
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trl_ablate.errors import ConfigurationError
from trl_ablate.metrics import WATCHED_BY_RULES, translated

STEP_COLUMNS = ("train/global_step", "global_step", "step", "_step", "Step")
"""The optimizer step, if a table has one. Trackers also count their own calls, which come last."""

NAMING = {
    "name": ("run_name", "run", "name", "run_id"),
    "arm": ("arm", "method", "variant", "algorithm"),
    "seed": ("seed", "random_seed"),
    "group": ("group", "experiment", "source"),
}
"""Role -> columns that have it, the first that a row fills; upper case counts as lower case."""

TENSORBOARD = {"Wall time", "Step", "Value"}
RUNS_OF_WANDB = {"Name", "State"}
_TAG = re.compile(r"(?:run-(?P<run>.+)-)?tag-(?P<tag>.+)")
_CHART_PART = re.compile(r"(?P<run>.+) - (?P<metric>[^ ]+)")
_BETWEEN = "-_ ./=,:"
_SEED = re.compile(r"(?:^|[-_ ./=,])(?:seed|s)[-_ =:]?(\d+)(?![A-Za-z0-9.])", re.IGNORECASE)

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
    found = _SEED.search(name)
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
    roles = _roles(header, file, columns)
    step = next((name for name in STEP_COLUMNS if name in header), None)
    if header and step is None and columns is None:
        raise ConfigurationError(
            f"{file} has no column of steps; name one of its columns {', '.join(STEP_COLUMNS)}"
        )
    if "metric" in header and not _column(header, "value"):
        raise ConfigurationError(
            f"{file} has a column 'metric' and no column 'value'; in long form the columns are "
            "run_name, metric, step, value"
        )
    named = [column for columns in roles.values() for column in columns]
    rest = [name for name in header if name and name not in (*named, step)]
    charts = {name: part for name in rest if (part := _CHART_PART.fullmatch(name))}
    rows = charts or any(translated(name) in WATCHED_BY_RULES for name in rest)
    seeds = [name for name in rest if not rows and arm_and_seed(name)[1] is not None]
    one_arm = len({arm_and_seed(name)[0] for name in seeds}) == 1
    by_row = one_arm and bool({*roles} & {"arm", "name"})
    value = _column(header, "value") or ""
    metric = _column(header, "metric") if value else None
    a_line_each = step is None or _is_of_runs(header, table, step)
    times: Counter[tuple[Owner, str]] = Counter()
    for number, row in _lines(table):
        if step not in (None, "_step") and "_step" in rest and row.get(step) in ("", None):
            continue  # of W&B: a table that was logged by itself
        given = {name: row[name] for name in rest if row.get(name, "") != ""}
        at = {"step": row.get(step) if step else 0}
        owner = _owner(row, roles, file, number if a_line_each and not metric else None)
        if charts:
            parts = [
                (Owner(part["run"]), {part["metric"]: given[column]})
                for column, part in charts.items()
                if column in given and not part["metric"].endswith(("__MIN", "__MAX"))
            ]
        elif metric:
            if metric not in given:
                raise ConfigurationError(
                    f"{file}, line {number}, names no metric; name it in the column 'metric', or "
                    "remove the line"
                )
            name = str(given[metric])
            line = times[owner, name] if step is None else None
            times[owner, name] += 1
            parts = [(owner._replace(line=line), {name: given.get(value, "nan")})]
        elif len(seeds) > 1:
            there = [name for name in seeds if name in given]
            parts = [(_of_column(one, owner, named=by_row), {"value": given[one]}) for one in there]
        else:
            parts = [(owner, given)]
        yield from ((number, of, values | at) for of, values in parts)


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
    of_file = file.stem if file.suffix in (".csv", ".tsv") else file.parent.name or file.name
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
