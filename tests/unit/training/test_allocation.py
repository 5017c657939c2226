"""What a training on a CPU takes: memory that was freed is used again, and one thread is enough."""

import subprocess
import sys

import pytest
import torch

from trl_ablate import load_recipe
from trl_ablate.rewards import grader_of
from trl_ablate.training import building
from trl_ablate.training.building import build_trainer

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


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_a_freed_block_costs_no_page_faults_again_unless_the_environment_sets_malloc():
    before, after = page_faults()
    assert after < before / 5
    before, after = page_faults(MALLOC_MMAP_THRESHOLD_="131072")
    assert after > before / 2


@pytest.fixture
def two_threads(monkeypatch):
    """As torch itself chooses them on two cores."""
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(building, "THREADS", 2)
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("width", "environment", "chosen", "threads"),
    [(64, {}, 2, 1), (4000, {}, 2, 2), (64, {"MKL_NUM_THREADS": "2"}, 2, 2), (64, {}, 3, 3)],
    ids=["small", "16 million", "the environment's", "the person's"],
)
def test_a_small_model_takes_one_thread_unless_a_number_was_chosen(
    monkeypatch, two_threads, width, environment, chosen, threads
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    torch.set_num_threads(chosen)
    building.use_one_thread_if_small(torch.nn.Linear(width, width, device="meta"))
    assert torch.get_num_threads() == threads


def test_a_single_run_of_a_small_model_takes_one_thread(tiny_model, tmp_path, two_threads):
    small = {"model_name_or_path": str(tiny_model), "output_dir": str(tmp_path), "eval_size": 8,
             "report_to": "none"}  # fmt: skip
    resolved = load_recipe("grpo", "miniature", small)
    with grader_of(resolved.task) as grader:
        build_trainer(resolved, grader)
    assert torch.get_num_threads() == 1
