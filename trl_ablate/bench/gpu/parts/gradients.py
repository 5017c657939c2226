"""The gradients of stock TRL and of trl_ablate on the same rollouts, in float32 and bfloat16.

In float32 they are equal up to rounding. In bfloat16 rounding is coarser, and other padding rounds
differently; how far stock TRL in bfloat16 is from itself in float32 is the yardstick.
"""

from trl_ablate.bench.gpu.parts import common
from trl_ablate.bench.gpu.registry import Found, Setup
from trl_ablate.bench.tables import median

FLOAT32 = 1e-4
"""Largest relative difference of gradient norms in float32; on CPUs it is about 1e-7."""
BFLOAT16 = 0.02
"""The same in bfloat16, whose numbers have three digits, if the yardstick is smaller."""

STOCK, OURS, PADDED = "stock TRL", "trl_ablate", "trl_ablate, padded as TRL pads"


def measure(setup: Setup) -> Found:
    load = common.workload(setup, rows=16, microbatch=4)
    model = common.random_model(setup)
    ways = {STOCK: (True, {}), OURS: (False, {}), PADDED: (False, common.AS_TRL_PADS)}
    found = {}
    for precision in ("float32", "bfloat16"):
        settings = {"bf16": precision == "bfloat16", "learning_rate": 1e-6}
        ours = {name: (by_trl, {**own, **settings}) for name, (by_trl, own) in ways.items()}
        found[precision] = common.measure(setup, load, ours, model)
    yardstick = common.apart(found["float32"][STOCK], found["bfloat16"][STOCK])
    bounds = {"float32": FLOAT32, "bfloat16": max(BFLOAT16, 2 * yardstick)}
    rows = [
        {
            "what": f"{name}, {precision}",
            "gradient norm": median(sum(one.grad_norms, [])),
            "from stock, relative": common.apart(measured[STOCK], one),
            "allowed": bounds[precision],
        }
        for precision, measured in found.items()
        for name, one in measured.items()
    ]
    checks = {
        f"gradient norms of {row['what']} within {row['allowed']:.2g} of stock TRL's": (
            row["from stock, relative"] <= row["allowed"]
        )
        for row in rows
        if STOCK not in row["what"]
    }
    return Found(rows, checks, {"stock TRL, bfloat16 from float32, relative": yardstick})
