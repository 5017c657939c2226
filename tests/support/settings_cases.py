"""Every setting with the edge values of its type, and the exceptions with their reasons.

Made from the fields themselves, so that a new field is tested without a change here.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Iterator
from enum import Enum
from typing import Any

from trl_ablate.recipe.fields import choices, known_fields

BIG = 10**12

CONTEXT: dict[str, dict[str, Any]] = {
    "lora_": {"use_peft": True},
    "use_rslora": {"use_peft": True},
    "sapo_": {"loss_type": "sapo", "surrogate": None, "length_norm": None},
    "vespo_": {"loss_type": "vespo", "surrogate": None, "length_norm": None},
    "entropy_": {"use_adaptive_entropy": True},
    "ref_model_": {"beta": 0.1, "sync_ref_model": True},
    "length_norm_constant": {"length_norm": "constant"},
    "best_of": {"baseline": "best_of_others"},
    "covariance_": {"covariance_kl": 1.0, "num_iterations": 2},
    "sampler_gap_limit": {"sampler_dtype": "int8"},
    "max_resample_rounds": {"group_filter": "resample"},
}
"""Name of a setting, or its prefix -> the settings that it needs to have an effect."""

LEFT_OUT = {
    "push_to_hub": "asks the Hub; tests/e2e/test_hub.py publishes",
    "torch_compile": "takes a minute to compile; the contract tests have it",
    "torch_compile_backend": "switches torch_compile on",
    "torch_compile_mode": "switches torch_compile on",
    "use_vllm": "starts an engine; the vLLM tests have it",
    "deepspeed": "is not installed here, and is refused for that",
    "parallelism_config": "is no value that a recipe can hold",
    "output_dir": "is a place; the tests of run directories have them",
    "model_name_or_path": "is a place or a name on the Hub; the tests of models have them",
    "model_revision": "is a name on the Hub",
    "dataset": "is a place or a name on the Hub; the tests of data have them",
    "eval_sets": "as dataset",
    "log_completions_hub_repo": "asks the Hub",
    "full_determinism": "changes the whole process for good",
}

VALID: dict[str, list[Any]] = {
    "fsdp": ["full_shard"],
    "optim_target_modules": ["all-linear"],
    "lora_target_modules": ["all-linear", ["q_proj"]],
    "dataloader_multiprocessing_context": ["fork", "spawn"],
    "ddp_backend": ["gloo", "nccl"],
    "debug": ["underflow_overflow"],
    "label_names": [["labels"]],
    "train_sampling_strategy": ["group_by_length", "sequential"],
    "accelerator_config": [{"split_batches": True}, {"dispatch_batches": True}],
    "eval_by": ["question", "answer"],
    "chat_template": ["{{ messages[0]['content'] }}"],
    "system_prompt": ["Be brief."],
    "reward_funcs": [["answer", "format"], ["accuracy_reward"], ["eos_penalty"]],
    "model_init_kwargs": [{"device_map": "auto"}, {"dtype": "float16"}],
    "generation_kwargs": [
        {"do_sample": False},
        {"num_return_sequences": 2},
        {"num_beams": 2},
        {"return_dict_in_generate": True},
        {"max_new_tokens": 0},
        {"eos_token_id": 3},
    ],
    "gradient_checkpointing_kwargs": [{"use_reentrant": False}],
    "transformers_continuous_batching_config": [{"max_batch_tokens": 64}],
    "metric_for_best_model": ["eval_reward", "reward", "loss"],
    "optim_args": ["momentum=0.9"],
}
"""Values of a setting that takes any text or mapping, which mean something to a library."""

LONG = {"max_steps", "grpo_steps", "num_iterations"}
"""A huge value of these makes a long training, which is correct."""


def cases() -> Iterator[tuple[str, Any]]:
    """Every setting and each of its edge values once."""
    for name, (group, hint) in known_fields().items():
        if name in LEFT_OUT:
            continue
        default = next(one.default for one in dataclasses.fields(group) if one.name == name)
        tried = [repr(default)]
        known = [*choices(name), *VALID.get(name, ())]
        for value in [*edges(hint), *known, None, "text", [[1]]]:
            if repr(value) not in tried and not (name in LONG and value == BIG):
                tried.append(repr(value))
                yield name, value


def context(name: str) -> dict[str, Any]:
    return next((given for start, given in CONTEXT.items() if name.startswith(start)), {})


def edges(hint: Any) -> list[Any]:
    """The values at the edges of what a type allows."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return [value for part in parts for value in edges(part)]
    if origin is typing.Literal:
        return list(parts)
    if origin is list:
        items = edges(parts[0])
        return [[], *([item] for item in items), [items[0], items[0]]]
    if origin is dict or hint is dict:
        return [{}, {"x": 1}, {"": ""}]
    if isinstance(hint, type) and issubclass(hint, Enum):
        return [member.value for member in hint]
    of_type: dict[Any, list[Any]] = {
        bool: [True, False],
        int: [0, -1, 1, BIG, 2**70],
        float: [0.0, -1.0, 0.5, 1.5, 1e30, -1e30, math.nan, math.inf],
        str: ["", "x", "{", "😀 [/red]", "a" * 300],
    }
    return of_type.get(hint, [])
