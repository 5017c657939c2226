"""Memory that a process on a CPU has freed: kept for the next step, or returned to the system."""

import ctypes
import os
import sys
from pathlib import Path

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Names of `mallopt`, from glibc's malloc.h."""
LARGEST = 2**30
"""Bytes: larger blocks, and more than this unused at the end of the heap, are returned."""
MUCH = 4 * 2**30
"""Bytes of a process that returns freed memory in its evaluations."""


def keep_freed_memory() -> None:
    """Memory that a training on a CPU frees stays with its process, unless the environment already
    sets glibc's malloc: every step takes tensors of the same sizes again, and a block that glibc
    has returned to the system costs a page fault for every 4 KiB."""
    set_by_user = any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ)
    if not set_by_user and (mallopt := _of_glibc("mallopt")):
        mallopt(MMAP_THRESHOLD, LARGEST)
        mallopt(TRIM_THRESHOLD, LARGEST)


def return_freed_memory() -> None:
    """The tensors of an evaluation have other sizes in every batch: kept, they leave holes that the
    next ones do not fit into, and the process grows."""
    statm = Path("/proc/self/statm")
    if (trim := _of_glibc("malloc_trim")) and statm.exists():
        pages = int(statm.read_text().split()[1])
        if pages * os.sysconf("SC_PAGE_SIZE") > MUCH:
            trim(0)


def _of_glibc(function: str):
    return getattr(ctypes.CDLL(None), function, None) if sys.platform == "linux" else None
