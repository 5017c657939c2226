"""Memory that was freed is used again, as far as glibc can be told to."""

import subprocess
import sys

import pytest

PROGRAM = """
import resource
from trl_ablate.training.building import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        bytearray(b"x") * (40 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(faults())
keep_freed_memory()
faults()
print(faults())
"""


def page_faults(**environment: str) -> list[int]:
    """Of eight blocks of 40 MiB in succession: before, and after it was asked for."""
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    )
    return [int(line) for line in told.stdout.split()]


@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_a_block_that_was_freed_costs_no_page_faults_again():
    before, after = page_faults()
    assert after < before / 5


@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_what_the_environment_says_about_memory_holds():
    before, after = page_faults(MALLOC_MMAP_THRESHOLD_="131072")
    assert after > before / 2
