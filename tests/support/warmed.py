"""What the fork server of `tests.support.warm` imports last: work that every training would repeat.

A forked training draws the questions of the default world (a second of CPU time), imports what
transformers imports late, and starts the grader's processes. The first two are done here, once.
"""

from importlib import import_module

from tests.support.graders import start_at_once, start_when_needed
from trl_ablate import miniature
from trl_ablate.rewards import MathGrader

LATE_IMPORTS = ("transformers.models.qwen2.modeling_qwen2", "torch.utils.serialization")

for _name in LATE_IMPORTS:
    import_module(_name)
miniature.problems("train", 1)
MathGrader.__enter__ = start_when_needed


def start_graders_at_once() -> None:
    """In this process; for tests that are about the grader's processes."""
    MathGrader.__enter__ = start_at_once
