"""The logged rows of any GRPO run, whoever trained it. No torch.

A path means, by its name and content:

    a folder           its metrics.jsonl, that of `GuardCallback`, trainer_state.json (or that of
                       its last checkpoint), trackio databases, or CSV files, in this order
    trainer_state.json of transformers: its `log_history`
    *.jsonl            one object a line with `step`, such as metrics.jsonl
    *.db               a trackio project, with all its runs
    *.csv              W&B's export of a table or of a chart, TensorBoard's export of a curve, or
                       any table with a column of steps

Anything else is the name of a trackio project on this machine. Metrics get TRL's names: the
`train/reward` of a tracker is `reward` here. Rows of one step are joined; the last value counts.
"""

import csv
import json
import math
import os
import re
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trl_ablate.errors import ConfigurationError, shortened
from trl_ablate.metrics import WATCHED_BY_RULES, translated
from trl_ablate.run.json_files import read_jsonl, read_object

STEP_COLUMNS = ("train/global_step", "global_step", "step", "_step", "Step")
"""The optimizer step, if a table has one. Trackers also count their own calls, which come last."""
TENSORBOARD = ["Wall time", "Step", "Value"]
_TAG = re.compile(r"(?:run-(?P<run>.+)-)?tag-(?P<tag>.+)")
_CHART_PART = re.compile(r"(?P<run>.+) - (?P<metric>[^ ]+)")
_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""How trackio and W&B write what JSON lacks."""

KINDS = "trainer_state.json, metrics.jsonl, a trackio project (.db or its name), or a CSV export"


@dataclass(frozen=True)
class Log:
    """The rows of one run in the order of their steps, each with `step`."""

    name: str
    rows: list[dict[str, Any]]


def read_logs(path: str | os.PathLike) -> list[Log]:
    """The runs that a path holds, at least one."""
    there = Path(path)
    if there.is_dir():
        found = _of_folder(there)
    elif there.is_file():
        found = _of_file(there)
    else:
        found = _of_database(_project_named(there))
    logs = [Log(name, rows) for name, given in found.items() if (rows := _joined(given))]
    if not logs:
        raise ConfigurationError(
            f"{path} has no logged steps; give a log of training: {KINDS}, or a folder with one"
        )
    return logs


Rows = dict[str, list[dict[str, Any]]]
"""Name of a run -> its rows as the file has them, with TRL's names and `step`."""


def _of_folder(folder: Path) -> Rows:
    states = [folder / "trainer_state.json", *_checkpoints(folder)]
    for file in (folder / "metrics.jsonl", folder / "guard" / "metrics.jsonl", *states):
        if file.is_file():
            return _of_file(file)
    for pattern in ("*.db", "*.csv"):
        files = sorted(folder.glob(pattern))
        if files:
            return _merged(_of_file(file) for file in files)
    raise ConfigurationError(f"folder {folder} has no log of a run; it should have {KINDS}")


def _checkpoints(folder: Path) -> list[Path]:
    """The states of all checkpoints, the last first."""
    numbered = [
        (int(found[1]), path / "trainer_state.json")
        for path in folder.glob("checkpoint-*")
        if (found := re.fullmatch(r"checkpoint-(\d+)", path.name))
    ]
    return [path for _, path in sorted(numbered, reverse=True)]


def _merged(parts: Iterable[Rows]) -> Rows:
    """Curves of one run in several files."""
    merged: Rows = {}
    for part in parts:
        for name, rows in part.items():
            merged.setdefault(name, []).extend(rows)
    return merged


def _of_file(file: Path) -> Rows:
    readers = {".json": _of_state, ".jsonl": _of_jsonl, ".db": _of_database, ".csv": _of_csv}
    if file.suffix not in readers:
        raise ConfigurationError(f"{file} is not a log that is known here; give {KINDS}")
    return readers[file.suffix](file)


def _of_state(file: Path) -> Rows:
    history = read_object(file).get("log_history")
    if not isinstance(history, list) or not all(isinstance(row, dict) for row in history):
        raise ConfigurationError(
            f"{file} has no log_history; give transformers' trainer_state.json"
        )
    return {file.parent.name or file.name: [_row(row, file) for row in history]}


def _of_jsonl(file: Path) -> Rows:
    return {file.parent.name or file.name: [_row(row, file) for row in read_jsonl(file)]}


