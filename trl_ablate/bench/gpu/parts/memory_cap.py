"""The 24 GiB profile: its settings for training, under a cap that leaves this process no more.

All rows have the longest prompt and completion that the profile allows. The engine sleeps during
training, so only what it does not free is missing here; `rtx4090.yaml` counts 1 GiB for it and
the CUDA context.
"""

import json
from typing import Any

import torch

from trl_ablate.bench import train_time
from trl_ablate.bench.gpu.parts import common
from trl_ablate.bench.gpu.registry import Found, Setup
from trl_ablate.recipe.resolving import load_recipe

PROFILE = "rtx4090"
CARD = 24 * 2**30
NOT_OURS = 2**30
"""For the CUDA context and the sleeping engine."""
TAKEN = ("bf16", "gradient_checkpointing", "optim")
"""Settings of the profile that this part trains with."""


def measure(setup: Setup) -> Found:
    resolved = load_recipe("grpo", PROFILE).settings
    longest, window = resolved["max_completion_length"], resolved["vllm_max_model_length"]
    shrink = 16 if setup.toy else 1
    load = train_time.Workload(
        [longest // shrink] * resolved["num_generations"],
        microbatch=resolved["per_device_train_batch_size"],
        steps=1,
        rounds=1,
        prompt_length=(window - longest) // shrink,
    )
    settings: dict[str, Any] = {key: resolved[key] for key in TAKEN}
    capped = cap(setup)
    found = common.measure(setup, load, {PROFILE: (False, settings)})[PROFILE]
    return Found(
        [common.cost(PROFILE, found, load)],
        {"the peak is below the cap": not capped or found.peak < CARD - NOT_OURS},
        {
            "settings": json.dumps(settings),
            "cap in GiB": (CARD - NOT_OURS) / 2**30 if capped else "none: only CUDA has one",
        },
    )


def cap(setup: Setup) -> bool:
    """Leave this process no more of the card than a card of 24 GiB has; whether there is a cap."""
    if setup.device != "cuda":
        return False
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, (CARD - NOT_OURS) / total))
    return True
