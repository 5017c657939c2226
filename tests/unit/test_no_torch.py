"""Code that plans, watches, reads and publishes runs imports none of the heavy libraries.

One interpreter imports all of it, module by module, so that a failure names the first such module.
"""

import json
import subprocess
import sys

from tests.conftest import REPOSITORY

LIGHT = ["run", "guard", "prompts", "study", "hub", "data", "miniature", "plan"]
"""Rooms of which every module is light, but for `HEAVY`."""
HEAVY = ["study.resolution"]

PROGRAM = """
import importlib, json, pkgutil, sys

rooms, heavy = json.loads(sys.argv[1])
names = ["trl_ablate.cli.terminal"]
for room in rooms:
    package = importlib.import_module(f"trl_ablate.{room}")
    below = pkgutil.walk_packages(package.__path__, f"trl_ablate.{room}.")
    names += [found.name for found in below if found.name.removeprefix("trl_ablate.") not in heavy]
from trl_ablate import miniature
miniature.problems("train", 3)
for name in names:
    importlib.import_module(name)
    loaded = {"torch", "trl", "transformers"} & set(sys.modules)
    assert not loaded, f"{name} imports {loaded}"
print(len(names))
"""


def test_light_rooms_import_neither_torch_nor_trl_nor_transformers():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([LIGHT, HEAVY])],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 45  # it has checked all of them
