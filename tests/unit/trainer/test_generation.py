"""Stop strings on token ids, and the engine's seed."""

import os
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from trl_ablate import ConfigurationError, miniature
from trl_ablate.trainer.engine import engine_seed, take_a_port
from trl_ablate.trainer.generation import StopStrings, backend_generation_kwargs, check_turns

TOKENIZER = miniature.tokenizer("sums")
EOS, PAD = TOKENIZER.eos_token_id, TOKENIZER.pad_token_id


def ids(text):
    return TOKENIZER.encode(text)


ANSWER = ids("1+1=2 <answer>2</answer>")
DIGITS = ids("1231215")
"""Seven tokens."""


@pytest.mark.parametrize(
    ("strings", "min_tokens", "row", "kept", "ended"),
    [
        (["</answer>"], 0, ANSWER, ANSWER, True),
        (["</answer>"], 0, [*ANSWER, PAD, PAD, PAD], ANSWER, True),
        (["</answer>"], 0, [*ANSWER, EOS], ANSWER, True),
        (["</answer>"], 0, [*ids("1+1=2"), EOS], [*ids("1+1=2"), EOS], True),
        (["</answer>"], 0, ids("1+1=2 <answer>2"), ids("1+1=2 <answer>2"), False),
        (["</answer>"], 0, [], [], False),
        ([], 0, ANSWER, ANSWER, False),
        ([TOKENIZER.eos_token], 0, [EOS, EOS], [EOS], True),
        # a stop string may end a completion from token `min_tokens` + 1 on
        (["1"], 0, DIGITS, DIGITS[:1], True),
        (["1"], 1, DIGITS, DIGITS[:4], True),
        (["1"], 3, DIGITS, DIGITS[:4], True),
        (["1"], 4, DIGITS, DIGITS[:6], True),
        (["1"], 6, DIGITS, DIGITS, False),
        # over several tokens, its last one decides
        (["23"], 2, DIGITS, DIGITS[:3], True),
        (["23"], 3, DIGITS, DIGITS, False),
    ],
)
def test_where_a_completion_ends(strings, min_tokens, row, kept, ended):
    stop = StopStrings(strings, TOKENIZER, [EOS], min_tokens)
    assert stop.cut(row) == kept
    assert stop.ended(row) == ended


def test_runs_that_start_together_have_engines_at_different_ports(monkeypatch):
    ports = set()
    for _ in range(8):
        monkeypatch.setenv("MASTER_PORT", "auto")
        take_a_port()
        ports.add(os.environ["MASTER_PORT"])
    assert len(ports) > 4 and "29500" not in ports  # a free one may come twice
    monkeypatch.setenv("MASTER_PORT", "29501")  # by a launcher
    take_a_port()
    assert os.environ["MASTER_PORT"] == "29501"


def test_engine_seeds_are_all_different():
    seeds = {engine_seed(seed, rank) for seed in range(50) for rank in range(64)}
    assert len(seeds) == 50 * 64
    assert engine_seed(0, 0) == 0
    assert 0 <= engine_seed(2**31 - 1, 63) < 2**32


def test_the_engine_reads_stop_strings_among_special_tokens():
    asked: Any = SimpleNamespace(
        generation_kwargs=None, use_vllm=True, stop=["<|im_end|>"], min_tokens=0
    )
    assert backend_generation_kwargs(asked) == {
        "stop": ["<|im_end|>"], "include_stop_str_in_output": True, "skip_special_tokens": False,
    }  # fmt: skip


COLOCATE = {"use_vllm": True, "vllm_mode": "colocate", "vllm_enable_sleep_mode": False}


@pytest.mark.parametrize(
    ("settings", "sharded", "said"),
    [
        ({**COLOCATE, "vllm_mode": "server"}, False, "vllm_mode: server needs all"),
        ({**COLOCATE, "vllm_tensor_parallel_size": 2}, False, "tensor_parallel_size needs all"),
        ({**COLOCATE, "vllm_enable_sleep_mode": True}, True, "with vllm_enable_sleep_mode needs"),
        ({"use_vllm": False}, True, "sharded weights without vLLM needs"),
        (COLOCATE, True, None),
        ({**COLOCATE, "vllm_enable_sleep_mode": True}, False, None),
        ({"use_vllm": False}, False, None),
    ],
)
def test_turns_that_take_all_processes_are_refused(settings, sharded, said):
    args = {"vllm_tensor_parallel_size": 1, **settings}

    def checked(processes, tools):
        own = SimpleNamespace(world_size=processes, **args)
        check_turns(SimpleNamespace(args=own, tools=tools, is_fsdp_enabled=sharded))

    checked(2, None)
    checked(1, [len])
    with pytest.raises(ConfigurationError, match=said) if said else nullcontext():
        checked(2, [len])
