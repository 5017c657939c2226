"""Which parents count as launchers, and what SIGTERM does before, during and after a training."""

import signal
import subprocess
import sys
import time

import pytest

from tests.conftest import REPOSITORY
from tests.support.studies import wait_for
from trl_ablate.run.directory import RunDirectory
from trl_ablate.run.termination import Terminated, Termination, is_launcher


@pytest.mark.parametrize(
    ("command_line", "launches"),
    [
        ("/venv/bin/python /venv/bin/accelerate launch scripts/train.py a.yaml", True),
        ("python -u /venv/bin/torchrun --nproc-per-node 2 scripts/train.py", True),
        ("python -m torch.distributed.run --standalone scripts/train.py", True),
        ("bash", False),
        ("/bin/sh -c nohup python scripts/train.py --use accelerate &", False),
        ("python scripts/study.py run study.yaml --runs accelerate", False),
        ("", False),
    ],
)
def test_only_launchers_are_launchers(command_line, launches):
    assert is_launcher(command_line.split()) is launches


def test_it_ends_the_program_once_and_is_only_noted_in_training(tmp_path, request):
    before = signal.getsignal(signal.SIGTERM)
    request.addfinalizer(lambda: signal.signal(signal.SIGTERM, before))
    termination, run = Termination().listen(), RunDirectory(tmp_path)
    with pytest.raises(Terminated), run.recorded():
        signal.raise_signal(signal.SIGTERM)
    assert (run.read()["status"], run.read()["reason"]) == ("stopped", "ended by SIGTERM")
    signal.raise_signal(signal.SIGTERM)  # the shutdown has begun
    other = Termination().listen()
    other.noted_only = True
    signal.raise_signal(signal.SIGTERM)
    assert termination.came and other.came


CHILD = """
import pathlib, signal, sys, time
from trl_ablate.run.termination import Terminated, Termination, end_with_launcher
Termination().listen()
try:
    end_with_launcher()
    pathlib.Path(sys.argv[1]).touch()
    time.sleep(float(sys.argv[2]))
except Terminated:
    pathlib.Path(sys.argv[1]).write_text("SIGTERM")
"""
PARENT = "import subprocess, sys, time; subprocess.Popen(sys.argv[1:]); time.sleep(60)"


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's word on a parent's death")
@pytest.mark.parametrize(("name", "said"), [("torchrun", "SIGTERM"), ("nohup", "")])
def test_the_kernel_tells_of_the_end_of_a_launcher_and_of_nothing_else(tmp_path, name, said):
    """Also if the launcher is killed; a training continues if its parent shell ends."""
    parent, file = tmp_path / name, tmp_path / "said"
    parent.write_text(PARENT)
    process = subprocess.Popen(
        [sys.executable, parent, sys.executable, "-c", CHILD, file, "60" if said else "2"],
        cwd=REPOSITORY,
    )
    wait_for(file.exists)
    process.kill()
    process.wait()
    if said:
        wait_for(file.read_text)
    else:
        time.sleep(1.0)
    assert file.read_text() == said
