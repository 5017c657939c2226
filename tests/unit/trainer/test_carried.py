"""Importing the trainer must not change torch; resuming does."""

import io
import pkgutil
from importlib.util import module_from_spec

import pytest
import torch

from trl_ablate import trainer
from trl_ablate.trainer import carried

MODULES = [module.name for module in pkgutil.iter_modules(trainer.__path__)]


def registered() -> list:
    return list(torch.serialization._package_registry)


@pytest.mark.parametrize("name", MODULES)
def test_importing_the_trainer_changes_nothing_in_torch(name):
    """The module is executed again, separately from the imported one."""
    before = registered()
    spec = pkgutil.resolve_name(f"{trainer.__name__}.{name}").__spec__
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    assert registered() == before


def test_a_numbered_cpu_can_be_loaded_onto_once_resuming_has_asked_for_it():
    carried.load_onto_numbered_cpus()
    once = registered()
    carried.load_onto_numbered_cpus()
    assert registered() == once
    file = io.BytesIO()
    torch.save(torch.arange(3), file)
    file.seek(0)
    assert torch.load(file, map_location="cpu:1").tolist() == [0, 1, 2]
