"""What a training on a CPU takes of the machine: memory that it keeps, and threads.

Every step takes and frees tensors of the same sizes. By default, glibc returns large blocks to the
system at once, and each new one costs a page fault for every 4 KiB.
"""

import ctypes
import os
import sys

import torch

from trl_ablate.miniature.registry import is_of_one_core
from trl_ablate.study.engines import THREAD_VARIABLES

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Names of `mallopt`, from glibc's malloc.h."""
LARGEST = 2**30
"""Bytes: larger blocks, and more than this unused at the end of the heap, are returned."""
THREADS = torch.get_num_threads()
"""torch's own choice: one per core, or what the environment says."""


def keep_freed_memory() -> None:
    """Let glibc keep it, unless the environment already says what it shall do."""
    said = any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None and not said:
        mallopt(MMAP_THRESHOLD, LARGEST)
        mallopt(TRIM_THRESHOLD, LARGEST)


def use_one_thread_if_small(model: torch.nn.Module) -> None:
    """Give a small model one thread, as the engine of studies does, unless the environment or the
    person's own code has chosen a number."""
    millions = sum(weights.numel() for weights in model.parameters()) / 1e6
    chosen = any(name in os.environ for name in THREAD_VARIABLES)
    if is_of_one_core(millions) and not chosen and torch.get_num_threads() == THREADS:
        torch.set_num_threads(1)
