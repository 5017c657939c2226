"""Time and memory of each phase of a training step."""

import re
import time
from collections.abc import MutableMapping
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers import TrainerCallback

GIB = 2**30


class StepPhases(TrainerCallback):
    """Adds `time/*` (seconds) and `memory/*` (GiB) of every optimizer step to the metrics.

    A step lasts from its first microbatch to the end of the optimizer's update; evaluation, saving
    and logging are not part of it. `phase` marks a part of the step. If phases are nested, time in
    the inner phase counts for the inner phase only. `time/train` is the rest of the step: forward,
    backward and update. So rollout, reward and train add up to the step.

    Args:
        metrics: lists of values by name, of this process.
        memory: whether to record peak memory.
    """

    def __init__(self, metrics: MutableMapping[str, list[float]], *, memory: bool):
        self._metrics = metrics
        self._memory = memory
        self._began: float | None = None
        self._device = torch.device("cpu")
        self._seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str):
        """Measure a part of the step. Outside of a step, such as in evaluation, do nothing."""
        if self._began is None:
            yield
            return
        began, inside_before = time.perf_counter(), sum(self._seconds.values())
        yield
        inside = sum(self._seconds.values()) - inside_before
        spent = time.perf_counter() - began - inside
        self._seconds[name] = self._seconds.get(name, 0.0) + spent
        if name == "rollout":
            self._note_peak("after_rollout")

    def on_step_begin(self, args, state, control, **kwargs):
        self._device = args.device
        self._began = _now(self._device)
        self._seconds = {"rollout": 0.0, "reward": 0.0}
        if self._memory:
            reset_peak_memory(self._device)

    def on_step_end(self, args, state, control, **kwargs):
        if self._began is None:
            return
        whole = _now(self._device) - self._began
        seconds = {**self._seconds, "train": whole - sum(self._seconds.values()), "step": whole}
        for name, value in seconds.items():
            self._metrics[f"time/{name}"].append(value)
        self._note_peak("after_train")
        self._began = None

    def _note_peak(self, name: str) -> None:
        if self._memory:
            self._metrics[f"memory/peak_{name}"].append(peak_memory(self._device) / GIB)
            reset_peak_memory(self._device)


def _now(device: torch.device) -> float:
    """The time, after the device has finished all work so far."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


STATUS = Path("/proc/self/status")


CLEAR_REFS = Path("/proc/self/clear_refs")


def reset_peak_memory(device: torch.device) -> None:
    """Reset the peak. Without a GPU this needs Linux; on other systems it has no effect."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif CLEAR_REFS.exists():
        CLEAR_REFS.write_text("5")


def peak_memory(device: torch.device) -> float:
    """Peak memory in bytes; NaN if the system does not report it."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    if not STATUS.exists():
        return float("nan")
    found = re.search(r"VmHWM:\s+(\d+) kB", STATUS.read_text())
    return float(found.group(1)) * 1024 if found else float("nan")
