"""The logged rows of any GRPO runs, whoever trained them. No torch.

A path means, by its name and content:

    a folder           its metrics.jsonl; else that of `GuardCallback` or trainer_state.json (or
                       that of its last checkpoint), whichever goes further; else trackio
                       databases, or tables; else those of the folders below that have a log
    trainer_state.json of transformers: its `log_history`
    *.jsonl            one object a line, such as metrics.jsonl
    *.db               a trackio project, with all its runs
    *.csv, *.tsv       W&B's export of a table or of a chart, TensorBoard's export of a curve, or
                       any table (`guard.tables` says which run a row is of)

Anything else is the name of a trackio project on this machine. Metrics get TRL's names: the
`train/reward` of a tracker is `reward` here. Rows of one step are joined; the last number counts.
"""

import csv
import json
import math
import os
import re
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trl_ablate.errors import ConfigurationError, shortened
from trl_ablate.guard.rules import finite
from trl_ablate.guard.tables import RUN_FILES, STEP_COLUMNS, Columns, Owner, number_in, owned
from trl_ablate.metrics import translated
from trl_ablate.run.checkpoints import step_of
from trl_ablate.run.directory import RunDirectory
from trl_ablate.run.json_files import read_json, read_jsonl, read_object

INNER = re.compile(r"checkpoint-\d+|guard")
"""Folders of a run that have a log of it."""
TABLES = (".csv", ".tsv", ".jsonl")
_COMMA = re.compile(r"[-+]?\d+(,\d+)+(\.\d*)?")
_OUTCOME = re.compile("reward|acc|score|value|pass|solve|correct", re.IGNORECASE)
_NO_VALUE = {"", "na", "n/a", "none", "null", "-"}

KINDS = "trainer_state.json, metrics.jsonl, a trackio project (.db or its name), or a CSV export"


@dataclass(frozen=True)
class Log:
    """The rows of one run in the order of their steps, each with `step`."""

    owner: Owner
    rows: list[dict[str, Any]]

    @property
    def name(self) -> str:
        return self.owner.name


def read_logs(path: str | os.PathLike, columns: Columns | None = None) -> list[Log]:
    """The runs that a path holds, at least one.

    Args:
        columns: those that name a run, where a table has them; with them, a table may have final
            values only, which get step 0.
    """
    there = Path(path)
    if there.is_dir():
        found = _of_folder(there, columns)
    elif there.is_file():
        found = _of_file(there, columns)
    else:
        found = _of_database(_project_named(there))
    home = home_of(there.resolve()).name  # for one that is named after a folder in it
    named = [(one._replace(name=home) if INNER.fullmatch(one.name) else one) for one in found]
    joined = [_joined(rows, columns) for rows in found.values()]
    logs = [Log(*of) for of in zip(named, joined, strict=True) if of[1] or columns is not None]
    if not any(log.rows for log in logs):
        what = "steps" if columns is None else "number"
        raise ConfigurationError(
            f"{path} has no logged {what}; give a log of training: {KINDS}, or a folder with one"
        )
    return logs


def home_of(log: Path) -> Path:
    """The folder of the run that a log, or a folder with one, belongs to."""
    folder = log if log.is_dir() else log.parent
    return folder.parent if INNER.fullmatch(folder.name) else folder


Rows = dict[Owner, list[dict[str, Any]]]
"""A run -> its rows as the file has them, with TRL's names and `step`."""


def _of_folder(folder: Path, columns: Columns | None) -> Rows:
    found = _directly_in(folder, columns)
    files = () if found else sorted(folder.rglob("*"))
    runs = [file for file in files if file.name in RUN_FILES]
    tables = [file for file in files if file.suffix.lower() in TABLES and not runs]
    common = Counter(file.stem for file in tables)
    for place in dict.fromkeys(map(home_of, runs or tables)):
        for owner, rows in _directly_in(place, columns).items():
            if runs or common[owner.name] > 1 or owner.name == place.name:
                owner = owner._replace(name=place.relative_to(folder).as_posix())
            if owner in found:
                raise ConfigurationError(
                    f"two folders in {folder} have a run '{owner.name}'; give them one by one"
                )
            found[owner] = rows
    if not found:
        raise ConfigurationError(f"folder {folder} has no log of a run; it should have {KINDS}")
    return found


