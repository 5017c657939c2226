"""DeepSpeed's ZeRO-3 and FSDP 2 in two processes on this CPU: train, evaluate, save and resume give
what two plain processes (DDP) give, with the files of `recipes/accelerate`."""

import importlib.util
import os
import subprocess
import sys

import pytest
from safetensors.torch import load_file

from tests.conftest import REPOSITORY
from tests.support.two_processes import environment, free_port
from tests.support.warm import warm
from trl_ablate.recipe.overrides import as_words
from trl_ablate.run.directory import RunDirectory

pytestmark = pytest.mark.slow

SETTINGS = {
    "profile": "miniature", "eval_size": 16, "train_size": 64, "generation_batch_size": 16,
    "optimizer_batch_size": 16, "per_device_train_batch_size": 8, "save_steps": 1, "eval_steps": 2,
    "grader_workers": 1, "report_to": "none",
}  # fmt: skip
PROGRAMS = {"zero3": "trl_ablate", "fsdp2": "tests.support.fsdp_on_cpu"}
TOLERANCE = 1e-5
"""Weights after three steps of rate 6e-4: gradients are summed in another order, in fp32."""


def words(folder, steps: int) -> list[str]:
    return ["std_dev_off", *as_words({**SETTINGS, "output_dir": str(folder), "grpo_steps": steps})]


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """A run of three steps in two plain processes."""
    folder, port = tmp_path_factory.mktemp("plain") / "run", free_port()
    places = [environment(rank, port) for rank in (0, 1)]
    for process in [warm("train", *words(folder, 3), environment=place) for place in places]:
        assert process.wait().code == 0
    return RunDirectory(folder)


def launch(kind: str, *given: str) -> None:
    config = ["--config_file", f"recipes/accelerate/{kind}.yaml", "--num_processes", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "accelerate.commands.launch", *config,
         "--main_process_port", str(free_port()), "-m", PROGRAMS[kind], "train", *given],
        cwd=REPOSITORY, env={**os.environ, "DS_ACCELERATOR": "cpu"}, capture_output=True, text=True,
        timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def rewards(run: RunDirectory) -> list[tuple]:
    names = ("step", "reward", "completions/mean_length", "eval_reward", "eval_mean_length")
    return [tuple(row.get(name) for name in names) for row in run.metrics()]


def norms(run: RunDirectory) -> list[float]:
    return [row["grad_norm"] for row in run.metrics() if "grad_norm" in row]


@pytest.mark.parametrize("kind", PROGRAMS)
def test_sharded_training_is_that_of_plain_processes(kind, tmp_path, reference):
    if kind == "zero3" and not importlib.util.find_spec("deepspeed"):
        pytest.skip("deepspeed is not installed")
    run = RunDirectory(tmp_path / "run")
    launch(kind, *words(run.path, 2))
    shards = [*(run.path / "checkpoint-2").glob("global_step2/*optim_states.pt")]
    assert len(shards) == (2 if kind == "zero3" else 0)  # each process has its part
    assert kind != "fsdp2" or (run.path / "checkpoint-2" / "pytorch_model_fsdp.bin").is_file()
    launch(kind, *words(run.path, 3), "--resume")
    assert rewards(run) == rewards(reference) and len(rewards(run)) == 6
    assert norms(run) == pytest.approx(norms(reference), abs=1e-6)
    mine = load_file(run.checkpoint_last / "model.safetensors")
    for name, weights in load_file(reference.checkpoint_last / "model.safetensors").items():
        assert (mine[name] - weights).abs().max() < TOLERANCE, name
