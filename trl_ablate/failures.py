"""Trouble that can be foreseen, in one sentence that says what to do. No torch.

Libraries report a full disk in their own ways, not always as an `OSError`; whatever is not known
here keeps its traceback.
"""

import errno

from trl_ablate.errors import ConfigurationError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FULL_IN_WORDS = (
    "No space left on device",
    "os error 28",  # safetensors
    "PytorchStreamWriter failed writing",  # torch.save
    "database or disk is full",  # SQLite, where trackio keeps the curves
)


class RewardError(RuntimeError):
    """A reward function raised; the sentence names it, and where."""


def in_words(error: BaseException) -> str | None:
    """What happened and what to do about it; None for an error that nobody foresaw."""
    if isinstance(error, ConfigurationError | RewardError):
        return str(error)
    if is_disk_full(error):
        file = getattr(error, "filename", None)
        return (
            f"the disk is full{f' ({file})' if file else ''}; free some space, then go on from the "
            "last whole checkpoint with --resume, or begin elsewhere with --output_dir"
        )
    if type(error).__name__ == "OutOfMemoryError":
        return (
            "the GPU ran out of memory; lower per_device_train_batch_size or "
            "vllm_gpu_memory_utilization, or set gradient_checkpointing to true, then go on with "
            "--resume"
        )
    if isinstance(error, FileNotFoundError) and error.filename is not None:
        return f"{error.filename} is gone; put it back, then go on with --resume"
    return None


def is_disk_full(error: BaseException) -> bool:
    """Whether the error, or one that it was raised from, is that of a full disk."""
    if isinstance(error, OSError) and error.errno in _FULL:
        return True
    if any(words in str(error) for words in _FULL_IN_WORDS):
        return True
    before = error.__cause__ or error.__context__
    return before is not None and is_disk_full(before)
