"""What packing could remove: the padding that is left after microbatches are regrouped by length.

There is no packing in TRL 1.16's GRPO, and none here; this part shows what it could save.
"""

from trl_ablate.bench import training
from trl_ablate.bench.gpu.parts import common
from trl_ablate.bench.gpu.registry import Found, Setup


def measure(setup: Setup) -> Found:
    model = common.random_model(setup, "miniature")
    rows = []
    for size in (1, 4, 16):
        load = common.workload(setup, rows=256, microbatch=size)
        found = common.measure(setup, load, {"regrouped": (False, {})}, model)
        drawn = training.padding_as_drawn(load.lengths_N, load.prompt_length)
        left = found["regrouped"].padded
        rows.append(
            {"what": f"microbatch of {size}", "padded by TRL": drawn, "left for packing": left}
        )
    alone = rows[0]["left for packing"]
    return Found(rows, {"rows that are alone in a microbatch have no padding": alone < 0.01})
