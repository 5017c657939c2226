"""What a recipe and its profile say of a plan's assumptions."""

import re
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from trl_ablate.errors import ConfigurationError
from trl_ablate.plan.estimate import Estimate, plan
from trl_ablate.plan.setup import Setup
from trl_ablate.plan.sizes import GPUS, MODELS
from trl_ablate.schedule import evaluations

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
    "per_device_eval_batch_size": "eval_batch",
}
"""Settings that a plan has under another name: the recipe's -> the plan's."""

TASKS: dict[str, dict[str, Any]] = {
    "miniature/words": {
        "prompt_tokens": 54, "mean_length": 17, "spread": 0.4, "eval_questions": 1200,
    },
}  # fmt: skip
"""What is known of the texts of a dataset; measured with the base of the profile `smollm2`."""

OPTIMIZERS_OF_8_BITS = ("adamw_8bit", "adamw_bnb_8bit", "paged_adamw_8bit")
"""Of bitsandbytes."""
OPTIMIZERS_AS_WEIGHTS = ("adamw_torch", "adamw_torch_fused")
"""Torch's make their states in the precision of what is trained, and PEFT makes adapters float32;
the states of all others count as AdamW's of 32 bits."""


def from_recipe(settings: Mapping[str, Any], profile: str) -> dict[str, Any]:
    """Fields of `Setup` that a recipe and its profile determine."""
    given = {name: value for name, value in settings.items() if value is not None}
    if "model_name_or_path" not in given:
        raise ConfigurationError(
            f"the recipe and its profile '{profile}' name no model; give one with --model, or "
            "another profile"
        )
    found = dict(TASKS.get(str(given.get("dataset")), {}))
    found |= {own: given[name] for name, own in SAME.items() if name in given}
    longest = found.get("max_length", Setup.max_length)
    if longest < found.get("mean_length", Setup.mean_length):
        found["mean_length"] = longest
    found |= {
        "model": size_in(str(given["model_name_or_path"])),
        "engine": "vllm" if given.get("use_vllm") else "transformers",
        "lora_rank": given.get("lora_r", 0) if given.get("use_peft") else 0,
        "padded": given.get("trim_microbatches") is False,
    }
    found |= {"gpu": profile} if profile in GPUS else {}
    if profile == "smollm2":
        found |= {"gpu": "cpu-bf16" if given.get("bf16") else "cpu", "context_gib": 0.5}
    if dtype := given.get("model_init_kwargs", {}).get("dtype") or given.get("dtype"):
        # float16 takes as many bytes; `auto` is that of the checkpoint, mostly bfloat16
        found["weights"] = "float32" if dtype == "float32" else "bfloat16"
    if "optim" in given:
        found["optimizer"] = "adamw_8bit" if given["optim"] in OPTIMIZERS_OF_8_BITS else "adamw"
        halved = found.get("weights") == "bfloat16" and not found["lora_rank"]
        if halved and given["optim"] in OPTIMIZERS_AS_WEIGHTS:
            found["optimizer"] = "adamw_bf16"
    for bits in ("8bit", "4bit"):
        if given.get(f"load_in_{bits}"):
            found["quantized"] = bits
    shares = given.get("share_prompts") is not False and not found["padded"]
    if shares and "num_generations" in given:
        found["sharing"] = min(given["num_generations"], found.get("microbatch", 1))
    if {"generation_batch_size", "optimizer_batch_size"} <= given.keys():
        updates = given["generation_batch_size"] // given["optimizer_batch_size"]
        found["optimizer_steps"] = max(1, updates)
    if given.get("beta"):
        found["reference"] = not found["lora_rank"]
    updates = found.get("optimizer_steps", 1) * found.get("epochs", 1)
    corrected = given.get("use_vllm") and given.get("vllm_importance_sampling_correction", True)
    own_pass = corrected and given.get("reuse_forward") is False
    if extra := bool(given.get("beta")) + bool(updates > 1 or own_pass):
        found["extra_forwards"] = extra
    return found | _evaluations(given, found.get("eval_questions", Setup.eval_questions), updates)


def plan_recipe(settings: Mapping[str, Any], profile: str) -> Estimate | None:
    """The answer for a recipe on its profile's machine; None if that or the model is not known."""
    try:
        given = from_recipe(settings, profile)
        return plan(Setup(**given)) if "gpu" in given else None
    except ConfigurationError:
        return None


def _evaluations(given: Mapping[str, Any], questions: int, updates: int) -> dict[str, int]:
    """How many completions an evaluation has, and how often a run is evaluated that takes so many
    optimizer steps per rollout batch."""
    found = {}
    samples = given.get("num_generations_eval") or given.get("num_generations", 1)
    if samples > 1:
        found["eval_questions"] = samples * questions
    if given.get("eval_strategy") == "no":
        found["evaluations"] = 0
    elif given.get("eval_strategy") == "steps" and {"grpo_steps", "eval_steps"} <= given.keys():
        of = updates * given["grpo_steps"], Fraction(1, updates)
        after = evaluations(*of, given["eval_steps"], given.get("eval_delay", 0))
        found["evaluations"] = bool(given.get("eval_on_start")) + after
    return found


def size_in(name: str) -> str:
    """The size that a model's name states, such as `Qwen/Qwen2.5-Math-1.5B`; or the name itself, of
    a size, a folder or a config.json."""
    known = name.lower() in map(str.lower, MODELS)
    if known or Path(name).is_file() or Path(name, "config.json").is_file():
        return name
    sizes = re.findall(r"(?<![\w.])(\d+(?:\.\d+)?[BM])(?!\w)", name)
    if not sizes or sizes[-1] not in MODELS:
        raise ConfigurationError(
            f"the recipe's model '{name}' is no size that is known ({', '.join(MODELS)}); give "
            "--model with one of them or with its config.json"
        )
    return sizes[-1]
