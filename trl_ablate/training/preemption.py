"""A machine that is taken away: SIGTERM ends a run behind its next optimizer step, and saves it.

What is trained until then is kept, and `--resume` goes on from there as if nothing had happened,
even in the middle of a rollout batch. How SIGTERM comes to the process: `termination.py`.
"""

import torch
from transformers import TrainerCallback

from trl_ablate.config import AblationConfig
from trl_ablate.run.termination import Termination


class Preemption(TrainerCallback):
    """Asks the trainer to save and to stop, once some process has got SIGTERM.

    It has the last word on saving, so it has to be added behind every callback that has one.

    Attributes:
        ended_run: whether it did so before the last step.
    """

    def __init__(self, termination: Termination):
        self._termination = termination
        self.ended_run = False

    def on_train_begin(self, args, state, control, **kwargs):
        self._termination.noted_only = True
        self._termination.listen()  # an engine may have put its own in place of ours

    def on_step_end(self, args: AblationConfig, state, control, **kwargs):
        if state.global_step < state.max_steps and self._anybody_asked(args):
            self.ended_run = True
            control.should_save = control.should_training_stop = True
        return control

    def _anybody_asked(self, args: AblationConfig) -> bool:
        if args.world_size == 1:
            return self._termination.came
        asked = torch.tensor(int(self._termination.came), device=args.device)
        torch.distributed.all_reduce(asked, op=torch.distributed.ReduceOp.MAX)
        return bool(asked)
