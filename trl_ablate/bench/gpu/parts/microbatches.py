"""Time and memory of a training step by the rows of a microbatch."""

import torch

from trl_ablate.bench.gpu.parts import common
from trl_ablate.bench.gpu.registry import Found, Setup

SIZES = (1, 2, 4, 8, 16)
FULL = "out of memory"


def measure(setup: Setup) -> Found:
    model = common.random_model(setup)
    rows = []
    for size in (1, 16) if setup.toy else SIZES:
        load = common.workload(setup, rows=64, microbatch=size)
        name = f"microbatch of {size}"
        try:
            found = common.measure(setup, load, {name: (False, {"bf16": True})}, model)
        except torch.OutOfMemoryError:
            rows.append({"what": name, "s/step": FULL})
            break
        rows.append(common.cost(name, found[name], load))
    return Found(rows, {"a microbatch of one row fits": rows[0]["s/step"] != FULL})
