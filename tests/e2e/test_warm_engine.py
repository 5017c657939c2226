"""A run forked from a process with its imports gives the same results as a run started cold."""

import sys
from contextlib import ExitStack

import pytest

from tests.support.rows import without_times
from trl_ablate import miniature
from trl_ablate.run.directory import RunDirectory
from trl_ablate.study.engines import Job
from trl_ablate.study.engines.local import LocalEngine

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="runs are forked on Linux only"),
]

WORDS = [
    "recipes/off_policy_e2_tb128.yaml", "--profile", "miniature", "--generation_batch_size", "32",
    "--optimizer_batch_size", "16", "--per_device_train_batch_size", "8", "--grpo_steps", "2",
    "--train_size", "12", "--eval_size", "16", "--eval_steps", "1", "--save_steps", "2",
    "--template", "question_only", "--report_to", "none", "--seed", "7",
]  # fmt: skip
"""The bare question has rewards from the start, so that there is a gradient."""


def test_the_same_weights_numbers_and_record(tmp_path):
    engines = {"cold": LocalEngine(1, warm=None), "warm": LocalEngine(1)}
    with ExitStack() as locks:
        processes = []
        for name, engine in engines.items():  # both train at the same time
            folder = tmp_path / name
            folder.mkdir()
            lock = locks.enter_context((folder / "lock").open("w")).fileno()
            job = Job(WORDS, folder / "run", folder / "log", lock, folder / "away")
            processes.append(engine.start(job, 0))
        assert [process.wait() for process in processes] == [0, 0]
    cold, warm = (RunDirectory(tmp_path / name / "run") for name in engines)
    folders = (warm.checkpoint_last, cold.checkpoint_last, miniature.build())
    of_warm, of_cold, of_base = ((at / "model.safetensors").read_bytes() for at in folders)
    assert of_warm == of_cold != of_base
    rows = [without_times(row) for row in warm.metrics()]
    assert rows == [without_times(row) for row in cold.metrics()]
    assert any(row.get("grad_norm", 0) > 0 for row in rows)
    files = ({path.relative_to(run.path) for path in run.path.rglob("*")} for run in (cold, warm))
    assert next(files) == next(files)
    records = warm.read(), cold.read()
    assert records[0].keys() == records[1].keys()
    for key in ("status", "recipe", "arm", "seed", "versions", "git", "gpus", "start_weights"):
        assert records[0][key] == records[1][key], key
    commands = [" ".join(record["command"]) for record in records]
    assert commands[0].replace("/warm/", "/cold/") == commands[1]
