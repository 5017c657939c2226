"""A machine that is taken away: SIGTERM ends a run at its next rollout boundary, with a checkpoint.

Schedulers send SIGTERM some time before they kill. What is trained until then is kept, and
`--resume` goes on from there as if nothing had happened.
"""

import signal

import torch
from transformers import TrainerCallback

from trl_ablate.config import AblationConfig


class Preemption(TrainerCallback):
    """Asks the trainer to save and to stop, once some process has got SIGTERM.

    It has the last word on saving, so it has to be added behind every callback that has one.
    """

    def __init__(self):
        self.asked = False

    def on_train_begin(self, args, state, control, **kwargs):
        signal.signal(signal.SIGTERM, self._note)

    def on_step_end(self, args: AblationConfig, state, control, **kwargs):
        between_rollouts = state.global_step % args.optimizer_steps_per_rollout == 0
        if between_rollouts and self._anybody_asked(args):
            self.asked = True
            control.should_save = control.should_training_stop = True
        return control

    def on_train_end(self, args, state, control, **kwargs):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _note(self, *_: object) -> None:
        self.asked = True

    def _anybody_asked(self, args: AblationConfig) -> bool:
        if args.world_size == 1:
            return self.asked
        asked = torch.tensor(int(self.asked), device=args.device)
        torch.distributed.all_reduce(asked, op=torch.distributed.ReduceOp.MAX)
        return bool(asked)
