"""Which checkpoint a run resumes from: the latest complete one. No torch.

Several processes write the files of a checkpoint. When all files exist, it is sealed: a last file
lists them with their checksums. A checkpoint without a seal is incomplete; one that does not match
its seal was damaged later. Both are skipped, and the one before is used.
"""

import json
import math
import shutil
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from trl_ablate.errors import ConfigurationError
from trl_ablate.run.directory import RunDirectory
from trl_ablate.run.json_files import read_json, write_json

SEAL = "sealed.json"
CHUNK = 1 << 24


def latest_whole_checkpoint(run: Path) -> Path | None:
    """The last `checkpoint-N` that agrees with its seal, and holds more than the model, as those of
    `save_only_model` do not; None where there is none."""
    folders = sorted(RunDirectory(run).checkpoints(), key=step_of, reverse=True)
    return next((one for one in folders if any(one.glob("rng_state*")) and is_whole(one)), None)


def agreed_checkpoint(
    run: Path, gather: Callable[[list[Path | None]], list[Path | None]]
) -> Path | None:
    """The latest whole checkpoint, if all processes find the same one; `gather` collects from all.

    They find different ones if the nodes share no disk and only one of them has saved.
    """
    checkpoint = latest_whole_checkpoint(run)
    found = {path.name if path else "none" for path in gather([checkpoint])}
    if len(found) > 1:
        raise ConfigurationError(
            f"the processes find different last checkpoints ({', '.join(sorted(found))}); put "
            "output_dir on a disk that all nodes share, or copy the latest checkpoint to every "
            "node and set save_on_each_node to true"
        )
    return checkpoint


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("checkpoint-"))


def seal(checkpoint: Path) -> None:
    """Declare a checkpoint whole; called when every process has written its part."""
    break_seal(checkpoint)
    write_json(checkpoint / SEAL, _checksums(checkpoint))


def break_seal(checkpoint: Path) -> None:
    """Remove the seal of a checkpoint that is about to be overwritten."""
    (checkpoint / SEAL).unlink(missing_ok=True)


def is_whole(checkpoint: Path) -> bool:
    """Whether a checkpoint holds what was sealed, byte for byte."""
    try:
        sealed = json.loads((checkpoint / SEAL).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(sealed, dict) and sealed.items() <= _checksums(checkpoint).items()


def check_something_to_resume(run: RunDirectory) -> None:
    """Refuse to resume, without a whole checkpoint, a run that has logged anything: it would be
    lost."""
    if next(run.metrics(), None) is not None:
        raise ConfigurationError(
            f"{run.path} has logged rows but holds no whole checkpoint to resume from (those of "
            "save_only_model are not); start over with --overwrite, or give another --output_dir"
        )


def check_seal(model: Path, *, needed: bool = False) -> None:
    """Refuse a model that is not as it was sealed, or has no seal where one is `needed`."""
    if (needed or (model / SEAL).exists()) and not is_whole(model):
        raise ConfigurationError(
            f"{model} does not match its {SEAL}: it is incomplete, or was changed after it was "
            "saved; use another checkpoint, or train it again"
        )


def rewind(run: RunDirectory, checkpoint: Path | None) -> None:
    """Delete what the run recorded after a checkpoint, or everything if there is none. This may
    include a row of the checkpoint's own step, where the end of every epoch is logged, and includes
    the model of an earlier end, which is not where this start will end."""
    shutil.rmtree(run.checkpoint_last, ignore_errors=True)
    if checkpoint is None:
        run.rewind(-1)
    else:
        run.rewind(step_of(checkpoint), rows=len(_logged(checkpoint)))


def check_record(run: RunDirectory, checkpoint: Path, best_metric: str) -> None:
    """Refuse to resume if a record from before the checkpoint is missing: no later row or model
    would show the loss. Nothing is changed."""
    logged = _logged(checkpoint)
    kept = run.rows_until(step_of(checkpoint), most=len(logged))
    if [row["step"] for row in logged] != [row["step"] for row in kept]:
        raise ConfigurationError(
            f"{run.metrics_file} lacks rows from before {checkpoint.name}, where the run would "
            "continue; restore the file, or start over with --overwrite"
        )
    if best_logged(logged, best_metric):
        check_best(run)
    if (best := run.best()) and best["metric"] != best_metric:
        raise ConfigurationError(
            f"{run.checkpoint_best} holds the best model by {best['metric']}, and the one by "
            f"{best_metric} was not kept; resume with --best_metric {best['metric']}, or "
            "start over with --overwrite"
        )


def check_best(run: RunDirectory) -> None:
    """Refuse to continue or to finish if the best model is not the one that was saved: there may
    never be a better one."""
    if not is_whole(run.checkpoint_best):
        raise ConfigurationError(
            f"{run.checkpoint_best} has changed since it was saved: a file is missing or damaged; "
            "restore it and use --resume, or start over with --overwrite"
        )


def best_logged(rows: Iterable[Mapping[str, Any]], metric: str) -> dict[str, Any] | None:
    """Metric, value and step of the best evaluation, and of equal ones the first; None if no
    evaluation has the metric."""
    best = None
    for row in rows:
        value = row.get(metric)
        if value is not None and value > (best["value"] if best else -math.inf):
            best = {"metric": metric, "value": value, "step": row["step"]}
    return best


def _logged(checkpoint: Path) -> list[dict[str, Any]]:
    """The rows in a checkpoint's history that the run also writes to metrics.jsonl."""
    state = read_json(checkpoint / "trainer_state.json")
    return [row for row in state["log_history"] if "train_runtime" not in row]


def _checksums(folder: Path) -> dict[str, int]:
    """CRC-32 of every file below a folder, by its path from there; 2 GiB take about a second."""
    sums: dict[str, int] = {}
    for file in sorted(file for file in folder.rglob("*") if file.is_file()):
        found = 0
        with file.open("rb") as opened:
            while chunk := opened.read(CHUNK):
                found = zlib.crc32(chunk, found)
        sums[file.relative_to(folder).as_posix()] = found
    return sums
