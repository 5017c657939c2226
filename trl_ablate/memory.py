"""Peak memory since the last reset: of the GPU where there is one, else of this process."""

import re
from pathlib import Path

import torch

STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")


def reset_peak_memory() -> None:
    """Begin a new peak. Without a GPU this needs Linux; elsewhere it is the whole process's."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    elif CLEAR_REFS.exists():
        CLEAR_REFS.write_text("5")


def peak_memory() -> float:
    """Bytes at the peak; NaN where nobody counts them."""
    if torch.cuda.is_available():
        return float(torch.cuda.max_memory_allocated())
    if not STATUS.exists():
        return float("nan")
    found = re.search(r"VmHWM:\s+(\d+) kB", STATUS.read_text())
    return float(found.group(1)) * 1024 if found else float("nan")
