"""AdamW with states of 32 and of 8 bits: time of a training step and peak memory."""

from trl_ablate.bench.gpu.parts import common
from trl_ablate.bench.gpu.registry import Found, Setup

OPTIMIZERS = {"32 bits": "adamw_torch_fused", "8 bits": "adamw_bnb_8bit"}


def measure(setup: Setup) -> Found:
    load = common.workload(setup, rows=16, microbatch=4)
    ways = {
        name: (False, {"bf16": True, "learning_rate": 1e-6, "optim": optimizer})
        for name, optimizer in OPTIMIZERS.items()
    }
    found = common.measure(setup, load, ways)
    rows = [common.cost(f"AdamW, {name}", one, load) for name, one in found.items()]
    first = {name: one.grad_norms[0][0] for name, one in found.items()}
    equal = abs(first["8 bits"] / first["32 bits"] - 1) < 0.02
    return Found(rows, {"the first gradient does not depend on the optimizer": equal})
