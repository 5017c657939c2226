"""Peak memory since the last reset: of the GPU that is trained on, or else of this process."""

import re
from pathlib import Path

import torch

STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")


def reset_peak_memory(device: torch.device) -> None:
    """Begin a new peak. Without a GPU this needs Linux; elsewhere it is the whole process's."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif CLEAR_REFS.exists():
        CLEAR_REFS.write_text("5")


def peak_memory(device: torch.device) -> float:
    """Bytes at the peak; NaN where nobody counts them."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    if not STATUS.exists():
        return float("nan")
    found = re.search(r"VmHWM:\s+(\d+) kB", STATUS.read_text())
    return float(found.group(1)) * 1024 if found else float("nan")