def _directly_in(folder: Path, columns: Columns | None) -> Rows:
    if (folder / "metrics.jsonl").is_file():
        return _of_file(folder / "metrics.jsonl", columns)
    checkpoints = sorted(RunDirectory(folder).checkpoints(), key=step_of, reverse=True)
    states = [place / "trainer_state.json" for place in (folder, *checkpoints)]
    logs = [
        _of_file(file, columns)
        for files in ([folder / "guard" / "metrics.jsonl"], states)
        for file in [*filter(Path.is_file, files)][:1]
    ]
    if logs:
        return max(logs, key=_last_step)
    for pattern in ("*.db", "*.[ct]sv", "*.jsonl"):
        if files := sorted(folder.glob(pattern)):
            return _together({file: _of_file(file, columns) for file in files})
    return {}


def _last_step(found: Rows) -> int:
    return max((row["step"] for rows in found.values() for row in rows), default=-1)


def _together(files: Mapping[Path, Rows]) -> Rows:
    """The rows by run; each metric of a run may have a file of its own."""
    merged: Rows = {}
    first: dict[tuple[Owner, int, str], tuple[Path, float]] = {}
    for file, owner, rows in ((one, *found) for one in files for found in files[one].items()):
        merged.setdefault(owner, []).extend(rows)
        for row in rows if len(files) > 1 else ():
            for metric, value in row.items():
                other, before = first.setdefault((owner, row["step"], metric), (file, value))
                if other is not file and before != value:
                    raise ConfigurationError(
                        f"{other} and {file.name} have different {metric} of '{owner.name}' at "
                        f"step {row['step']}; if they are two runs, give the files one by one, or "
                        "else join them in one file"
                    )
    return merged


def _merged(parts: Iterable[tuple[Owner, dict[str, Any]]]) -> Rows:
    merged: Rows = {}
    for owner, row in parts:
        merged.setdefault(owner, []).append(row)
    return merged


def _of_file(file: Path, columns: Columns | None) -> Rows:
    kind = file.suffix.lower()
    if kind == ".db":
        return _of_database(file)
    if kind == ".json" and (columns is None or not isinstance(read_json(file), list)):
        return _of_state(file)
    if kind not in (".json", *TABLES):
        raise ConfigurationError(f"{file} is not a log that is known here; give {KINDS}")
    header, table = _of_csv(file) if kind in (".csv", ".tsv") else _of_objects(file)
    return _merged(
        (owner, _row(row, f"{file}, line {number}"))
        for number, owner, row in owned(table, header, file, columns)
    )


def _of_state(file: Path) -> Rows:
    found = read_json(file)
    history = found.get("log_history") if isinstance(found, dict) else None
    if not isinstance(history, list) or not all(isinstance(row, dict) for row in history):
        raise ConfigurationError(
            f"{file} has no log_history; give transformers' trainer_state.json"
        )
    return {Owner(file.parent.name or file.name): [_row(row, str(file)) for row in history]}


def _of_objects(file: Path) -> tuple[list[str], list[dict[str, Any]]]:
    table = read_json(file) if file.suffix.lower() == ".json" else [*read_jsonl(file)]
    if not all(isinstance(row, dict) for row in table):
        raise ConfigurationError(f"{file} is a list of other things than objects; give {KINDS}")
    record = file.parent / "run.json"
    if file.name == "metrics.jsonl" and record.is_file():  # of this package's runs
        read = read_object(record)
        own = {key: read[key] for key in ("arm", "seed") if read.get(key) is not None}
        table = [row | own for row in table]
    return [*dict.fromkeys(name for row in table for name in row)], table


def _of_database(file: Path) -> Rows:
    """A trackio project. Its own step counts calls, so rows are joined by the optimizer step."""
    order = "SELECT run_name, step, metrics FROM metrics ORDER BY id"
    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as database:
            return _merged(
                (Owner(name), _row({"_step": call, **json.loads(text)}, str(file)))
                for name, call, text in database.execute(order)
            )
    except (sqlite3.Error, ValueError, TypeError) as error:
        raise ConfigurationError(
            f"{file} is not a trackio project that can be read ({shortened(str(error), 120)}); "
            "give another file"
        ) from error


