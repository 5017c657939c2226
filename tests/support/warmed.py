"""What the fork server of `tests.support.warm` imports last: work that every training would repeat.

A forked training draws the questions of the default world (a second of CPU time) and imports what
transformers imports late.
"""

from importlib import import_module

from trl_ablate import miniature
from trl_ablate.rewards.grading import grader

LATE_IMPORTS = ("transformers.models.qwen2.modeling_qwen2", "torch.utils.serialization")

for _name in LATE_IMPORTS:
    import_module(_name)
miniature.problems("train", 1)


def compare_by_processes() -> None:
    """Leave no answer of this process to the comparisons that need no algebra."""
    grader.cheap_verdict = lambda answer, gold: None
