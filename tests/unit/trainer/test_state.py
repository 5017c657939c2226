"""What a block or a checkpoint puts back, and what a step measures."""

import io
import resource
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trl_ablate.trainer import carried, update
from trl_ablate.trainer.batching import BONUS_WEIGHTS
from trl_ablate.trainer.left_out import bonus_of_kept_groups
from trl_ablate.trainer.temporary import replaced


class Holder:
    shared = "class"

    def __init__(self):
        self.own = "own"

    def method(self):
        return "method"


def test_values_hold_for_the_block_and_are_put_back_after_an_error_and_in_nested_blocks():
    holder = Holder()
    with replaced(holder, own=1, shared=2, method=lambda: 3):
        assert (holder.own, holder.shared, holder.method()) == (1, 2, 3)
    with pytest.raises(KeyboardInterrupt), replaced(holder, own=1):
        with replaced(holder, own=2, method=None):
            assert holder.own == 2
        assert holder.own == 1
        raise KeyboardInterrupt
    refused = pytest.raises(AttributeError, match="Holder has no owned to replace")
    with refused, replaced(holder, own=1, owned=2):
        pytest.fail("the block runs")
    assert vars(holder) == {"own": "own"}
    assert (holder.shared, holder.method()) == ("class", "method")


def test_the_coefficient_of_the_entropy_bonus_is_put_back_after_an_error():
    args = SimpleNamespace(entropy_coef_delta=0.1, entropy_coef_min=0.0, entropy_coef_max=1.0)
    model = SimpleNamespace(training=True)
    of_trl = {"_last_world_entropy": 1.0, "_entropy_window_stats": None}
    trainer = SimpleNamespace(model=model, args=args, entropy_coef=0.01, **of_trl)
    inputs = {BONUS_WEIGHTS: torch.tensor([2.0]), "completion_mask": torch.ones(1, 3)}
    with pytest.raises(KeyboardInterrupt), bonus_of_kept_groups(trainer, inputs):
        assert trainer.entropy_coef == 0.02
        raise KeyboardInterrupt
    assert trainer.entropy_coef == 0.01


def test_a_numbered_cpu_can_be_loaded_onto_once_resuming_has_asked_for_it():
    carried.load_onto_numbered_cpus()
    once = list(torch.serialization._package_registry)
    carried.load_onto_numbered_cpus()
    assert torch.serialization._package_registry == once
    file = io.BytesIO()
    torch.save(torch.arange(3), file)
    file.seek(0)
    assert torch.load(file, map_location="cpu:1").tolist() == [0, 1, 2]


@pytest.mark.parametrize("process", [0, 1])
def test_totals_are_restored_also_into_another_layout(tmp_path, process):
    """In every process, also where one wrote the checkpoint: draws are those of all processes."""
    numbers = dict.fromkeys(carried.LAYOUT)
    args = SimpleNamespace(sync_ref_model=False, process_index=process, **numbers)
    sampler: Any = SimpleNamespace(restore=lambda checkpoint: None)
    args.steps_per_generation = 4
    resumed = SimpleNamespace(
        args=args, sampler=sampler, idle_steps=SimpleNamespace(), num_iterations=1
    )
    values = {"generated_tokens": 7, "_step": 9}
    written = {"layout": {}, "values": values, "skipped_steps": 3}
    torch.save(written, tmp_path / "carried_0.pt")
    carried.restore(resumed, tmp_path)
    assert (resumed.generated_tokens, resumed.idle_steps.skipped) == (7, 3)
    assert resumed._step == 12  # no draw is that of an earlier rollout


def test_a_peak_is_that_of_its_part_though_a_step_has_two_rollout_batches(monkeypatch):
    peaks = iter([1, 2, 10, 3, 9])  # before the first rollout, in it, after it, and so on
    monkeypatch.setattr(update, "peak_memory", lambda device: next(peaks) * update.GIB)
    metrics: dict[str, list[float]] = defaultdict(list)
    step = update.StepPhases(metrics, memory=True)
    step.on_step_begin(SimpleNamespace(device=torch.device("cpu")), None, None)
    for _ in range(2):
        with step.phase("rollout"):
            pass
    step.on_step_end(None, None, None)
    assert metrics["memory/peak_after_rollout"] == [3]
    assert metrics["memory/peak_after_train"] == [10]


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
def test_time_and_memory_are_those_of_the_training_device(monkeypatch, device):
    """On a simulated machine with several GPUs, the others are asked nothing."""
    asked: list[tuple[str, object]] = []

    def noted(name, answer=None):
        return lambda device=None: asked.append((name, device)) or answer

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", noted("reset"))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", noted("peak", 3 * 2**30))
    monkeypatch.setattr(torch.cuda, "synchronize", noted("wait"))
    metrics: dict[str, list[float]] = defaultdict(list)
    step = update.StepPhases(metrics, memory=True)
    args = SimpleNamespace(device=torch.device(device))
    step.on_step_begin(args, None, None)
    step.on_step_end(args, None, None)
    (peak,) = metrics["memory/peak_after_train"]
    if device == "cpu":
        of_linux = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        assert peak == pytest.approx(of_linux, rel=0.5) and asked == []
    else:
        assert peak == 3.0
        assert {which for _, which in asked} == {torch.device(device)}
        assert {name for name, _ in asked} == {"reset", "peak", "wait"}
