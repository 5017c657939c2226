"""Which checkpoint a run goes on from: the latest that was written to its end. No torch.

A checkpoint is many files, by several processes. When all are there it is sealed: a last file names
them with their checksums. A checkpoint without a seal was cut off in the making; one that does not
agree with it was damaged since. Either is passed over for the one before.
"""

import json
import math
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from trl_ablate.errors import ConfigurationError
from trl_ablate.run.directory import RunDirectory
from trl_ablate.run.files import read_json, write_json

SEAL = "sealed.json"
CHUNK = 1 << 24


def latest_whole_checkpoint(run: Path) -> Path | None:
    """The last `checkpoint-N` that agrees with its seal; None where there is none."""
    folders = sorted(RunDirectory(run).checkpoints(), key=step_of, reverse=True)
    return next(filter(is_whole, folders), None)


def agreed_checkpoint(
    run: Path, gather: Callable[[list[Path | None]], list[Path | None]]
) -> Path | None:
    """The latest whole checkpoint, which every process has to find; `gather` collects from all.

    They find different ones where the nodes share no disk and only one of them has saved.
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
    """The optimizer step of `checkpoint-N`."""
    return int(checkpoint.name.removeprefix("checkpoint-"))


def seal(checkpoint: Path) -> None:
    """Declare a checkpoint whole; called when every process has written its part."""
    break_seal(checkpoint)
    write_json(checkpoint / SEAL, _checksums(checkpoint))


def break_seal(checkpoint: Path) -> None:
    """A checkpoint that is about to be written over is no longer whole."""
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
            f"{run.path} has logged rows but holds no whole checkpoint to resume from; start over "
            "with --overwrite, or give another --output_dir"
        )


def check_seal(model: Path, *, needed: bool = False) -> None:
    """Refuse a model that is not as it was sealed, or has no seal where one is `needed`."""
    if (needed or (model / SEAL).exists()) and not is_whole(model):
        raise ConfigurationError(
            f"{model} is no longer as it was saved, or was cut off in the making: it does not "
            f"agree with its {SEAL}; take another checkpoint, or train it again"
        )


def rewind(run: RunDirectory, checkpoint: Path | None) -> None:
    """Forget what the run recorded after a checkpoint, or all of it where there is none. That can
    be a row of the checkpoint's own step: a stop logs one where every epoch's end is logged."""
    if checkpoint is None:
        run.rewind(-1)
    else:
        run.rewind(step_of(checkpoint), rows=len(_logged(checkpoint)))


def check_record(run: RunDirectory, checkpoint: Path, best_metric: str) -> None:
    """Refuse to resume where what was recorded up to a checkpoint is missing: no later row and no
    later model would show it. Nothing is changed."""
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
    """Refuse to go on, or to end, with a best model that is not the one that was saved: no better
    one may come."""
    if not is_whole(run.checkpoint_best):
        raise ConfigurationError(
            f"{run.checkpoint_best} has changed since it was saved: a file is missing or damaged; "
            "restore it and use --resume, or start over with --overwrite"
        )


def best_logged(rows: Iterable[Mapping[str, Any]], metric: str) -> dict[str, Any] | None:
    """Metric, value and step of the first evaluation that no other one beats; None where there is
    none with a number."""
    best = None
    for row in rows:
        value = row.get(metric)
        if value is not None and value > (best["value"] if best else -math.inf):
            best = {"metric": metric, "value": value, "step": row["step"]}
    return best


def _logged(checkpoint: Path) -> list[dict[str, Any]]:
    """The rows up to a checkpoint that a run records, too."""
    state = read_json(checkpoint / "trainer_state.json")
    return [row for row in state["log_history"] if "train_runtime" not in row]


def _checksums(folder: Path) -> dict[str, int]:
    """CRC-32 of every file below a folder, by its path from there; 2 GB take about a second."""
    files = (file for file in folder.rglob("*") if file.is_file())
    return {file.relative_to(folder).as_posix(): _checksum(file) for file in sorted(files)}


def _checksum(file: Path) -> int:
    found = 0
    with file.open("rb") as opened:
        while chunk := opened.read(CHUNK):
            found = zlib.crc32(chunk, found)
    return found
