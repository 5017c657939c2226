"""Finished runs of a study in one table beside it, without weights. No torch.

`runs.parquet` has a row for each logged row of each run: the run's id, and as float32 the metrics
that reports and audits read. The first row of a run also holds its settings and its record, as
JSON. With it a study continues on another machine, and its numbers can be computed again.
"""

import ctypes
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from trl_ablate.errors import ConfigurationError
from trl_ablate.metrics import stderr_of
from trl_ablate.run.directory import RunDirectory
from trl_ablate.run.folders import part_of, replace_folder
from trl_ablate.run.json_files import read_object, write_jsonl
from trl_ablate.study.cleaning import written_by
from trl_ablate.study.planned import Plan
from trl_ablate.study.runs import StudyRuns
from trl_ablate.study.store import DONE, RunStore

OF_THE_MACHINE = ("command", "host")
"""Entries of a run's record that name a machine's folders, or the machine."""

READ = re.compile(
    r"step|grpo_step|seconds|reward|(format|answer)_reward|entropy|grad_norm|frac_reward_zero_std"
    r"|rollouts/generated_tokens|completions/(mean_length|clipped_ratio)"
    r"|advantages/weight/.*|style/.*|eval_(mean_length|truncated)"
    r"|eval_((format_|answer_)?reward|pass@\d+)(_stderr)?|eval_reward/.*"
)
"""The metrics that are kept, besides the study's own."""

COARSE = {
    "seconds": ".3g",
    "entropy": ".2g",
    "grad_norm": ".2g",
    "advantages/weight/": ".2f",
    "style/": ".3g",
}
"""By the start of a metric's name: the digits that curves need of it."""

SAME = b"same"
"""Metadata of the table: columns that are equal to another one, which alone is written."""

FEW_VALUES = 512
"""Up to how many values a column is written as a dictionary of them."""

TEXTS = ("run", "settings", "record")
"""The columns that are text; all others are metrics."""


@dataclass(frozen=True)
class Kept:
    """What is kept of a run: the texts of its settings and its record, and its logged rows."""

    settings: str
    record: str
    rows: list[dict[str, float]]


def beside(study: Path) -> Path:
    """Where the runs of a study.yaml are kept."""
    return study.with_name("runs.parquet")


def keep(study: StudyRuns, file: Path) -> int:
    """Write the finished runs of a study to a file, and those of them that it has already and the
    store does not; returns their number. The same runs make the same bytes. Not all runs are kept
    with all metrics (`_rows_of`)."""
    from pyarrow import parquet

    plan, before = study.plan, kept(file)
    runs = {one: before[one] for one in before.keys() & plan.runs().keys() - study.done}
    for arm in plan.arms:
        for position, run_id in enumerate((run.id for run in arm.runs), start=-plan.trials):
            if run_id in runs or run_id in study.done:
                found = runs.get(run_id) or _of_run(study.store, run_id)
                if not _logs(found.rows, plan):  # restored for another study
                    found = before.get(run_id, found)
                runs[run_id] = replace(found, rows=_rows_of(plan, position, found.rows))
    table, part = _once(_table(runs)), part_of(file)
    floats = [field.name for field in table.schema if field.type == "float"]
    fine = [name for name in floats if len(table[name].unique()) > FEW_VALUES]
    others = list(set(table.column_names) - set(fine))
    how: Any = {
        "use_dictionary": others, "use_byte_stream_split": fine,  # a quarter smaller
        "write_statistics": False, "store_schema": False,  # nobody looks for a row in it
        "compression": "zstd", "compression_level": 19,
    }  # fmt: skip
    with parquet.ParquetWriter(part, table.schema, **how) as writer:
        writer.add_key_value_metadata(table.schema.metadata or {})
        writer.write_table(table)
    part.replace(file)
    return len(runs)


def kept(file: Path) -> dict[str, Kept]:
    """The runs in a file, by id; none if there is no such file."""
    if not file.is_file():
        return {}
    import pyarrow as arrow
    from pyarrow import parquet

    runs: dict[str, Kept] = {}
    try:
        table = parquet.read_table(file)
        for name, first in json.loads((table.schema.metadata or {}).get(SAME, b"{}")).items():
            table = table.append_column(name, table[first])
        for row in table.to_pylist():
            run_id, settings, record = (row.pop(name) for name in TEXTS)
            run = runs.setdefault(run_id, Kept(settings, record, []))
            logged = {name: _as_logged(value) for name, value in row.items() if value is not None}
            run.rows.extend([logged] if logged else [])
    except (arrow.ArrowException, OSError, KeyError) as error:
        raise ConfigurationError(f"{file} is damaged ({error}); take it from git again") from error
    return runs


