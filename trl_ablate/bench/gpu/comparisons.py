"""Parts that train a random model in several ways on the same rollouts.

Nothing here asks which device it is on but for what only a GPU has (flash attention, the cap on its
memory), so that a CPU at toy size takes the same way through the code.
"""

import json
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.utils import is_flash_attn_2_available

from trl_ablate import miniature
from trl_ablate.bench import synthetic
from trl_ablate.bench.gpu.parts import Found, Setup
from trl_ablate.bench.timing import OURS, STOCK, Measured
from trl_ablate.bench.train_time import Ways, Workload, apart, compare
from trl_ablate.recipe.resolving import load_recipe

BF16 = {"bf16": True, "learning_rate": 1e-6}
FLOAT32 = 1e-4
"""Largest relative difference of gradient norms in float32; on CPUs it is about 1e-7."""
CLOSE = 0.02
"""The same in bfloat16, whose numbers have three digits."""
CLOSE_PACKED = 0.01
GIB = 2**30
CARD, NOT_OURS = 24 * GIB, GIB
"""Bytes of a card, and of its CUDA context and the sleeping engine."""


def gradients(setup: Setup) -> Found:
    """In float32 both have the same gradients up to rounding. In bfloat16 rounding is coarser, and
    other padding rounds differently: the yardstick is how far stock TRL is from its own float32."""
    load, model = workload(setup, 16), random_model(setup)
    as_trl_pads = {"trim_microbatches": False, "regroup_by_length": False}
    ways = {
        STOCK: (True, {}),
        OURS: (False, {}),
        f"{OURS}, padded as TRL pads": (False, as_trl_pads),
    }
    found = {}
    for precision in ("float32", "bfloat16"):
        settings = {"bf16": precision == "bfloat16", "learning_rate": 1e-6}
        given = {name: (stock, {**own, **settings}) for name, (stock, own) in ways.items()}
        found[precision] = trained(setup, load, given, model)
    yardstick = apart(found["float32"][STOCK], found["bfloat16"][STOCK])
    bounds = {"float32": FLOAT32, "bfloat16": max(CLOSE, 2 * yardstick)}
    rows, checks = [], {}
    for precision, measured in found.items():
        for name, one in measured.items():
            distance, bound = apart(measured[STOCK], one), bounds[precision]
            what = f"{name}, {precision}"
            norm = median(one.grad_norms)
            rows.append({"what": what, "gradient norm": norm,
                         "from stock, relative": distance, "allowed": bound})  # fmt: skip
            if name != STOCK:
                held = f"gradient norms of {what} within {bound:.2g} of stock TRL's"
                checks[held] = distance <= bound
    return Found(rows, checks, {"stock TRL, bfloat16 from float32, relative": yardstick})


def memory_cap(setup: Setup) -> Found:
    """Training with the settings of `rtx4090.yaml`, all rows as long as it allows, in the memory of
    its card. The engine sleeps during training, so only what it does not free is missing here."""
    profile = load_recipe("grpo", "rtx4090").settings
    longest, window = profile["max_completion_length"], profile["vllm_max_model_length"]
    shrink = 16 if setup.toy else 1
    load = Workload(
        [longest // shrink] * profile["num_generations"],
        microbatch=profile["per_device_train_batch_size"],
        steps=1,
        rounds=1,
        prompt_length=(window - longest) // shrink,
    )
    settings = {key: profile[key] for key in ("bf16", "gradient_checkpointing", "optim")}
    if capped := setup.device == "cuda":
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, (CARD - NOT_OURS) / total))
    (one,) = trained(setup, load, {"rtx4090": (False, settings)}).values()
    return Found(
        [cost("rtx4090", one, load)],
        {"the peak is below the cap": not capped or one.peak < CARD - NOT_OURS},
        {
            "settings": json.dumps(settings),
            "cap in GiB": (CARD - NOT_OURS) / GIB if capped else "none: only CUDA has one",
        },
    )


def microbatches(setup: Setup) -> Found:
    model, rows = random_model(setup), []
    for size in (1, 16) if setup.toy else (1, 2, 4, 8, 16):
        load, name = workload(setup, 64, microbatch=size), f"microbatch of {size}"
        try:
            found = trained(setup, load, {name: (False, {"bf16": True})}, model)
        except torch.OutOfMemoryError:
            rows.append({"what": name, "s/step": "out of memory"})
            break
        rows.append(cost(name, found[name], load))
    return Found(rows, {"a microbatch of one row fits": "peak GiB" in rows[0]})


def optimizers(setup: Setup) -> Found:
    bits = {"32 bits": "adamw_torch_fused", "8 bits": "adamw_bnb_8bit"}
    ways = {f"AdamW, {name}": (False, {**BF16, "optim": optim}) for name, optim in bits.items()}
    load = workload(setup, 16)
    found = trained(setup, load, ways)
    wide, narrow = (one.grad_norms[0] for one in found.values())
    checks = {"the first gradient does not depend on the optimizer": abs(narrow / wide - 1) < CLOSE}
    return Found([cost(name, one, load) for name, one in found.items()], checks)


