"""Preemption: after SIGTERM, a run saves a checkpoint and ends after its next optimizer step.

No finished step is lost, and `--resume` continues from there with the same results as a run without
a stop, even in the middle of a rollout batch. `termination.py` is how SIGTERM reaches the process.
"""

import torch
from transformers import TrainerCallback

from trl_ablate.config import AblationConfig
from trl_ablate.run.termination import Termination


class Preemption(TrainerCallback):
    """Asks the trainer to save and to stop, once any process has received SIGTERM.

    It overrides other callbacks' decisions on saving, so it has to be added last.

    Attributes:
        ended_run: whether it has stopped the run before the last step.
    """

    def __init__(self, termination: Termination):
        self._termination = termination
        self.ended_run = False

    def on_train_begin(self, args, state, control, **kwargs):
        self._termination.noted_only = True
        self._termination.listen()  # an engine may have replaced our handler

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
