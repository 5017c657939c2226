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
EOS = TOKENIZER.eos_token_id


def stop_strings(strings=("</answer>",), min_tokens=0):
    return StopStrings(strings, TOKENIZER, [EOS], min_tokens)


def ids(text):
    return TOKENIZER.encode(text)


@pytest.mark.parametrize(
    ("row", "ended"),
    [
        (ids("1+1=2 <answer>2</answer>"), True),
        ([*ids("1+1=2"), EOS], True),
        (ids("1+1=2 <answer>2"), False),
        ([], False),
    ],
)
def test_eos_or_a_stop_string_is_an_end_and_the_limit_is_none(row, ended):
    assert stop_strings().ended(row) == ended


ROW = ids("<answer>2</answer>")


@pytest.mark.parametrize(
    ("strings", "row", "kept"),
    [
        (["</answer>"], [*ROW, *[TOKENIZER.pad_token_id] * 3], ROW),
        (["</answer>"], [*ROW, EOS], ROW),
        (["</answer>"], [*ids("1+1=2"), EOS], [*ids("1+1=2"), EOS]),
        ([], ROW, ROW),
        ([TOKENIZER.eos_token], [EOS, EOS], [EOS]),
    ],
)
def test_padding_behind_a_stop_string_is_cut(strings, row, kept):
    assert stop_strings(strings).cut(row) == kept


@pytest.mark.parametrize(
    ("min_tokens", "kept"), [(0, "1"), (1, "1231"), (3, "1231"), (4, "123121"), (6, "1231215")]
)
def test_a_stop_string_within_the_minimum_ends_nothing(min_tokens, kept):
    """The row is seven tokens of a digit each; a `1` may end it from token `min_tokens` + 1 on."""
    stop = stop_strings(["1"], min_tokens)
    assert TOKENIZER.decode(stop.cut(ids("1231215"))) == kept
    assert stop.ended(ids("1231215")) == (min_tokens < 6)


def test_a_stop_string_over_several_tokens_needs_its_last_one_behind_the_minimum():
    row = ids("12345")
    assert stop_strings(["23"], 2).cut(row) == row[:3]
    assert stop_strings(["23"], 3).cut(row) == row


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
