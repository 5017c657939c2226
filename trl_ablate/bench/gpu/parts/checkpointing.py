"""Gradient checkpointing: what it costs in time and saves in memory, with the same gradients."""

from trl_ablate.bench.gpu.parts import common
from trl_ablate.bench.gpu.registry import Found, Setup

CLOSE = 0.02
"""Relative difference of gradient norms in bfloat16."""


def measure(setup: Setup) -> Found:
    load = common.workload(setup, rows=32, microbatch=4)
    ways = {
        f"checkpointing {name}": (
            False,
            {"bf16": True, "learning_rate": 1e-6, "gradient_checkpointing": on},
        )
        for name, on in (("off", False), ("on", True))
    }
    found = common.measure(setup, load, ways)
    rows = [common.cost(name, one, load) for name, one in found.items()]
    difference = common.apart(*found.values())
    return Found(
        rows,
        {f"gradient norms within {CLOSE}": difference <= CLOSE},
        {"gradient norms, relative difference": difference},
    )
