"""The ablation lab for GRPO on top of TRL: choices as switches, every arm a recipe.

Names are imported on first use, so that reading a run directory, grading an answer or printing a
recipe does not import torch. Dimension suffixes in the code: P prompts, G completions per prompt,
N = P·G rows, F reward functions, T tokens.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trl_ablate.config import AblationConfig
    from trl_ablate.errors import ConfigurationError
    from trl_ablate.recipe.resolving import load_recipe
    from trl_ablate.task import TaskArguments
    from trl_ablate.trainer.ablation import AblationTrainer
    from trl_ablate.training.guard_callback import GuardCallback

_HOMES = {
    "AblationConfig": "trl_ablate.config",
    "AblationTrainer": "trl_ablate.trainer.ablation",
    "ConfigurationError": "trl_ablate.errors",
    "GuardCallback": "trl_ablate.training.guard_callback",
    "TaskArguments": "trl_ablate.task",
    "load_recipe": "trl_ablate.recipe.resolving",
}

__all__ = [
    "AblationConfig",
    "AblationTrainer",
    "ConfigurationError",
    "GuardCallback",
    "TaskArguments",
    "load_recipe",
]


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module 'trl_ablate' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)