def _project_named(name: Path) -> Path:
    """The database of a project in trackio's folder, which has the name that trackio keeps."""
    cache = os.environ.get("HF_HOME", os.environ.get("XDG_CACHE_HOME", "~/.cache") + "/huggingface")
    default = Path(os.path.expanduser(os.path.expandvars(cache)), "trackio")
    home = Path(os.environ.get("TRACKIO_DIR") or default)
    kept = "".join(one for one in str(name) if one.isalnum() or one in "-_")
    file = home / f"{kept or 'default'}.db"
    if len(name.parts) != 1 or not file.is_file():
        raise ConfigurationError(
            f"{shortened(str(name), 300)} is neither a file nor a folder, nor a trackio project in "
            f"{home}; give {KINDS}, or a folder with one"
        )
    return file


def _of_csv(file: Path) -> tuple[list[str], list[dict[str, Any]]]:
    mark = "\t" if file.suffix.lower() == ".tsv" else ","
    try:
        with file.open(encoding="utf-8-sig", newline="") as opened:
            if not (lines := [*csv.reader(opened, delimiter=mark, strict=True)]):
                raise ValueError("it is empty")
    except (UnicodeDecodeError, csv.Error, ValueError) as error:
        raise ConfigurationError(
            f"{file} is not a CSV file with a header ({shortened(str(error), 120)}); export it anew"
        ) from error
    header, records = [name.strip() for name in lines[0]], lines[1:]
    if other := next((one for one in ";\t," if len(header) == 1 and one in header[0]), None):
        raise ConfigurationError(
            f"{file} separates its columns by {other!r}, not by {mark!r}; export it anew"
        )
    twice = next((name for name, times in Counter(header).items() if name and times > 1), None)
    if twice:
        raise ConfigurationError(f"{file} has two columns '{twice}'; rename or remove one")
    table = [dict(zip(header, record, strict=False)) for record in records]
    for name in filter(_OUTCOME.search, header):
        _check_cells(table, name, file)
    return header, table


def _check_cells(table: Iterable[Mapping[str, str]], column: str, file: Path) -> None:
    """Refuse what is no number where other lines have the outcome."""
    cells = [(line, row.get(column, "").strip()) for line, row in enumerate(table, start=2)]
    cells = [(line, cell) for line, cell in cells if cell.lower() not in _NO_VALUE]
    texts = [(line, cell) for line, cell in cells if number_in(cell) is None]
    for line, cell in texts[:1]:
        if 2 * len(texts) < len(cells) or _COMMA.fullmatch(cell):
            raise ConfigurationError(
                f"{file}, line {line}: {column} is '{shortened(cell, 40)}', which is no number; "
                "write one such as 1024.5, or leave the cell empty"
            )


def _row(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The numbers of a row by TRL's names, and its step."""
    step = next((given[name] for name in STEP_COLUMNS if given.get(name) is not None), None)
    number = number_in(step)
    if number is None or not math.isfinite(number):
        raise ConfigurationError(
            f"{where} has a row without a step ({shortened(str(dict(given)), 120)}); restore it"
        )
    values = {
        translated(name): number_in(value)
        for name, value in given.items()
        if name not in STEP_COLUMNS and (value is None or number_in(value) is not None)
    }
    return {**values, "step": int(number)}


def _joined(rows: list[dict[str, Any]], columns: Columns | None) -> list[dict[str, Any]]:
    """One row a step; after a resume the last value of a step counts, but none that is missing or
    NaN replaces a number. Rows without a metric are left out, and TRL's last one with the totals,
    unless it has the reward of steps after the row before, or is all that a table of final values
    has of a run."""
    totals, reward = "train_runtime", "reward"
    steps = [row for row in rows if finite(row, totals) is None or finite(row, reward) is not None]
    by_step: dict[int, dict[str, Any]] = {}
    for row in steps or ([] if columns is None else rows):
        known = by_step.setdefault(row["step"], {}) if len(row) > 1 else {}
        for name, value in row.items():
            if finite(row, name) is not None or finite(known, name) is None:
                known[name] = value
    return [by_step[step] for step in sorted(by_step)]