def restore(
    study: StudyRuns, file: Path, say: Callable[[str], None] = lambda text: None
) -> list[str]:
    """Put those runs of a file into the store that the study has and that are not done, or that
    were restored for a study with another metric; returns their ids. A run that a process or a
    service works on is left alone; so is, and is named, one that has other values, or whose folder
    has checkpoints or files of the user."""
    store, wanted = study.store, study.plan.runs()
    runs, restored = kept(file), []
    for run_id in sorted(wanted.keys() & runs.keys()):
        lock = store.lock(run_id)
        state = store.state(run_id)
        status = state.status
        run = store.directory(run_id, wanted[run_id].folder)
        has, rows = [*run.metrics()] if status in DONE else [], runs[run_id].rows
        if _differ(has, rows, study.plan.primary_metric):
            say(f"{run.path} has other values than the run that {file} keeps: left as it is")
        if status in DONE and (_logs(has, study.plan) or not _logs(rows, study.plan)):
            continue
        if status == "running" or not lock.acquire():
            continue
        try:
            if state.damaged:
                say(f"{state.reason}: not restored")
                continue
            if any(run.path.glob("checkpoint*")) or written_by(run) != [run.path]:
                say(f"{run.path} has checkpoints or files of yours: not restored; remove it first")
                continue
            part = RunDirectory(part_of(run.path))
            part.path.mkdir(parents=True, exist_ok=True)
            part.config_file.write_text(runs[run_id].settings, encoding="utf-8")
            part.run_file.write_text(runs[run_id].record, encoding="utf-8")
            write_jsonl(part.metrics_file, _by_step([*has, *rows]) if has else rows)
            replace_folder(run.path)
            restored.append(run_id)
        finally:
            lock.release()
    return restored


def _logs(rows: Iterable[Mapping[str, Any]], plan: Plan) -> bool:
    return any(plan.primary_metric in row for row in rows)


def _differ(
    one: Iterable[Mapping[str, Any]], other: Iterable[Mapping[str, Any]], metric: str
) -> bool:
    """Whether two runs differ in a metric at a step that both log, by more than rounding."""
    ours, theirs = (
        {row.get("step"): row[metric] for row in rows if row.get(metric) is not None}
        for rows in (one, other)
    )
    close = partial(math.isclose, rel_tol=1e-6, abs_tol=1e-6)
    return not all(close(ours[step], theirs[step]) for step in ours.keys() & theirs.keys())


def _by_step(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What two studies have kept of one run, in its order."""
    found: dict[tuple[Any, bool], dict[str, Any]] = {}
    for row in rows:
        evaluated = any(name.startswith("eval_") for name in row)
        found.setdefault((row.get("step"), evaluated), {}).update(row)
    return sorted(found.values(), key=lambda row: row.get("step") or 0)


def _of_run(store: RunStore, run_id: str) -> Kept:
    """What is kept of a run; the folder of all runs is named `runs`, here and where it was made."""
    run = store.directory(run_id)
    record = {key: value for key, value in run.read().items() if key not in OF_THE_MACHINE}
    settings = read_object(run.config_file)
    made = Path(settings.get("config", {}).get("output_dir", "")).parent
    text, of_record = json.dumps(settings), json.dumps(record)
    for place in sorted({store.path.resolve(), made}, key=lambda one: -len(one.parts)):
        if place.is_absolute() and len(place.parts) > 1:
            here = json.dumps(str(place))[1:-1]
            text, of_record = text.replace(here, "runs"), of_record.replace(here, "runs")
    return Kept(text, of_record, list(run.metrics()))


def _rows_of(plan: Plan, position: int, rows: list[dict[str, float]]) -> list[dict[str, float]]:
    """Of trials, before 0, the evaluations: they only choose a value. The first run of an arm alone
    has what a picture of its mechanism shows and evaluations by level. Those after the first look
    of a study in two parts, which is large, have no gradient norms."""
    beyond = plan.judge == "two_part" and bool(plan.looks) and position >= plan.looks[0]
    dropped = ("style/", "advantages/weight/", "eval_reward/") * (position != 0)
    dropped += ("grad_norm",) * beyond
    own = (plan.primary_metric, stderr_of(plan.primary_metric))

    def is_kept(name: str, value: float | None) -> bool:
        read = READ.fullmatch(name) and not name.startswith(dropped)
        return value is not None and (name in own or bool(read))

    def coarse(name: str, value: float) -> float:
        digits = next((of for start, of in COARSE.items() if name.startswith(start)), "")
        return float(format(value, digits)) if digits and name not in own else value

    return [
        {name: coarse(name, value) for name, value in row.items() if is_kept(name, value)}
        for row in rows
        if position >= 0 or row.get(plan.primary_metric) is not None
    ]


def _table(runs: Mapping[str, Kept]) -> Any:
    import pyarrow as arrow

    rows = []
    for run_id, run in sorted(runs.items()):
        first, *others = run.rows or [{}]
        rows.append({"run": run_id, "settings": run.settings, "record": run.record, **first})
        rows += [{"run": run_id, **row} for row in others]
    metrics = sorted({name for run in runs.values() for row in run.rows for name in row})
    types = dict.fromkeys(TEXTS, arrow.string()) | dict.fromkeys(metrics, arrow.float32())
    types |= {name: arrow.int32() for name in ("step",) if name in metrics}
    return arrow.Table.from_pylist(rows, arrow.schema(list(types.items())))


def _as_logged(value: float) -> float:
    """A decimal of six places, if its float32 is this value: 0.82 for 0.8199999928."""
    short = round(value, 6)
    return short if ctypes.c_float(short).value == value else value


def _once(table: Any) -> Any:
    """The table without the columns that are equal to an earlier one."""
    first: dict[str, str] = {}
    for name in table.column_names:
        same = (other for other in first.values() if table[name].equals(table[other]))
        first[name] = next(same, name)
    doubled = {name: other for name, other in first.items() if name != other}
    return table.drop_columns(list(doubled)).replace_schema_metadata({SAME: json.dumps(doubled)})
