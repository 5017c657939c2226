"""Settings by role: ours have it in their metadata, and those of TRL in a table here. No torch.

A role is what a setting is to a run; `settings.py` lists them. The settings of the guard only
watch a run; they are known by their prefix, `guard_`.
"""

from trl_ablate.settings import Role, names_with
from trl_ablate.switches import Switches
from trl_ablate.task import TaskArguments

OF_TRL: dict[Role, tuple[str, ...]] = {
    "place": (
        "output_dir", "project", "report_to", "run_name", "use_cpu", "push_to_hub", "hub_model_id",
        "hub_private_repo", "hub_revision", "hub_strategy", "hub_token", "trackio_space_id",
        "trackio_static_space_id", "trackio_bucket_id",
    ),
    "record": (
        "save_strategy", "save_total_limit", "save_on_each_node", "save_only_model",
        "logging_steps", "logging_strategy", "logging_first_step", "log_completions",
        "num_completions_to_print", "disable_tqdm",
    ),
    "machine": (
        "per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps",
        "gradient_checkpointing", "gradient_checkpointing_kwargs", "attn_implementation",
        "dataloader_num_workers", "dataloader_pin_memory", "dataloader_persistent_workers",
        "dataloader_prefetch_factor", "ddp_backend", "ddp_timeout", "deepspeed", "fsdp",
        "fsdp_config", "vllm_gpu_memory_utilization", "vllm_tensor_parallel_size",
        "vllm_enable_sleep_mode", "vllm_server_base_url", "vllm_server_host", "vllm_server_port",
        "vllm_server_timeout", "vllm_group_port",
    ),
    "length": ("max_steps", "num_train_epochs"),
    "weights": ("model_name_or_path", "model_revision", "load_in_4bit", "load_in_8bit"),
    "world": ("model_name_or_path",),
    "model": ("use_peft", "lora_r", "lora_target_modules", "cast_lm_head_to_fp32"),
    "generation": (
        "generation_batch_size", "num_generations", "temperature", "top_p", "top_k", "min_p",
        "repetition_penalty", "max_completion_length", "generation_kwargs", "use_vllm",
    ),
}  # fmt: skip


def named(*roles: Role) -> tuple[str, ...]:
    """The settings that have one of the roles."""
    ours = (*names_with(TaskArguments, *roles), *names_with(Switches, *roles))
    return (*ours, *(name for role in roles for name in OF_TRL.get(role, ())))
