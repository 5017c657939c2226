"""`scripts/study.py` and `scripts/bench.py`, started as a person does; the rest is in unit/cli."""

import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY


@pytest.mark.parametrize(
    ("script", "words", "said"),
    [
        ("study", ["plan", "std_devv"], "did you mean 'std_dev'?"),
        ("bench", ["trian"], "invalid choice: 'trian'"),
    ],
)
def test_the_script_is_the_command(script, words, said):
    done = subprocess.run(
        [sys.executable, f"scripts/{script}.py", *words],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2 and done.stdout == ""
    assert said in done.stderr and done.stderr.count("\n") == 1
