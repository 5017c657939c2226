"""All settings: the fields of four dataclasses, their types, and the numbers and names they take.

Our own fields declare their ranges; those of TRL and transformers are here, as the two libraries
raise for most bad values only during a run, and for some not at all: a negative seed fails in
numpy, a `beta2` of 1 in the optimizer. The values are checked in every layer of a recipe, and not
in `AblationConfig`, which accepts all that `GRPOConfig` accepts.
"""

import dataclasses
import functools
import json
import typing
from collections.abc import Collection, Iterable
from typing import Any, NoReturn

from accelerate.utils import DynamoBackend
from transformers.generation.configuration_utils import ALL_CACHE_IMPLEMENTATIONS
from transformers.training_args import trainer_log_levels
from trl import ModelConfig

from trl_ablate.config import AblationConfig
from trl_ablate.errors import ConfigurationError, brief, nearest
from trl_ablate.guard.arguments import GuardArguments
from trl_ablate.recipe.strict import check_value
from trl_ablate.settings import Range, check_range
from trl_ablate.task import TaskArguments

GROUPS = (ModelConfig, TaskArguments, GuardArguments, AblationConfig)
"""The dataclasses whose fields are the settings."""

LOADER_KEYS = {"extends": str, "profile": str}
"""Keys that control the loader and are not settings."""

STEPS = 2**53
"""Up to here a float64 counts steps exactly; transformers counts them in one."""

OF_A_RANGE = {
    Range(least=1): (
        "lora_r lora_alpha ref_model_sync_steps max_completion_length "
        "max_tool_calling_iterations num_completions_to_print vllm_max_model_length "
        "vllm_tensor_parallel_size eval_accumulation_steps save_total_limit "
        "torch_empty_cache_steps dataloader_prefetch_factor ddp_bucket_cap_mb"
    ),
    Range(least=0, below=1): ("lora_dropout adam_beta1 adam_beta2 label_smoothing_factor"),
    Range(above=1): ("delta"),  # the ratio of a rollout at its own policy is 1
    Range(above=0, most=STEPS): ("num_train_epochs"),
    Range(least=-1, most=STEPS): ("max_steps"),
    Range(least=0, most=2**32 - 1): ("seed data_seed"),
    Range(least=0): (
        "learning_rate weight_decay max_grad_norm neftune_noise_alpha router_aux_loss_coef "
        "beta epsilon epsilon_high vespo_k_pos vespo_k_neg vespo_lambda_pos vespo_lambda_neg "
        "entropy_target vllm_importance_sampling_clip_min top_k eval_delay"
    ),
    Range(least=0, most=STEPS): ("warmup_steps"),
    Range(above=0): (
        "adam_epsilon sapo_temperature_neg sapo_temperature_pos "
        "vllm_importance_sampling_clip_max vllm_importance_sampling_cap temperature "
        "repetition_penalty vllm_server_timeout logging_steps eval_steps save_steps"
    ),
    Range(least=0, most=1): ("ref_model_mixup_alpha top_entropy_quantile min_p"),
    Range(above=0, most=1): ("top_p vllm_gpu_memory_utilization"),
    Range(least=1, most=2**16): ("pad_to_multiple_of"),
    Range(least=1, most=65535): ("vllm_server_port vllm_group_port"),
    Range(least=0, most=256): ("dataloader_num_workers"),
    Range(least=1, most=10**9): ("ddp_timeout"),
}
RANGES = {name: allowed for allowed, names in OF_A_RANGE.items() for name in names.split()}

CHOICES: dict[str, tuple[str, ...]] = {
    "dtype": ("auto", "bfloat16", "float16", "float32"),
    "cache_implementation": tuple(ALL_CACHE_IMPLEMENTATIONS),
    "bnb_4bit_quant_type": ("fp4", "nf4"),
    "lora_task_type": ("CAUSAL_LM",),
    "log_level": tuple(sorted(trainer_log_levels)),
    "log_level_replica": tuple(sorted(trainer_log_levels)),
    "torch_compile_backend": tuple(sorted(backend.lower() for backend in DynamoBackend.list())),
    "torch_compile_mode": (
        *("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"),
    ),
    "attn_implementation": ("eager", "sdpa", "flash_attention_2"),
    "report_to": ("all", "none", "trackio"),
}
"""Valid texts for fields that accept any text. Of the last two, the usual ones: only an import of
all of transformers' models tells the others, which takes longer than a dry run (`choices`)."""

