"""`trl-ablate bench gpu`: all its parts, at toy size on a CPU, and in full on a GPU."""

import json
import os
import subprocess
import sys

import pytest
import torch

from tests.conftest import REPOSITORY
from trl_ablate.bench.gpu.parts import PARTS

WITHOUT_VLLM = "vLLM is not installed; install trl-ablate[vllm]"


def bench_gpu(tmp_path, *words: str) -> tuple[dict, str]:
    """The results by part, and the page."""
    output = tmp_path / "gpu.json"
    done = subprocess.run(
        [sys.executable, "-m", "trl_ablate", "bench", "gpu", *words, "--output", str(output)],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=1800,
        env={**os.environ, "VLLM_NO_USAGE_STATS": "1"},
    )  # fmt: skip
    parts = json.loads(output.read_text("utf-8"))["parts"]
    assert done.returncode == 0, {name: one["reason"] for name, one in parts.items()}
    return parts, output.with_suffix(".md").read_text("utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(
    "names", [("step", "sigterm"), pytest.param(tuple(PARTS), marks=pytest.mark.long)]
)
def test_parts_run_at_toy_size(tmp_path, names):
    parts, page = bench_gpu(
        tmp_path, "--device", "cpu", "--toy", "--budget", "1000", "--parts", *names
    )
    assert list(parts) == list(names)
    skipped = {name: one["reason"] for name, one in parts.items() if one["status"] == "skipped"}
    assert skipped in ({}, {"engine": WITHOUT_VLLM})
    for name in parts.keys() - skipped.keys():
        assert parts[name]["status"] == "ok" and parts[name]["rows"], parts[name]
        assert f"| {name} | ok | " in page and f"## {name}\n" in page
    whats = {name: [row["what"] for row in parts[name].get("rows", [])] for name in parts}
    expected = {
        "step": ["stock TRL", "trl_ablate"],
        "microbatches": ["microbatch of 1", "microbatch of 16"],
        "optimizers": ["AdamW, 32 bits", "AdamW, 8 bits"],
        "checkpointing": ["checkpointing off", "checkpointing on"],
    }
    assert whats == whats | {name: expected[name] for name in expected if name in names}
    assert parts["sigterm"]["rows"][0]["exit code"] == 75


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
def test_every_part_runs_on_a_gpu(tmp_path):
    longest = sum(part.seconds for part in PARTS.values())
    parts, _ = bench_gpu(tmp_path, "--budget", str(round(longest)))
    assert all(part["status"] == "ok" for name, part in parts.items() if name != "engine")
