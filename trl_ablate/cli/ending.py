"""How a command ends: its exit code, and a one-sentence message for an error. No torch.

`parsing.Command` runs every command in `exit_code_of`, the only place where an error becomes a
message and an exit code. An error that is not known here keeps its traceback. If the reader of the
output has closed it (`trl-ablate … | head -1`), the command continues to its end without output.
"""

import errno
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable

from trl_ablate.cli.terminal import outlive_the_reader
from trl_ablate.errors import REFUSED, ConfigurationError, PublishError, brief
from trl_ablate.run.failures import is_disk_full, message_of
from trl_ablate.run.termination import Terminated
from trl_ablate.run.untrusted import for_terminal

DONE, FAILED, PREEMPTED, INTERRUPTED = 0, 1, 75, 130
"""75 is a shell's EX_TEMPFAIL: not done, try again."""

NOISY_LIBRARIES = ("bitsandbytes",)
"""They print warnings when they are imported, such as one about a kernel that no recipe uses."""

NOISY_WARNINGS = (".?(is_)?gradient_checkpointing.? is deprecated",)
"""About what TRL calls and users cannot change."""


def exit_code_of(work: Callable[[], int | None], *, stopped: str, resumable: bool = False) -> int:
    """Do the work of a command; its exit code, `DONE` if it names none, or that of its error.

    Args:
        stopped: what to print about the state after Ctrl-C, such as "nothing was written".
        resumable: whether the command has `--resume`. Then the message says how to continue, and
            SIGTERM ends it with 75 instead of the code of Ctrl-C.
    """
    for library in NOISY_LIBRARIES:
        logging.getLogger(library).setLevel(logging.ERROR)
    for message in NOISY_WARNINGS:
        warnings.filterwarnings("ignore", message, FutureWarning)
    with outlive_the_reader():
        try:
            code = work() or DONE
            sys.stdout.flush()
            return code
        except Terminated:
            if resumable:
                sentence = "ended by SIGTERM; --resume continues from the last checkpoint"
                return _ended(sentence, PREEMPTED)
            return _ended(f"stopped by SIGTERM; {stopped}", INTERRUPTED)
        except KeyboardInterrupt:
            return _ended(f"stopped; {stopped}", INTERRUPTED)
        except ConfigurationError as error:
            return _ended(f"error: {error}", FAILED if isinstance(error, PublishError) else REFUSED)
        except Exception as error:
            sentence, code = _known(error, resumable)
            if sentence is None:
                raise
            _let_go(error)
            return _ended(f"error: {sentence}", code)


def _ended(sentence: str, code: int) -> int:
    sys.stderr.write(f"{for_terminal(sentence)}\n")
    return code


def _let_go(error: Exception) -> None:
    """Free the variables of the calls that failed, some of which cannot be freed in order: Python
    would print the tracebacks of that."""
    before, sys.unraisablehook = sys.unraisablehook, lambda _: None
    traceback.clear_frames(error.__traceback__)
    sys.unraisablehook = before


def _known(error: Exception, resumable: bool) -> tuple[str | None, int]:
    if resumable and (sentence := message_of(error)):
        return sentence, FAILED
    if isinstance(error, OSError) and error.filename is not None:
        can_be_changed = error.errno in (errno.ENOENT, *_OF_PATHS) and not is_disk_full(error)
        return about_path(error), REFUSED if can_be_changed else FAILED
    if isinstance(error, UnicodeEncodeError):
        return about_text(error), REFUSED
    if is_disk_full(error):
        return "the disk is full; free some space, then run the same command again", FAILED
    return message_of(error), FAILED


_OF_PATHS = {
    errno.EACCES: "there is no permission to use {path}; change its permissions, or choose another",
    errno.EPERM: "there is no permission to change {path}; choose another",
    errno.EROFS: "{path} is on a read-only file system; choose a folder elsewhere",
    errno.ENAMETOOLONG: "the name {path} is too long for the file system; choose a shorter one",
    errno.ENOTDIR: "a part of {path} is a file, but must be a folder; choose another path",
    errno.EISDIR: "{path} is a folder, but must be a file; choose another path",
    errno.EEXIST: "{path} exists already and is not a folder; remove it, or choose another path",
    errno.ENOTEMPTY: "the folder {path} is not empty; remove what is in it, or choose another",
    errno.ELOOP: "{path} is a symbolic link that leads back to itself; remove it",
    errno.ENOSPC: "the disk is full ({path}); free some space, then run the same command again",
    errno.EDQUOT: "the disk quota is used up ({path}); free some space, then run the same command "
    "again",
}


def about_path(error: OSError) -> str:
    name = os.fsdecode(error.filename) if isinstance(error.filename, bytes) else str(error.filename)
    path = brief(name, 300)
    if os.path.islink(name) and error.errno in (errno.ENOENT, errno.EEXIST):
        target = brief(os.readlink(name), 300)
        return f"{path} is a symbolic link to {target}, which does not exist; remove the link"
    if error.errno == errno.ENOENT:
        return f"{path} does not exist; check the path"
    known = _OF_PATHS.get(error.errno or 0)
    return known.format(path=path) if known else f"{path}: {error.strerror}"


def about_text(error: UnicodeEncodeError) -> str:
    """The message for a file name that is not UTF-8; Python reads such bytes as surrogates."""
    around = error.object[max(0, error.start - 60) : error.end + 60]
    return (
        f"'{brief(around, 160)}' has bytes that are not UTF-8 and cannot be written to a record; "
        "rename the file or folder"
    )
