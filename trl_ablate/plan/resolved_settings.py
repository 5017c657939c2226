"""The settings of a resolved recipe, as far as a plan knows them."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trl_ablate.errors import ConfigurationError
from trl_ablate.plan.gpus import GPUS
from trl_ablate.plan.shapes import MODELS

SAME = {
    "generation_batch_size": "rollouts",
    "max_completion_length": "max_length",
    "per_device_train_batch_size": "microbatch",
    "gradient_checkpointing": "checkpointing",
    "vllm_gpu_memory_utilization": "engine_share",
    "vllm_enable_sleep_mode": "sleep",
    "num_iterations": "epochs",
    "grpo_steps": "steps",
    "eval_size": "eval_questions",
}
"""Settings that a plan has under another name: the recipe's -> the plan's."""

TASKS: dict[str, dict[str, Any]] = {
    "miniature/words": {
        "prompt_tokens": 54, "mean_length": 17, "spread": 0.4, "eval_questions": 1200,
    },
}  # fmt: skip
"""What is known of the texts of a dataset; measured with the base of the profile `smollm2`."""

OPTIMIZERS = {"adamw_bnb_8bit": "adamw_8bit", "paged_adamw_8bit": "adamw_8bit"}
"""Those that differ from AdamW with states of 32 bits."""


def from_recipe(settings: Mapping[str, Any], profile: str) -> dict[str, Any]:
    """Fields of `Setup` that a recipe and its profile determine."""
    given = {name: value for name, value in settings.items() if value is not None}
    found = dict(TASKS.get(str(given.get("dataset")), {}))
    found |= {own: given[name] for name, own in SAME.items() if name in given}
    found["model"] = size_in(str(given["model_name_or_path"]))
    found |= {"gpu": profile} if profile in GPUS else {}
    if profile == "smollm2":
        found |= {"gpu": "cpu-bf16" if given.get("bf16") else "cpu", "context_gib": 0.5}
    if given.get("dtype") in ("float32", "bfloat16"):
        found["weights"] = given["dtype"]
    if "optim" in given:
        found["optimizer"] = OPTIMIZERS.get(given["optim"], "adamw")
    found["engine"] = "vllm" if given.get("use_vllm") else "transformers"
    found["lora_rank"] = given.get("lora_r", 0) if given.get("use_peft") else 0
    found["padded"] = given.get("trim_microbatches") is False
    if (
        "num_generations" in given
        and given.get("share_prompts") is not False
        and not found["padded"]
    ):
        found["sharing"] = min(given["num_generations"], found.get("microbatch", 1))
    if {"generation_batch_size", "optimizer_batch_size"} <= given.keys():
        found["optimizer_steps"] = given["generation_batch_size"] // given["optimizer_batch_size"]
    if given.get("eval_strategy") == "steps" and {"grpo_steps", "eval_steps"} <= given.keys():
        before = int(bool(given.get("eval_on_start")))
        found["evaluations"] = before + int(given["grpo_steps"] // given["eval_steps"])
    return found


def size_in(name: str) -> str:
    """The size that a model's name states, such as `Qwen/Qwen2.5-Math-1.5B`; or the folder."""
    if Path(name, "config.json").is_file():
        return name
    sizes = re.findall(r"(?<![\w.])(\d+(?:\.\d+)?[BM])(?!\w)", name)
    if not sizes or sizes[-1] not in MODELS:
        raise ConfigurationError(
            f"the recipe's model '{name}' is no size that is known ({', '.join(MODELS)}); give "
            "--model with one of them or with its config.json"
        )
    return sizes[-1]
