"""Stop strings on token ids, and the engine's seed."""

import os
from types import SimpleNamespace
from typing import Any

import pytest

from trl_ablate import ConfigurationError, miniature
from trl_ablate.trainer.engine import engine_seed, take_a_port
from trl_ablate.trainer.generation import StopStrings, backend_generation_kwargs, check_turns

TOKENIZER = miniature.tokenizer("sums")


def stop_strings(strings=("</answer>",), min_tokens=0):
    return StopStrings(strings, TOKENIZER, [TOKENIZER.eos_token_id], min_tokens)


def ids(text):
    return TOKENIZER.encode(text)


def test_eos_or_a_stop_string_is_an_end_and_the_limit_is_none():
    stop = stop_strings()
    assert stop.ended(ids("1+1=2 <answer>2</answer>"))
    assert stop.ended([*ids("1+1=2"), TOKENIZER.eos_token_id])
    assert not stop.ended(ids("1+1=2 <answer>2"))
    assert not stop.ended([])


def test_padding_behind_a_stop_string_is_cut():
    row = ids("<answer>2</answer>")
    assert stop_strings().cut([*row, *[TOKENIZER.pad_token_id] * 3]) == row
    assert stop_strings().cut([*row, TOKENIZER.eos_token_id]) == row
    ended_by_eos = [*ids("1+1=2"), TOKENIZER.eos_token_id]
    assert stop_strings().cut(ended_by_eos) == ended_by_eos
    assert stop_strings(()).cut(row) == row
    eos = TOKENIZER.eos_token_id
    assert stop_strings([TOKENIZER.eos_token]).cut([eos, eos]) == [eos]


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
    def made(processes, tools):
        given = {"vllm_tensor_parallel_size": 1, "world_size": processes, **settings}
        return SimpleNamespace(
            args=SimpleNamespace(**given), tools=tools, is_fsdp_enabled=sharded,
        )  # fmt: skip

    check_turns(made(2, None))
    check_turns(made(1, [len]))
    if said is None:
        check_turns(made(2, [len]))
        return
    with pytest.raises(ConfigurationError, match=said):
        check_turns(made(2, [len]))
