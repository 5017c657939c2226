"""AblationTrainer, and what it puts into the seams of TRL's trainer.

The name is imported on first use: batching or the table of architectures need no TRL.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trl_ablate.trainer.ablation import AblationTrainer

__all__ = ["AblationTrainer"]


def __getattr__(name: str):
    if name != "AblationTrainer":
        raise AttributeError(f"module 'trl_ablate.trainer' has no attribute '{name}'")
    from trl_ablate.trainer.ablation import AblationTrainer

    return AblationTrainer
