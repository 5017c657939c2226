"""Trouble that can be foreseen, in one sentence that says what to do. No torch.

Libraries report a full disk in their own ways, not always as an `OSError`; whatever is not known
here keeps its traceback.
"""

import errno

from trl_ablate.errors import ConfigurationError, RewardError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FULL_IN_WORDS = (
    "No space left on device",
    "os error 28",  # safetensors
    "PytorchStreamWriter failed writing",  # torch.save, by where it was when the disk ended
    "basic_ios::clear: iostream error",
    "unexpected pos",
    "database or disk is full",  # SQLite, where trackio keeps the curves
)
_SHARED_MEMORY_IN_WORDS = ("out of shared memory", "unable to write to file </torch_")
"""Of torch, where loader workers hand over rows."""

DISK_FULL = (
    "the disk is full{where}; free some space, then go on from the last whole checkpoint with "
    "--resume, or begin elsewhere with --output_dir"
)
SHARED_MEMORY_FULL = (
    "shared memory (/dev/shm) is full; set dataloader_num_workers to 0, or give the machine or "
    "container more (docker run --shm-size), then go on with --resume"
)
FOREIGN_STATE = (
    "a file of the checkpoint holds more than tensors and numbers, so it was not loaded: it could "
    "run code; it is not what the run saved, so go on from another checkpoint"
)
OUT_OF_MEMORY = (
    "the GPU ran out of memory; lower per_device_train_batch_size or vllm_gpu_memory_utilization, "
    "or set gradient_checkpointing to true, then go on with --resume"
)
ENGINE_DIED = (
    "a process of the vLLM engine died, and what it said stands above; if it was killed for its "
    "memory, lower vllm_gpu_memory_utilization; then go on with --resume"
)
SERVER_LOST = (
    "the vLLM server does not answer ({reason}); look there for what it said last, start it again "
    "with the run's seed, then go on with --resume"
)
GONE = "{file} is gone; put it back, then go on with --resume"
DIVERGED = (
    "the training diverged at GRPO step {step:g}: the model's probabilities are NaN or infinite; "
    "lower learning_rate"
)
ENDED_EARLY = (
    "the training ended at step {reached} of {wanted}, and neither the guard nor SIGTERM ended it: "
    "the questions did not make one rollout batch, or a callback stopped it; give more questions, "
    "or remove the callback, then go on with --resume"
)


class EndedEarly(RuntimeError):
    """A training ended before its last step, and nobody had stopped it on purpose."""


def check_reached_the_end(reached: int, wanted: int) -> None:
    """Refuse to call a training finished that has not taken all its optimizer steps."""
    if reached < wanted:
        raise EndedEarly(ENDED_EARLY.format(reached=reached, wanted=wanted))


def in_words(error: BaseException) -> str | None:
    """What happened and what to do about it; None for an error that nobody foresaw."""
    if isinstance(error, ConfigurationError | RewardError | EndedEarly):
        return str(error)
    file = getattr(error, "filename", None)
    if any(words in str(error) for words in _SHARED_MEMORY_IN_WORDS):
        return SHARED_MEMORY_FULL
    if type(error).__name__ == "UnpicklingError":
        return FOREIGN_STATE
    if is_disk_full(error):
        return DISK_FULL.format(where=f" ({file})" if file else "")
    if type(error).__name__ == "OutOfMemoryError":
        return OUT_OF_MEMORY
    if type(error).__name__ == "EngineDeadError":
        return ENGINE_DIED
    if _is_of_server(error):
        return SERVER_LOST.format(reason=str(error).split("\n")[0].rstrip("."))
    if isinstance(error, FileNotFoundError) and file is not None:
        return GONE.format(file=file)
    return None


def is_divergence(error: BaseException) -> bool:
    """Whether sampling failed because the weights have become NaN or infinite."""
    return "probability tensor contains either" in str(error)


def _is_of_server(error: BaseException) -> bool:
    """What TRL raises where the server refuses, and what requests does where there is none."""
    absent = type(error).__name__ == "ConnectionError" and type(error).__module__ != "builtins"
    return absent or str(error).startswith("Request failed: ")


def is_disk_full(error: BaseException) -> bool:
    """Whether the error, or one that it was raised from, is that of a full disk."""
    if isinstance(error, OSError) and error.errno in _FULL:
        return True
    if any(words in str(error) for words in _FULL_IN_WORDS):
        return True
    before = error.__cause__ or error.__context__
    return before is not None and is_disk_full(before)
