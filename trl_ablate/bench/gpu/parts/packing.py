"""Microbatches as one row without padding (`padding_free`) against regrouped ones.

With flash attention the rows of a packed one cost what they cost alone. Without, attention masks
the whole row, which costs more the more rows there are.
"""

from transformers.utils import is_flash_attn_2_available

from trl_ablate.bench import train_time
from trl_ablate.bench.gpu.parts import common
from trl_ablate.bench.gpu.registry import Found, Setup

WAYS = {"regrouped": (False, {}), "packed": (False, {"padding_free": True})}
SAME = 1e-2
"""Relative difference of gradient norms in bfloat16."""


def measure(setup: Setup) -> Found:
    model, attention = common.random_model(setup), "sdpa"
    if setup.device == "cuda" and is_flash_attn_2_available():
        attention = "flash_attention_2"
        model.set_attn_implementation(attention)
    rows, norms = [], []
    for size in (1, 4, 16):
        load = common.workload(setup, rows=64, microbatch=size)
        found = common.measure(setup, load, WAYS, model)
        drawn = train_time.padding_as_drawn(load.lengths_N, load.prompt_length)
        norms.append(common.apart(found["packed"], found["regrouped"]))
        rows += [
            {"padded by TRL": drawn, **common.cost(f"{name}, microbatch of {size}", one, load)}
            for name, one in found.items()
        ]
    alone = rows[0]["padded"]
    return Found(
        rows,
        {
            "rows that are alone in a microbatch have no padding": alone < 0.01,
            f"gradient norms differ by less than {SAME}": max(norms) < SAME,
        },
        {"attention": attention},
    )
