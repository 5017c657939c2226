"""Bytes on one card, during training and during rollouts."""

from dataclasses import dataclass

from trl_ablate.plan.gpus import GIB, Gpu
from trl_ablate.plan.setup import Setup
from trl_ablate.plan.shapes import Shape

WIDTH = {"float32": 4, "bfloat16": 2}
STATES = {"adamw": 8, "adamw_bf16": 4, "adamw_8bit": 2}
"""Bytes of both of Adam's states for one parameter."""
ACTIVATIONS_OF_HIDDEN = 24
"""Bytes kept per hidden unit, layer and token: both norms' input in float32 and what they keep,
their output and that of attention in bfloat16."""
ACTIVATIONS_OF_MLP = 8
"""Bytes kept per unit of the MLP: gate, up, the activation and the product, in bfloat16."""
LOGITS = 12
"""Bytes of a token's logits per entry: bfloat16, float32, and the gradient in float32 and 16."""


@dataclass(frozen=True)
class Phase:
    """What is on a card in one phase: part -> bytes."""

    parts: dict[str, float]

    @property
    def total(self) -> float:
        return sum(self.parts.values())


def trained(shape: Shape, setup: Setup) -> int:
    """Parameters that are trained."""
    return shape.adapter(setup.lora_rank) if setup.lora_rank else shape.parameters


def states_of(shape: Shape, setup: Setup) -> dict[str, float]:
    """What stays on a card in all phases: weights and the optimizer's states."""
    count = trained(shape, setup)
    shards = setup.gpus if setup.sharding == "zero3" else 1
    states = float(STATES[setup.optimizer] * count)
    if setup.optimizer == "adamw_8bit" and not setup.lora_rank:  # transformers' own exception
        states += (STATES["adamw"] - STATES["adamw_8bit"]) * shape.embedding
    weights = float(WIDTH[setup.weights] * count)
    if setup.lora_rank:
        weights += 2 * shape.parameters
    return {"weights": weights / shards, "optimizer states": states / shards}


def training(shape: Shape, setup: Setup, gpu: Gpu) -> Phase:
    count = trained(shape, setup)
    shards = setup.gpus if setup.sharding == "zero3" else 1
    row = setup.prompt_tokens + setup.max_length
    tokens = setup.microbatch * row
    parts = states_of(shape, setup)
    parts["gradients"] = WIDTH[setup.weights] * count / shards
    if setup.weights == "float32":
        held = shape.parameters if shards == 1 else 2 * shape.of_a_layer
        parts["bfloat16 copies by autocast"] = 2.0 * (0 if setup.lora_rank else held)
    elif shards > 1:
        parts["gathered layers"] = 2.0 * 2 * shape.of_a_layer
    parts["activations"] = tokens * activations(shape, setup)
    parts["logits"] = logits(shape, setup)
    parts["context"] = setup.context_gib * GIB
    if setup.engine == "vllm" and not setup.sleep:
        parts["engine, awake"] = setup.engine_share * gpu.memory
    return Phase(parts)


def activations(shape: Shape, setup: Setup) -> float:
    """Bytes per token of a microbatch."""
    layer = ACTIVATIONS_OF_HIDDEN * shape.hidden + ACTIVATIONS_OF_MLP * shape.intermediate
    layer += 4 * (shape.queries + shape.keys)
    if setup.checkpointing:
        return shape.layers * 4 * shape.hidden + layer
    return shape.layers * layer


def logits(shape: Shape, setup: Setup) -> float:
    """Bytes of logits, and of the head's gradient, which is made whole before it is added."""
    tokens = setup.microbatch * setup.max_length
    held = min(setup.logit_chunk, tokens) if setup.fused_head else tokens
    gradient = 0 if setup.lora_rank else 4 * shape.embedding
    return float(LOGITS * held * shape.vocabulary + gradient)


def rollout(shape: Shape, setup: Setup, gpu: Gpu) -> Phase:
    """Gradients and activations are free; the engine has its weights and its cache."""
    parts = states_of(shape, setup)
    parts["context"] = setup.context_gib * GIB
    if setup.engine == "vllm":
        parts["engine: share of the card"] = setup.engine_share * gpu.memory
    else:
        longest = setup.prompt_tokens + setup.max_length
        parts["KV cache"] = setup.rollouts / setup.gpus * longest * float(shape.kv_bytes)
    return Phase(parts)


def cache(shape: Shape, setup: Setup, gpu: Gpu) -> float:
    """Bytes that vLLM has for its KV cache on a card; negative if its weights do not fit."""
    taken = 2 * shape.parameters + setup.engine_buffers_gib * GIB
    return setup.engine_share * gpu.memory - taken
