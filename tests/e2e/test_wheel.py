"""The built wheel, installed into a folder of its own, and used away from the checkout."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder with nothing but the wheel's content; dependencies are those of this Python."""
    wheels, folder = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("installed")
    build = ["wheel", "--no-build-isolation", "--wheel-dir", str(wheels), str(REPOSITORY)]
    pip(*build)
    (wheel,) = wheels.glob("trl_ablate-*.whl")
    pip("install", "--target", str(folder), str(wheel))
    return folder


def pip(command: str, *words: str) -> None:
    line = [sys.executable, "-m", "pip", command, "--quiet", "--no-deps", "--no-index", *words]
    subprocess.run(line, check=True, timeout=120)


def run(installed: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command of the installed package, in an empty folder."""
    return subprocess.run(
        [*words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        timeout=120,
    )


MODULE = (sys.executable, "-m", "trl_ablate")


@pytest.mark.slow
def test_a_study_is_planned(installed, tmp_path):
    done = run(installed, tmp_path, *MODULE, "study", "plan", "std_dev")
    assert (done.returncode, done.stderr) == (0, "")
    assert "10 runs: 0 done, 10 to do" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


@pytest.mark.slow
def test_a_new_task_resolves(installed, tmp_path):
    done = run(installed, tmp_path, *MODULE, "new", "my_task")
    assert (done.returncode, done.stderr) == (0, "")
    starter = Path("trl_ablate", "cli", "starter")
    assert names(installed / starter, "*.*") >= names(REPOSITORY / starter, "*.[pty]*")
    done = run(installed, tmp_path, *MODULE, "train", "my_task/recipe.yaml", "--dry_run")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("recipe.yaml on profile 'miniature'")
    assert "reward_funcs" in done.stdout  # its recipe extends a shipped one


def test_the_console_command_lists_what_is_shipped(installed, tmp_path):
    done = run(installed, tmp_path, str(installed / "bin" / "trl-ablate"), "recipes")
    assert (done.returncode, done.stderr) == (0, "")
    for path in (REPOSITORY / "recipes").glob("*.yaml"):
        assert f"  {path.stem} " in done.stdout


def test_the_package_is_the_installed_one_and_holds_every_yaml(installed, tmp_path):
    done = run(
        installed, tmp_path, sys.executable, "-c", "import trl_ablate as t; print(t.__file__)"
    )
    assert Path(done.stdout.strip()).is_relative_to(installed)
    recipes, shipped = REPOSITORY / "recipes", installed / "trl_ablate" / "shipped"
    kinds = (".yaml", ".jinja")  # and what they name
    assert names(shipped) == {name for name in names(recipes) if name.endswith(kinds)}
    assert "accelerate/zero3.yaml" in names(shipped)
    prompts = Path("trl_ablate", "prompts")
    assert names(installed / prompts, "*.txt") == names(REPOSITORY / prompts, "*.txt")
    templates = names(REPOSITORY / "trl_ablate", "*.j2")
    assert names(installed / "trl_ablate", "*.j2") == templates != set()
    models = Path("trl_ablate", "miniature", "models")
    assert names(installed / models) == names(REPOSITORY / models) != set()


def names(folder: Path, pattern: str = "*") -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob(pattern) if path.is_file()}
