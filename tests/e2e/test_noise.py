"""Commands print their own words only, also on stderr: no warning of a library comes before them.

In new interpreters, as libraries warn when they are imported. That of `publish` is in `test_hub`.
"""

import os
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY
from tests.support.commands import loud

SHORT = ("--rows", "8", "--steps", "1", "--rounds", "1", "--mean_length", "8", "--cap", "16")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "first"),
    [
        pytest.param(("train", *SHORT), "training phase, 8 completions", marks=pytest.mark.long),
        (("reward", "--count", "8", "--rounds", "1", "--workers", "1"), "grading 8 answers"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_bench(tmp_path, words, first):
    done = subprocess.run(
        [sys.executable, "-m", "trl_ablate", "bench", *words, "--output", tmp_path / "x.json"],
        cwd=REPOSITORY, env=loud(os.environ), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.lstrip().startswith(first)
