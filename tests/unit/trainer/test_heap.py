"""Memory that a training on a CPU frees: kept, until an evaluation returns it."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="glibc")

FAULTS = """
import os, resource
from trl_ablate.trainer.heap import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        bytearray(b"x") * (40 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

os.environ["MALLOC_TOP_PAD_"] = "0"
keep_freed_memory()
print(faults())
del os.environ["MALLOC_TOP_PAD_"]
keep_freed_memory()
faults()
print(faults())
"""
"""Prints the page faults of eight blocks of 40 MiB in succession."""


@pytest.mark.slow
def test_a_freed_block_costs_no_page_faults_again_unless_the_environment_sets_malloc():
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, check=True)
    left_alone, kept = map(int, done.stdout.split())
    assert kept < left_alone / 5


HOLES = """
from pathlib import Path
from trl_ablate.trainer import heap

def mebibytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) // 256

heap.keep_freed_memory()
blocks = [bytearray(b"x") * (1 << 20) for _ in range(400)]
del blocks[:-1]
print(mebibytes())
heap.return_freed_memory()
print(mebibytes())
heap.MUCH = 0
heap.return_freed_memory()
print(mebibytes())
"""
"""Frees 399 of 400 MiB, and prints the memory of the process: then, as a small one, as a large."""


def test_a_large_process_returns_the_holes_of_its_heap():
    done = subprocess.run([sys.executable, "-c", HOLES], capture_output=True, check=True)
    freed, small, large = map(int, done.stdout.split())
    assert freed == small > 400 > large