JSON_MAPPINGS = (
    "chat_template_kwargs",
    "generation_kwargs",
    "gradient_checkpointing_kwargs",
    "lr_scheduler_kwargs",
    "model_init_kwargs",
    "transformers_continuous_batching_config",
)
"""Mappings that may be given as JSON text; the libraries silently ignore any other text."""


@functools.cache
def known_fields() -> dict[str, tuple[type, Any]]:
    """All settings: name -> (the dataclass with the field, its type)."""
    return {
        f.name: (group, hints[f.name])
        for group in GROUPS
        for hints in [typing.get_type_hints(group)]
        for f in dataclasses.fields(group)
        if f.init
    }


@functools.cache
def hints() -> dict[str, Any]:
    """The type of every setting and of every key of the loader."""
    return {**{name: hint for name, (_, hint) in known_fields().items()}, **LOADER_KEYS}


def checked(
    settings: dict[str, Any], source: object, loader: Collection[str] = tuple(LOADER_KEYS)
) -> dict[str, Any]:
    """The settings of one layer, after a check that each is known, has its type, and is valid;
    `loader`: the loader's keys that it may have."""
    found = {}
    for key, value in settings.items():
        if key not in hints():
            raise ConfigurationError(f"{source}: unknown key '{brief(key)}'{nearest(key, hints())}")
        if key in LOADER_KEYS and key not in loader:
            raise ConfigurationError(
                f"{source}: '{key}: {brief(value)}' is not read here; remove it, or move it into "
                "the recipe"
            )
        found[key] = check_value(f"{source}: {key}", value, hints()[key])
        check_meaning(f"{source}: {key}", key, found[key])
    return found


@functools.cache
def choices(key: str) -> tuple[str, ...]:
    """Valid texts for a field; none for a field without such a list."""
    others: Iterable[str] = ()
    if key == "attn_implementation":
        from transformers import AttentionInterface

        # those with a bar, such as `paged|sdpa`, generate and cannot train
        others = (name for name in AttentionInterface().valid_keys() if "|" not in name)
    elif key == "report_to":
        from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

        others = INTEGRATION_TO_CALLBACK
    return tuple(dict.fromkeys([*CHOICES.get(key, ()), *sorted(others)]))


def check_meaning(what: str, key: str, value: Any) -> None:
    """Refuse a value that has the right type but is not valid for the setting `key`."""
    if key in RANGES:
        check_range(what, value, RANGES[key])

    def refuse(sentence: str) -> NoReturn:
        raise ConfigurationError(f"{what} {sentence}")

    for text in value if isinstance(value, list) else [value]:
        kernel = key == "attn_implementation" and "/" in str(text)  # of the Hub
        usual = text in CHOICES.get(key, ()) or kernel
        if isinstance(text, str) and not usual and text not in (known := choices(key) or (text,)):
            refuse(f"is '{brief(text)}'; it takes {', '.join(known)}{nearest(text, known)}")
    if value is None and key == "report_to":
        refuse(f"is null; it takes {', '.join(choices(key))}")
    if key == "remove_unused_columns" and value:
        refuse("is true, but that removes the gold answer, which the reward needs; leave it false")
    if key == "accelerator_config" and isinstance(value, dict) and value.get("dispatch_batches"):
        refuse("has dispatch_batches, which sends tensors only, but questions are texts; remove it")
    if key in JSON_MAPPINGS and isinstance(value, str) and not _is_json_mapping(value):
        shape = '{"key": value}'
        refuse(f"is the text '{brief(value)}', which is not a JSON mapping; write {shape}")
    if key == "stop" and "" in (value or ()):
        refuse("contains an empty text, which ends nothing; remove it")


def _is_json_mapping(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
