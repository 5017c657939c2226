"""Every script starts in an interpreter of its own, from any folder, and describes itself."""

import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY

SCRIPTS = sorted((REPOSITORY / "scripts").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_help(script, tmp_path):
    done = subprocess.run(
        [sys.executable, str(script), "--help"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: trl-ablate {script.stem} ")
    assert done.stderr == ""
