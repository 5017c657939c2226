"""Memory that a training on a CPU frees stays with its process.

Every step takes and frees tensors of the same sizes. By default, glibc returns large blocks to the
system at once, and each new one costs a page fault for every 4 KiB.
"""

import ctypes
import os
import sys

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Names of `mallopt`, from glibc's malloc.h."""
LARGEST = 2**30
"""Bytes: larger blocks, and more than this unused at the end of the heap, are returned."""


def keep_freed_memory() -> None:
    """Let glibc keep it, unless the environment already says what it shall do."""
    said = any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None and not said:
        mallopt(MMAP_THRESHOLD, LARGEST)
        mallopt(TRIM_THRESHOLD, LARGEST)
