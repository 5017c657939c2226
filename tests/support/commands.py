"""Commands in interpreters of their own, as a user starts them."""

import os
import subprocess
import sys

from tests.conftest import REPOSITORY

QUIET = "TRANSFORMERS_VERBOSITY"
"""A variable of the tests with which libraries print less than in a user's shell."""


def script(name: str, *words: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """How `python scripts/NAME.py WORDS` ended, with these variables."""
    environment = {key: value for key, value in os.environ.items() if key != QUIET}
    return subprocess.run(
        [sys.executable, f"scripts/{name}.py", *map(str, words)],
        cwd=REPOSITORY, env=environment | variables, capture_output=True, text=True, timeout=1800,
    )  # fmt: skip