def _of_database(file: Path) -> Rows:
    """A trackio project. Its own step counts calls, so rows are joined by the optimizer step."""
    order = "SELECT run_name, step, metrics FROM metrics ORDER BY id"
    found: Rows = {}
    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as database:
            for name, call, text in database.execute(order):
                values = json.loads(text)
                found.setdefault(name, []).append(_row({"_step": call, **values}, file))
    except (sqlite3.Error, ValueError, TypeError) as error:
        raise ConfigurationError(
            f"{file} is not a trackio project that can be read ({shortened(str(error), 120)}); "
            "give another file"
        ) from error
    return found


def _project_named(name: Path) -> Path:
    """The database of a project in trackio's folder."""
    home = Path(os.environ.get("TRACKIO_DIR") or Path.home() / ".cache/huggingface/trackio")
    file = home / f"{name}.db"
    if len(name.parts) != 1 or not file.is_file():
        raise ConfigurationError(
            f"{shortened(str(name), 300)} is neither a file nor a folder, nor a trackio project in "
            f"{home}; give {KINDS}, or a folder with one"
        )
    return file


def _of_csv(file: Path) -> Rows:
    try:
        with file.open(encoding="utf-8-sig", newline="") as opened:
            header, *records = csv.reader(opened, strict=True)
    except (UnicodeDecodeError, csv.Error, ValueError) as error:
        raise ConfigurationError(
            f"{file} is not a CSV file with a header ({shortened(str(error), 120)}); export it anew"
        ) from error
    table = [dict(zip(header, record, strict=False)) for record in records]
    if header == TENSORBOARD:
        return _of_curve(file, table)
    step = next((name for name in STEP_COLUMNS if name in header), None)
    if step is None:
        raise ConfigurationError(
            f"{file} has no column of steps; name one of its columns {', '.join(STEP_COLUMNS)}"
        )
    parts = {name: part for name in header if (part := _CHART_PART.fullmatch(name))}
    if parts:
        return _of_chart(file, table, step, parts)
    rows = [{key: value for key, value in row.items() if value != ""} for row in table]
    return {file.stem: [_row(row, file) for row in rows]}


def _of_chart(
    file: Path, table: list[dict[str, str]], step: str, parts: Mapping[str, re.Match[str]]
) -> Rows:
    """W&B's export of a chart: one metric, with a column for each run, its lowest and highest."""
    found: Rows = {}
    for column, part in parts.items():
        if not part["metric"].endswith(("__MIN", "__MAX")):
            found.setdefault(part["run"], []).extend(
                _row({"step": row[step], part["metric"]: row[column]}, file)
                for row in table
                if row.get(column, "") != ""
            )
    return found


def _of_curve(file: Path, table: list[dict[str, str]]) -> Rows:
    """TensorBoard's export of one curve: the file's name is all that tells which one it is."""
    named = _TAG.search(file.stem)
    tag = named["tag"] if named else file.stem
    known = {re.sub(r"\W", "_", name): name for name in WATCHED_BY_RULES}
    metric = re.sub(r"\W", "_", tag).removeprefix("train_")
    run = (named and named["run"]) or file.parent.name
    rows = [{"step": row["Step"], known.get(metric, metric): row["Value"]} for row in table]
    return {run: [_row(row, file) for row in rows]}


def _row(given: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """The numbers of a row by TRL's names, and its step."""
    step = next((given[name] for name in STEP_COLUMNS if given.get(name) is not None), None)
    number = _number(step)
    if number is None or not math.isfinite(number):
        raise ConfigurationError(
            f"{file} has a row without a step ({shortened(str(dict(given)), 120)}); restore it"
        )
    values = {
        translated(name): _number(value)
        for name, value in given.items()
        if name not in STEP_COLUMNS and (value is None or _number(value) is not None)
    }
    return {**values, "step": int(number)}


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        try:
            return _NUMBERS[value] if value in _NUMBERS else float(value)
        except ValueError:
            return None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _joined(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a step; after a resume the last value of a step counts. Rows without a metric of
    training or evaluation are left out, such as TRL's last one with the totals."""
    by_step: dict[int, dict[str, Any]] = {}
    for row in filter(_is_of_a_step, rows):
        by_step.setdefault(row["step"], {}).update(row)
    return [by_step[step] for step in sorted(by_step)]


def _is_of_a_step(row: Mapping[str, Any]) -> bool:
    return any(name in WATCHED_BY_RULES or name.startswith("eval_") for name in row)
