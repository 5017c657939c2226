"""When a run is evaluated and saved: a pure rule, for the trainer's clock and for plans.

Periods count GRPO steps, of which an optimizer step has `per_step`, possibly a part of one. No
torch.
"""

import math
from fractions import Fraction


def period(every: float, grpo_steps: Fraction | float) -> int:
    """A number of GRPO steps; below 1 it is a share of all of them."""
    return math.ceil(grpo_steps * every) if 0 < every < 1 else int(every)


def due(step: int, every: int, per_step: Fraction) -> bool:
    """Whether this optimizer step completes a multiple of `every` GRPO steps."""
    return every > 0 and step * per_step // every > (step - 1) * per_step // every


def evaluations(steps: int, per_step: Fraction, every: float, delay: float = 0) -> int:
    """How often a run of so many optimizer steps is evaluated after its start: where it is due,
    from `delay` optimizer steps on, and after the last."""
    whole = max(1, period(every, steps * per_step))
    first = max(1, math.ceil(delay))
    return sum(due(step, whole, per_step) for step in range(first, steps)) + (steps > 0)
