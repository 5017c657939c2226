"""Parts that train a random model in several ways on the same rollouts.

Nothing here asks which device it is on but for what only a GPU has (flash attention, the cap on its
memory), so that a CPU at toy size takes the same way through the code.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.utils import is_flash_attn_2_available

from trl_ablate import miniature
from trl_ablate.bench import synthetic
from trl_ablate.bench.gpu.parts import Found, Setup
from trl_ablate.bench.modes import OfLengths
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
    ways: Ways = {STOCK: {}, OURS: {}, f"{OURS}, padded as TRL pads": as_trl_pads}
    found = {}
    for precision in ("float32", "bfloat16"):
        settings = {"bf16": precision == "bfloat16", "learning_rate": 1e-6}
        given = {name: {**own, **settings} for name, own in ways.items()}
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
    found = trained(setup, load, {"rtx4090": settings})
    return Found(
        costs(found, load),
        {"the peak is below the cap": not capped or found["rtx4090"].peak < CARD - NOT_OURS},
        {
            "settings": json.dumps(settings),
            "cap in GiB": (CARD - NOT_OURS) / GIB if capped else "none: only CUDA has one",
        },
    )


def microbatches(setup: Setup) -> Found:
    sizes = (1, 16) if setup.toy else (1, 2, 4, 8, 16)
    rows, _ = by_microbatch(setup, random_model(setup), sizes, {"": {"bf16": True}})
    return Found(rows, {"a microbatch of one row fits": "peak GiB" in rows[0]})


def optimizers(setup: Setup) -> Found:
    bits = {"32 bits": "adamw_torch_fused", "8 bits": "adamw_bnb_8bit"}
    ways = {f"AdamW, {name}": {**BF16, "optim": optim} for name, optim in bits.items()}
    load = workload(setup, 16)
    found = trained(setup, load, ways)
    wide, narrow = (one.grad_norms[0] for one in found.values())
    checks = {"the first gradient does not depend on the optimizer": abs(narrow / wide - 1) < CLOSE}
    return Found(costs(found, load), checks)


def checkpointing(setup: Setup) -> Found:
    ways = {
        f"checkpointing {name}": {**BF16, "gradient_checkpointing": on}
        for name, on in (("off", False), ("on", True))
    }
    load = workload(setup, 32)
    found = trained(setup, load, ways)
    return same_gradients(found, costs(found, load))


def head(setup: Setup) -> Found:
    """A real vocabulary over a narrow model: nearly all work is the LM head's, which TRL computes
    for positions that have a label. The table shows what padded positions cost."""
    load = workload(setup, 64)
    if setup.toy:
        load.lengths_N = load.lengths_N[:8]
    model = random_model(setup, "miniature", 151_936)
    found = trained(setup, load, {STOCK: {}, OURS: {}}, model)
    rows = costs(found, load)
    return same_gradients(found, rows, {"ratio": rows[0]["s/step"] / rows[1]["s/step"]})


def packing(setup: Setup) -> Found:
    """`padding_free` against regrouped microbatches. With flash attention the rows of a packed one
    cost what they cost alone; without, attention masks the whole row, which costs more."""
    model, attention = random_model(setup), "sdpa"
    if setup.device == "cuda" and is_flash_attn_2_available():
        attention = "flash_attention_2"
        model.set_attn_implementation(attention)
    ways = {"regrouped, ": {}, "packed, ": {"padding_free": True}}
    rows, found = by_microbatch(setup, model, (1, 4, 16), ways)
    if not found:
        raise torch.OutOfMemoryError("no microbatch of one row fits")
    norms = [apart(one["packed, "], one["regrouped, "]) for one in found]
    checks = {
        "rows that are alone in a microbatch have no padding": rows[0]["padded"] < 0.01,
        f"gradient norms differ by less than {CLOSE_PACKED}": max(norms) < CLOSE_PACKED,
    }
    return Found(rows, checks, {"attention": attention})


def by_microbatch(
    setup: Setup, model: PreTrainedModel, sizes: Sequence[int], ways: Ways
) -> tuple[list[dict[str, Any]], list[dict[str, Measured]]]:
    """The rows of growing microbatches, as many as the card has room for, and what was measured."""
    rows, measured = [], []
    for size in sizes:
        load, what = workload(setup, 64, microbatch=size), f"microbatch of {size}"
        try:
            measured.append(trained(setup, load, ways, model))
        except torch.OutOfMemoryError:
            rows.append({"what": what, "s/step": "out of memory"})
            break
        named = {name + what: one for name, one in measured[-1].items()}
        rows += [{**row, "padded by TRL": load.padded_as_drawn} for row in costs(named, load)]
    return rows, measured


def same_gradients(
    found: Mapping[str, Measured],
    rows: list[dict[str, Any]],
    facts: Mapping[str, Any] | None = None,
) -> Found:
    """Two ways, whose gradients must be the same."""
    difference = apart(*found.values())
    return Found(
        rows,
        {f"gradient norms within {CLOSE}": difference <= CLOSE},
        {**(facts or {}), "gradient norms, relative difference": difference},
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
    random_model(setup, shape).save_pretrained(folder)
    miniature.tokenizer().save_pretrained(folder)


def workload(setup: Setup, rows: int, microbatch: int = 4) -> Workload:
    """One round of a warm-up step and one that counts; forced lengths of mean 343 and cap 1024. At
    toy size an eighth of the rows and a twentieth of the lengths."""
    asked, prompt = OfLengths(rows=rows), 96
    if setup.toy:
        asked, prompt = OfLengths(rows=max(16, rows // 8), mean_length=17, cap=51), 12
    lengths_N = synthetic.lengths(asked)
    return Workload(lengths_N, microbatch=microbatch, steps=1, rounds=1, prompt_length=prompt)


def trained(
    setup: Setup, load: Workload, ways: Ways, model: PreTrainedModel | None = None
) -> dict[str, Measured]:
    return compare(model or random_model(setup), miniature.tokenizer(), load, ways)


def costs(found: Mapping[str, Measured], load: Workload) -> list[dict[str, Any]]:
    return [
        {
            "what": name,
            "s/step": median(one.seconds),
            "µs/token": 1e6 * median(one.seconds) / sum(load.lengths_N),
            "peak GiB": one.peak / GIB,
            "padded": load.padded(one),
        }
        for name, one in found.items()
    ]
