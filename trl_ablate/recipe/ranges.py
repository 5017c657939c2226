"""Allowed numbers and names for settings of TRL and transformers; our own fields declare theirs.

The two libraries raise for most bad values only during a run, and for some not at all: a negative
seed fails in numpy, a temperature of 0 in the first rollout, a `beta2` of 1 in the optimizer. The
values are checked in every layer of a recipe, and not in `AblationConfig`, which accepts all that
`GRPOConfig` accepts. Numbers for which every value is valid (`beta`, `entropy_coef`) are absent.
"""

import functools
import json
from collections.abc import Iterable
from typing import Any

from accelerate.utils import DynamoBackend
from transformers.generation.configuration_utils import ALL_CACHE_IMPLEMENTATIONS
from transformers.training_args import trainer_log_levels

from trl_ablate.errors import ConfigurationError
from trl_ablate.recipe.strict import brief, nearest
from trl_ablate.settings import Range, check_range

COUNT, POSITIVE, NOT_NEGATIVE = Range(least=1), Range(above=0), Range(least=0)
SHARE = Range(least=0, most=1)
SHARE_BELOW_ONE = Range(least=0, below=1)
SHARE_ABOVE_ZERO = Range(above=0, most=1)
SEED = Range(least=0, most=2**32 - 1)
PORT = Range(least=1, most=65535)
STEPS = 2**53
"""Up to here a float64 counts steps exactly; transformers counts them in one."""

RANGES: dict[str, Range] = {
    # adapters
    "lora_r": COUNT,
    "lora_alpha": COUNT,
    "lora_dropout": SHARE_BELOW_ONE,
    # length of training, and batch sizes
    "num_train_epochs": Range(above=0, most=STEPS),
    "max_steps": Range(least=-1, most=STEPS),
    "per_device_train_batch_size": COUNT,
    "per_device_eval_batch_size": COUNT,
    "gradient_accumulation_steps": COUNT,
    "generation_batch_size": COUNT,
    "steps_per_generation": COUNT,
    "num_generations": COUNT,
    "num_generations_eval": COUNT,
    "num_iterations": COUNT,
    "seed": SEED,
    "data_seed": SEED,
    # optimizer and its schedule
    "learning_rate": NOT_NEGATIVE,
    "warmup_steps": Range(least=0, most=STEPS),
    "weight_decay": NOT_NEGATIVE,
    "adam_beta1": SHARE_BELOW_ONE,
    "adam_beta2": SHARE_BELOW_ONE,
    "adam_epsilon": POSITIVE,
    "max_grad_norm": NOT_NEGATIVE,
    "label_smoothing_factor": SHARE_BELOW_ONE,
    "neftune_noise_alpha": NOT_NEGATIVE,
    "router_aux_loss_coef": NOT_NEGATIVE,
    # objective
    "epsilon": NOT_NEGATIVE,
    "epsilon_high": NOT_NEGATIVE,
    "delta": POSITIVE,
    "sapo_temperature_neg": POSITIVE,
    "sapo_temperature_pos": POSITIVE,
    "vespo_k_pos": NOT_NEGATIVE,
    "vespo_k_neg": NOT_NEGATIVE,
    "vespo_lambda_pos": NOT_NEGATIVE,
    "vespo_lambda_neg": NOT_NEGATIVE,
    "ref_model_mixup_alpha": SHARE,
    "ref_model_sync_steps": COUNT,
    "top_entropy_quantile": SHARE,
    "entropy_target": NOT_NEGATIVE,
    "vllm_importance_sampling_clip_max": POSITIVE,
    "vllm_importance_sampling_clip_min": NOT_NEGATIVE,
    "vllm_importance_sampling_cap": POSITIVE,
    # rollouts
    "max_completion_length": COUNT,
    "temperature": POSITIVE,
    "top_p": SHARE_ABOVE_ZERO,
    "top_k": NOT_NEGATIVE,
    "min_p": SHARE,
    "repetition_penalty": POSITIVE,
    "pad_to_multiple_of": Range(least=1, most=2**16),
    "max_tool_calling_iterations": COUNT,
    "num_completions_to_print": COUNT,
    "vllm_server_port": PORT,
    "vllm_group_port": PORT,
    "vllm_server_timeout": POSITIVE,
    "vllm_gpu_memory_utilization": SHARE_ABOVE_ZERO,
    "vllm_max_model_length": COUNT,
    "vllm_tensor_parallel_size": COUNT,
    # frequencies and process counts
    "logging_steps": POSITIVE,
    "eval_steps": POSITIVE,
    "eval_delay": NOT_NEGATIVE,
    "eval_accumulation_steps": COUNT,
    "save_steps": POSITIVE,
    "save_total_limit": COUNT,
    "torch_empty_cache_steps": COUNT,
    "dataloader_num_workers": Range(least=0, most=256),
    "dataloader_prefetch_factor": COUNT,
    "ddp_bucket_cap_mb": COUNT,
    "ddp_timeout": Range(least=1, most=10**9),
}

