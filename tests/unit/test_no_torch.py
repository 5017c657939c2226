"""Code that plans, watches, reads and publishes runs imports none of the heavy libraries.

One interpreter imports all of it, module by module, so that a failure names the first such module.
"""

import subprocess
import sys

from tests.conftest import REPOSITORY

PROGRAM = """
import importlib, pkgutil, sys

names = ["trl_ablate.cli.terminal"]
for room in ("run", "guard", "prompts", "study", "hub", "data", "miniature", "plan"):
    package = importlib.import_module(f"trl_ablate.{room}")
    names += [one.name for one in pkgutil.walk_packages(package.__path__, f"trl_ablate.{room}.")]
names.remove("trl_ablate.study.resolution")
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
        [sys.executable, "-c", PROGRAM], cwd=REPOSITORY, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 45  # it has checked all of them
