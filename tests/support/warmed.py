"""What the fork server of `tests.support.warm` imports last: work that every training would repeat.

A forked training draws the questions of the default world (a second of CPU time) and imports what
transformers imports late.
"""

from importlib import import_module

from trl_ablate import miniature
from trl_ablate.rewards import MathGrader

LATE_IMPORTS = ("transformers.models.qwen2.modeling_qwen2", "torch.utils.serialization")

for _name in LATE_IMPORTS:
    import_module(_name)
miniature.problems("train", 1)


def start_graders_at_once() -> None:
    """In this process; an answer of the miniature rarely needs one."""
    enter = MathGrader.__enter__

    def enter_and_start(self: MathGrader) -> MathGrader:
        assert self.grade(["(x+1)^2"], ["x^2+2x+1"]) == [True] and self.pids  # needs algebra
        return enter(self)

    MathGrader.__enter__ = enter_and_start
