"""A real vocabulary over a narrow model: nearly all work is the LM head's, on response tokens.

TRL's fused head computes only positions that have a label. The table shows what padded positions
cost: stock TRL against trl_ablate on the same rollouts.
"""

from trl_ablate.bench.gpu.parts import common
from trl_ablate.bench.gpu.registry import Found, Setup
from trl_ablate.bench.tables import median

VOCABULARY = 151_936


def measure(setup: Setup) -> Found:
    load = common.workload(setup, rows=64, microbatch=4)
    if setup.toy:
        load.lengths_N = load.lengths_N[:8]
    ways = {"stock TRL": (True, {}), "trl_ablate": (False, {})}
    found = common.measure(setup, load, ways, common.random_model(setup, "miniature", VOCABULARY))
    stock, ours = found.values()
    difference = common.apart(stock, ours)
    return Found(
        [common.cost(name, one, load) for name, one in found.items()],
        {"gradient norms within 0.02": difference <= 0.02},
        {
            "ratio": median(stock.seconds) / median(ours.seconds),
            "gradient norms, relative difference": difference,
        },
    )
