"""Importing the trainer must not change torch; resuming does."""

import io
import pkgutil
from importlib.util import module_from_spec
from types import SimpleNamespace
from typing import Any

import torch

from trl_ablate import trainer
from trl_ablate.trainer import carried


def registered() -> list:
    return list(torch.serialization._package_registry)


def test_importing_the_trainer_changes_nothing_in_torch():
    """Each module is executed again, separately from the imported one."""
    before = registered()
    for found in pkgutil.iter_modules(trainer.__path__, f"{trainer.__name__}."):
        spec = pkgutil.resolve_name(found.name).__spec__
        spec.loader.exec_module(module_from_spec(spec))
        assert registered() == before, found.name


def test_a_numbered_cpu_can_be_loaded_onto_once_resuming_has_asked_for_it():
    carried.load_onto_numbered_cpus()
    once = registered()
    carried.load_onto_numbered_cpus()
    assert registered() == once
    file = io.BytesIO()
    torch.save(torch.arange(3), file)
    file.seek(0)
    assert torch.load(file, map_location="cpu:1").tolist() == [0, 1, 2]


def test_totals_are_restored_also_into_another_layout(tmp_path):
    args = SimpleNamespace(sync_ref_model=False, process_index=0, **dict.fromkeys(carried.LAYOUT))
    sampler: Any = SimpleNamespace(restore=lambda checkpoint: None)
    resumed = SimpleNamespace(args=args, sampler=sampler, idle_steps=SimpleNamespace())
    written = {"layout": {}, "values": {"generated_tokens": 7}, "skipped_steps": 3}
    torch.save(written, tmp_path / "carried_0.pt")
    carried.restore(resumed, tmp_path)
    assert (resumed.generated_tokens, resumed.idle_steps.skipped) == (7, 3)
