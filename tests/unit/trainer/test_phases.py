"""Peak memory and time are measured on the training device, not on an idle GPU."""

import resource
from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch

from trl_ablate.trainer import update


@pytest.fixture
def cuda_calls(monkeypatch) -> list[tuple[str, object]]:
    """Simulates a machine with a GPU; records the CUDA calls and their devices."""
    asked: list[tuple[str, object]] = []

    def noted(name, answer=None):
        return lambda device=None: asked.append((name, device)) or answer

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", noted("reset"))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", noted("peak", 3 * 2**30))
    monkeypatch.setattr(torch.cuda, "synchronize", noted("wait"))
    return asked


def step_on(device: str) -> dict[str, list[float]]:
    metrics: dict[str, list[float]] = defaultdict(list)
    step, args = (
        update.StepPhases(metrics, memory=True),
        SimpleNamespace(device=torch.device(device)),
    )
    step.on_step_begin(args, None, None)
    step.on_step_end(args, None, None)
    return metrics


def test_a_training_on_the_cpu_asks_the_gpu_nothing(cuda_calls):
    metrics = step_on("cpu")
    assert cuda_calls == []
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # of Linux
    assert metrics["memory/peak_after_train"] == [pytest.approx(peak_kib / 2**20, rel=0.5)]


def test_a_training_on_the_second_gpu_asks_that_one(cuda_calls):
    metrics = step_on("cuda:1")
    assert metrics["memory/peak_after_train"] == [3.0]
    assert {device for _, device in cuda_calls} == {torch.device("cuda:1")}
    assert {name for name, _ in cuda_calls} == {"reset", "peak", "wait"}
