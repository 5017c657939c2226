"""Old checkpoints are deleted by transformers, which here sees those of the run only.

Otherwise it takes a folder of the user, such as `checkpoint-2.bak`, for an old checkpoint.
"""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from transformers import trainer as transformers_trainer
from transformers import trainer_utils

from trl_ablate.run.directory import is_checkpoint
from trl_ablate.trainer.temporary import replaced


def rotate(run: Path, limit: int | None, best: str | None) -> None:
    """Delete the oldest checkpoints of a run beyond the limit, but not the best."""
    with replaced(trainer_utils, sort_checkpoints=_of_the_run):
        trainer_utils.rotate_checkpoints(str(run), limit, best, use_mtime=True)


def only_of_the_run() -> AbstractContextManager[None]:
    """Until the end of the block, the trainer of transformers finds no other folders, either."""
    return replaced(transformers_trainer, sort_checkpoints=_of_the_run)


_sort = trainer_utils.sort_checkpoints


def _of_the_run(*args: Any, **kwargs: Any) -> list[str]:
    return [path for path in _sort(*args, **kwargs) if is_checkpoint(Path(path))]
