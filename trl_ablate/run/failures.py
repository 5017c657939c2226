"""One-sentence messages for known failures, each with what to do. No torch.

Libraries report a full disk in different ways, not always as an `OSError`. An error that is not
known here keeps its traceback.
"""

import errno
import os
import traceback
from contextlib import contextmanager

from trl_ablate.errors import ConfigurationError, RewardError
from trl_ablate.named_code import line_of, one_line

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FULL_IN_WORDS = (
    "No space left on device",
    "os error 28",  # safetensors
    "PytorchStreamWriter failed writing",  # torch.save, like the next two
    "basic_ios::clear: iostream error",
    "unexpected pos ",
    "database or disk is full",  # SQLite, where trackio keeps the curves
)
_SHARED_MEMORY_IN_WORDS = ("out of shared memory", "unable to write to file </torch_")
"""Messages of torch, when loader workers pass rows to the training."""
_LOCKS = os.path.join("multiprocessing", "synchronize.py")

RERUN = "then rerun with --resume"
ENGINE_DIED = (
    "a process of the vLLM engine died; see its output above; if it ran out of memory, lower "
    f"vllm_gpu_memory_utilization; {RERUN}"
)
DIVERGED = (
    "the training diverged at GRPO step {step:g}: the model's probabilities are NaN or infinite; "
    "lower learning_rate"
)
ENDED_EARLY = (
    "the training ended at step {reached} of {wanted}, and neither the guard nor SIGTERM ended it: "
    "the questions do not fill one rollout batch, or a callback stopped it; give more questions, "
    f"or remove the callback, {RERUN}"
)

_BY_NAME = {
    "UnpicklingError": "a file of the checkpoint holds more than tensors and numbers, so it was "
    "not loaded: it could run code; the run did not save this file, so resume from another "
    "checkpoint",
    "OutOfMemoryError": "the GPU ran out of memory; lower per_device_train_batch_size or "
    f"vllm_gpu_memory_utilization, or set gradient_checkpointing to true, {RERUN}",
    "EngineDeadError": ENGINE_DIED,
}
"""Errors of libraries that are not imported here, by their names."""


class EndedEarly(RuntimeError):
    """A training ended before its last step, and nothing had stopped it on purpose."""


def ended_by_exit(error: SystemExit) -> EndedEarly:
    """Code that the recipe names has called `sys.exit`."""
    line, file = line_of(error, None)
    return EndedEarly(
        f"the training was ended by {one_line(error)} (line {line} of {file}); remove the call, "
        f"{RERUN}"
    )


def message_of(error: BaseException) -> str | None:
    """The message for a known failure, with what to do; None for an unknown error."""
    name, said, file = type(error).__name__, str(error), getattr(error, "filename", None)
    if isinstance(error, ConfigurationError | RewardError | EndedEarly):
        return said
    if _is_of_shared_memory(error):
        return (
            "shared memory (/dev/shm) is full; set dataloader_num_workers to 0, or give the "
            f"machine or container more (docker run --shm-size), {RERUN}"
        )
    if name in _BY_NAME:
        return _BY_NAME[name]
    if is_disk_full(error):
        return (
            f"the disk is full{f' ({file})' if file else ''}; free some space, {RERUN} to continue "
            "from the last whole checkpoint, or start a new run on another disk with --output_dir"
        )
    through = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    no_server = name == "ConnectionError" and any("vllm_client" in file for file in through)
    if no_server or said.startswith("Request failed: "):  # by TRL, when the server refused
        reason = said.split("\n")[0].rstrip(".")
        return (
            f"the vLLM server does not answer ({reason}); check its log, start it again with the "
            f"run's seed, {RERUN}"
        )
    if isinstance(error, FileNotFoundError) and file is not None:
        return f"{file} is missing; restore it, {RERUN}"
    if "No usable temporary directory found" in said:
        return (
            "no folder for temporary files can be written to: the disk is full, or all of them are "
            "read-only; free some space, or set TMPDIR to another folder"
        )
    return None


def is_divergence(error: BaseException) -> bool:
    """Whether sampling failed because the weights have become NaN or infinite."""
    return "probability tensor contains either" in str(error)


def _is_of_shared_memory(error: BaseException) -> bool:
    """Whether torch reports it, or Python could not make a lock there, which names no file."""
    if any(words in str(error) for words in _SHARED_MEMORY_IN_WORDS):
        return True
    raised_in = [frame.filename for frame in traceback.extract_tb(error.__traceback__)[-1:]]
    of_a_lock = any(name.endswith(_LOCKS) for name in raised_in)
    return isinstance(error, OSError) and error.errno in _FULL and of_a_lock


def is_disk_full(error: BaseException) -> bool:
    """Whether the error, or one that it was raised from, reports a full disk."""
    if isinstance(error, OSError) and error.errno in _FULL:
        return True
    if any(words in str(error) for words in _FULL_IN_WORDS):
        return True
    before = error.__cause__ or error.__context__
    return before is not None and is_disk_full(before)


@contextmanager
def one_sentence(what: str, remedy: str, failed: str = " could not be loaded"):
    """Report whatever goes wrong with `what` as one sentence, with the remedy."""
    try:
        yield
    except ConfigurationError:
        raise
    except Exception as error:
        if is_disk_full(error):
            raise
        said = str(error).strip() or type(error).__name__
        reason = said.split("\n")[0].rstrip(".")
        raise ConfigurationError(f"{what}{failed} ({reason}); {remedy}") from error
