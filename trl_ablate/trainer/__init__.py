"""AblationTrainer and the parts of its extension of TRL's trainer.

`AblationTrainer` is imported on first use, as `batching` and `architectures` do not need TRL.
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