CHOICES: dict[str, tuple[str, ...]] = {
    "dtype": ("auto", "bfloat16", "float16", "float32"),
    "cache_implementation": tuple(ALL_CACHE_IMPLEMENTATIONS),
    "bnb_4bit_quant_type": ("fp4", "nf4"),
    "lora_task_type": ("CAUSAL_LM",),
    "log_level": tuple(sorted(trainer_log_levels)),
    "log_level_replica": tuple(sorted(trainer_log_levels)),
    "torch_compile_backend": tuple(sorted(backend.lower() for backend in DynamoBackend.list())),
    "torch_compile_mode": (
        "default",
        "reduce-overhead",
        "max-autotune",
        "max-autotune-no-cudagraphs",
    ),
}
"""Valid texts for fields that accept any text; `choices` knows them for two fields more."""

JSON_MAPPINGS = (
    "chat_template_kwargs",
    "generation_kwargs",
    "gradient_checkpointing_kwargs",
    "lr_scheduler_kwargs",
    "model_init_kwargs",
    "transformers_continuous_batching_config",
)
"""Mappings that may be given as JSON text; the libraries silently ignore any other text."""

TEXTS_THAT_END = ("stop",)


USUAL = {
    "attn_implementation": ("eager", "sdpa", "flash_attention_2"),
    "report_to": ("all", "none", "trackio"),
}
"""Valid texts of fields whose others only an import of all of transformers' models tells, which
takes longer than all else that a dry run does."""


def choices(key: str) -> tuple[str, ...]:
    """Valid texts for a field; none for a field without such a list."""
    if key not in USUAL:
        return CHOICES.get(key, ())
    others = _attentions() if key == "attn_implementation" else _reporters()
    return tuple(dict.fromkeys([*USUAL[key], *sorted(others)]))


@functools.cache
def _attentions() -> list[str]:
    """Those with a bar, such as `paged|sdpa`, generate and cannot train."""
    from transformers import AttentionInterface

    return [name for name in AttentionInterface().valid_keys() if "|" not in name]


def _reporters() -> Iterable[str]:
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    return INTEGRATION_TO_CALLBACK


def check_meaning(what: str, key: str, value: Any) -> None:
    """Refuse a value that has the right type but is not valid for the setting `key`."""
    if key in RANGES:
        check_range(what, value, RANGES[key])
    for text in value if isinstance(value, list) else [value]:
        if isinstance(text, str) and text not in USUAL.get(key, ()) and not _of_the_hub(key, text):
            _check_choice(what, text, choices(key))
    if value is None and key == "report_to":
        raise ConfigurationError(f"{what} is null; it takes {', '.join(choices(key))}")
    if key == "remove_unused_columns" and value:
        raise ConfigurationError(
            f"{what} is true, but that removes the gold answer, which the reward needs; "
            "leave it false"
        )
    if key == "accelerator_config" and isinstance(value, dict) and value.get("dispatch_batches"):
        raise ConfigurationError(
            f"{what} has dispatch_batches, which sends tensors only, but questions are texts; "
            "leave it out"
        )
    if key in JSON_MAPPINGS and isinstance(value, str) and not _is_json_mapping(value):
        raise ConfigurationError(
            f"{what} is the text '{brief(value)}', which is not a JSON mapping; write "
            '{"key": value}'
        )
    if key in TEXTS_THAT_END and "" in (value or ()):
        raise ConfigurationError(f"{what} contains an empty text, which ends nothing; remove it")


def _of_the_hub(key: str, text: str) -> bool:
    """Whether this is the name of a kernel on the Hub, which has a slash."""
    return key == "attn_implementation" and "/" in text


def _check_choice(what: str, text: str, allowed: tuple[str, ...]) -> None:
    if allowed and text not in allowed:
        raise ConfigurationError(
            f"{what} is '{brief(text)}'; it takes {', '.join(allowed)}{nearest(text, allowed)}"
        )


def _is_json_mapping(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