def checkpointing(setup: Setup) -> Found:
    ways = {
        f"checkpointing {name}": (False, {**BF16, "gradient_checkpointing": on})
        for name, on in (("off", False), ("on", True))
    }
    return _same_gradients(setup, workload(setup, 32), ways)


def head(setup: Setup) -> Found:
    """A real vocabulary over a narrow model: nearly all work is the LM head's, which TRL computes
    for positions that have a label. The table shows what padded positions cost."""
    load = workload(setup, 64)
    if setup.toy:
        load.lengths_N = load.lengths_N[:8]
    model = random_model(setup, "miniature", 151_936)
    found = _same_gradients(setup, load, {STOCK: (True, {}), OURS: (False, {})}, model)
    stock, ours = (row["s/step"] for row in found.rows)
    found.facts["ratio"] = stock / ours
    return found


def packing(setup: Setup) -> Found:
    """`padding_free` against regrouped microbatches. With flash attention the rows of a packed one
    cost what they cost alone; without, attention masks the whole row, which costs more."""
    model, attention = random_model(setup), "sdpa"
    if setup.device == "cuda" and is_flash_attn_2_available():
        attention = "flash_attention_2"
        model.set_attn_implementation(attention)
    rows, norms = [], []
    ways = {"regrouped": (False, {}), "packed": (False, {"padding_free": True})}
    for size in (1, 4, 16):
        load = workload(setup, 64, microbatch=size)
        try:
            found = trained(setup, load, ways, model)
        except torch.OutOfMemoryError:
            if not rows:
                raise
            rows.append({"what": f"microbatch of {size}", "s/step": "out of memory"})
            break
        norms.append(apart(found["packed"], found["regrouped"]))
        rows += [
            {
                "padded by TRL": load.padded_as_drawn,
                **cost(f"{name}, microbatch of {size}", one, load),
            }
            for name, one in found.items()
        ]
    checks = {
        "rows that are alone in a microbatch have no padding": rows[0]["padded"] < 0.01,
        f"gradient norms differ by less than {CLOSE_PACKED}": max(norms) < CLOSE_PACKED,
    }
    return Found(rows, checks, {"attention": attention})


def _same_gradients(
    setup: Setup, load: Workload, ways: Ways, model: PreTrainedModel | None = None
) -> Found:
    """Time and memory of two ways, whose gradients must be the same."""
    found = trained(setup, load, ways, model)
    difference = apart(*found.values())
    return Found(
        [cost(name, one, load) for name, one in found.items()],
        {f"gradient norms within {CLOSE}": difference <= CLOSE},
        {"gradient norms, relative difference": difference},
    )


def random_model(
    setup: Setup, shape: str | None = None, vocabulary: int | None = None
) -> PreTrainedModel:
    """A model with random weights, drawn on the device and kept on the CPU: what is measured
    trains copies of it, and the card holds one copy only."""
    torch.manual_seed(0)
    shape = shape or ("miniature" if setup.toy else "qwen2.5-math-1.5b")
    with torch.device(setup.device):
        model: Any = synthetic.random_model(shape, miniature.tokenizer(), vocabulary)
    return model.to("cpu")


def save_random_model(setup: Setup, folder: Path, shape: str | None = None) -> None:
    """A model with random weights and its tokenizer as a folder, for engines and commands."""
    random_model(setup, shape).save_pretrained(folder)
    miniature.tokenizer().save_pretrained(folder)


def workload(setup: Setup, rows: int, microbatch: int = 4) -> Workload:
    """One round of a warm-up step and one that counts; forced lengths of mean 343 and cap 1024. At
    toy size an eighth of the rows and a twentieth of the lengths."""
    rows, mean, cap, prompt = (
        (max(16, rows // 8), 17, 51, 12) if setup.toy else (rows, 343, 1024, 96)
    )
    lengths_N = synthetic.lengths(rows, mean, cap, seed=0)
    return Workload(lengths_N, microbatch=microbatch, steps=1, rounds=1, prompt_length=prompt)


def trained(
    setup: Setup, load: Workload, ways: Ways, model: PreTrainedModel | None = None
) -> dict[str, Measured]:
    model = model or random_model(setup)
    return compare(model, miniature.tokenizer(), load, ways, keep_weights=False)


def cost(name: str, one: Measured, load: Workload) -> dict[str, Any]:
    """A row: time and memory of one way."""
    return {
        "what": name,
        "s/step": median(one.seconds),
        "µs/token": 1e6 * median(one.seconds) / sum(load.lengths_N),
        "peak GiB": one.peak / GIB,
        "padded": load.padded(one),
    }
