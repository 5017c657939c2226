"""The built wheel, installed into a folder of its own, and used away from the checkout."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

HOME = "https://github.com/someone/trl-ablate"
MEGABYTE = 1e6


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Path, Path]:
    """The wheel and the source distribution, as GitHub's workflow builds them."""
    folder = tmp_path_factory.mktemp("built")
    home = {"GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": "someone/trl-ablate"}
    line = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    subprocess.run(line, check=True, timeout=120, cwd=REPOSITORY, env={**os.environ, **home})
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, source


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory) -> Path:
    """A folder with nothing but the wheel's content; dependencies are those of this Python."""
    folder = tmp_path_factory.mktemp("installed")
    options = ["--quiet", "--no-deps", "--no-index", "--no-compile", "--target", str(folder)]
    line = [sys.executable, "-m", "pip", "install", *options, str(built[0])]
    subprocess.run(line, check=True, timeout=120)
    return folder


def names(folder: Path, pattern: str = "*") -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob(pattern) if path.is_file()}


SESSION = """
import trl_ablate
from trl_ablate.cli.main import main

print(trl_ablate.__file__)
assert main(["study", "plan", "std_dev"]) == 0
assert main(["new", "my_task"]) == 0
assert main(["train", "my_task/recipe.yaml", "--dry_run"]) == 0
"""


@pytest.mark.slow
def test_the_installed_package_is_used_in_an_empty_folder(installed, tmp_path):
    def run(*program: str) -> str:
        done = subprocess.run(
            program, cwd=tmp_path, capture_output=True, text=True, timeout=120,
            env={**os.environ, "PYTHONPATH": str(installed)},
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    place, _, printed = run(sys.executable, "-c", SESSION).partition("\n")
    assert Path(place).is_relative_to(installed)
    assert "10 runs: 0 done, 10 to do" in printed
    assert "recipe.yaml on profile 'miniature'" in printed
    assert "reward_funcs" in printed  # the new task's recipe extends a shipped one
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "my_task"}
    printed = run(str(installed / "bin" / "trl-ablate"), "recipes")
    for path in (REPOSITORY / "recipes").glob("*.yaml"):
        assert f"  {path.stem} " in printed


def test_the_package_holds_every_file_that_it_reads(installed):
    recipes, shipped = REPOSITORY / "recipes", installed / "trl_ablate" / "shipped"
    kinds = (".yaml", ".jinja")  # and what they name
    assert names(shipped) == {name for name in names(recipes) if name.endswith(kinds)}
    assert "accelerate/zero3.yaml" in names(shipped)
    starter = Path("trl_ablate", "cli", "starter")
    assert names(installed / starter, "*.*") >= names(REPOSITORY / starter, "*.[pty]*")
    prompts = Path("trl_ablate", "prompts")
    assert names(installed / prompts, "*.txt") == names(REPOSITORY / prompts, "*.txt")
    templates = names(REPOSITORY / "trl_ablate", "*.j2")
    assert names(installed / "trl_ablate", "*.j2") == templates != set()
    chains = Path("trl_ablate", "miniature", "models", "chains")
    assert names(installed / chains) == names(REPOSITORY / chains) != set()
    assert [path.name for path in (installed / chains).parent.iterdir()] == ["chains"]
    assert (installed / "trl_ablate" / "py.typed").is_file()


def test_what_is_uploaded_is_small_and_leads_to_its_repository(built):
    wheel, source = built
    assert wheel.stat().st_size < 1.5 * MEGABYTE and source.stat().st_size < 4 * MEGABYTE
    with tarfile.open(source) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "LICENSE", "CHANGELOG.md", "recipes/studies/README.md"} <= inside
    assert not [name for name in inside if name.endswith((".parquet", ".png")) or "tests/" in name]
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        page = message_from_string(archive.read(metadata).decode())
    urls = dict(line.split(", ") for line in page.get_all("Project-URL"))
    assert urls["Homepage"] == HOME and all(url.startswith(HOME) for url in urls.values())
    targets = re.findall(r"\]\(([^)]+)\)", page.get_payload())
    assert targets and all(target.startswith("https://") for target in targets)
    inside_repository = {target.split(f"/v{page['Version']}/")[1] for target in targets}
    missing = [each for each in inside_repository if not (REPOSITORY / each.split("#")[0]).exists()]
    assert missing == []
