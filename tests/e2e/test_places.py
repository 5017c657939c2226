"""Folders that cannot be written or named: one sentence before the training, and nothing made.

As root, which may write everywhere, on a read-only mount.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.support.disks import mount, unmount
from tests.support.shared import shared_once
from tests.support.warm import SMALL, Ended, model_and_data, warm
from trl_ablate.run.directory import RunDirectory

FEW = [*SMALL, "--grpo_steps", "1", "--eval_steps", "5", "--save_steps", "5"]


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    return shared_once(tmp_path_factory, "places", model_and_data)


@pytest.fixture
def closed(tmp_path):
    """A folder that nobody can write to."""
    folder = tmp_path / "closed"
    folder.mkdir()
    if os.geteuid() == 0:
        mount(folder, "size=1m")
        (folder / "file.txt").write_text("x")
        mount(folder, "remount,ro")
    else:
        (folder / "file.txt").write_text("x")
        subprocess.run(["chmod", "-R", "a-w", str(folder)], check=True)
    yield folder
    if os.geteuid() == 0:
        unmount(folder)
    else:
        subprocess.run(["chmod", "-R", "u+w", str(folder)], check=True)


def train(world: Path, output: Path | str, *words: str, **more) -> Ended:
    places = ["--model_name_or_path", world / "model", "--dataset", world / "data"]
    return warm("train", *FEW, *places, "--output_dir", output, *words, **more).wait()


def assert_one_sentence(ended: Ended, *parts: str) -> None:
    assert ended.code in (1, 2), ended
    errors = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and "Traceback" not in ended.printed, ended.printed
    assert "is gone" not in errors[0] and "is missing" not in errors[0]
    assert all(part in errors[0] for part in parts), errors[0]


@pytest.mark.slow
def test_an_output_folder_that_cannot_be_made(world, closed, tmp_path):
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere" / "run")
    before = sorted(tmp_path.rglob("*"))
    assert_one_sentence(train(world, closed / "run"), "closed/run")
    assert_one_sentence(train(world, closed / "file.txt" / "run"), "is a file, but must be a")
    assert_one_sentence(train(world, tmp_path / ("x" * 300)), "too long for the file system")
    assert_one_sentence(train(world, tmp_path / "dangling"), "symbolic link", "does not exist")
    assert_one_sentence(train(world, tmp_path / os.fsdecode(b"caf\xe9")), "not a readable")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_cache_that_cannot_be_written(closed, tmp_path):
    """A model that does not come with the package is made there on first use."""
    words = [*FEW, "--output_dir", tmp_path / "run"]
    cache = {"TRL_ABLATE_CACHE": str(closed / "cache")}
    made = ["--model_name_or_path", "miniature/sft_mid"]
    assert_one_sentence(warm("train", *words, *made, environment=cache).wait(), "closed/cache")
    assert not RunDirectory(tmp_path / "run").checkpoint_last.exists()
    assert warm("train", *words, "--overwrite", environment=cache).wait().code == 0


@pytest.mark.slow
def test_a_home_that_cannot_be_written_costs_no_training(world, closed, tmp_path):
    """Nor does a dashboard that cannot be stored; a new interpreter, as libraries look at once."""
    words = ["--model_name_or_path", world / "model", "--dataset", world / "data",
             "--output_dir", tmp_path / "run", "--report_to", "trackio"]  # fmt: skip
    homes = ("HOME", "HF_HOME", "XDG_CACHE_HOME", "TRACKIO_DIR", "MPLCONFIGDIR")
    done = subprocess.run(
        [sys.executable, "-m", "trl_ablate", "train", *FEW, *map(str, words)],
        env={**os.environ, **dict.fromkeys(homes, str(closed))},
        capture_output=True, text=True, timeout=600, cwd=REPOSITORY,
    )  # fmt: skip
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert "could not be persisted" in done.stderr  # trackio's own warning
