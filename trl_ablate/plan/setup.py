"""What is asked: a model, a machine, and every assumption with its value and its meaning.

Each field of `Setup` is an option of `trl-ablate plan` of the same name.
"""

from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_type_hints

from trl_ablate.errors import ConfigurationError

Precision = Literal["float32", "bfloat16"]
Optimizer = Literal["adamw", "adamw_bf16", "adamw_8bit"]
Quantized = Literal["none", "8bit", "4bit"]
Sharding = Literal["none", "zero3"]
Engine = Literal["vllm", "transformers"]


def assumed(value: Any, meaning: str, least: int = 1) -> Any:
    """`least`: of a number."""
    return field(default=value, metadata={"meaning": meaning, "least": least})


def share(value: float, meaning: str) -> Any:
    """Above 0 and at most 1."""
    return field(default=value, metadata={"meaning": meaning, "least": None})


@dataclass(frozen=True)
class Setup:
    """One question to the plan. Sizes are of the whole run unless they say otherwise."""

    model: str = assumed("1.5B", "a size, or a config.json")
    gpu: str = assumed("h100", "a card")
    gpus: int = assumed(1, "cards, in one machine")

    rollouts: int = assumed(256, "completions of a step, of all cards together")
    prompt_tokens: int = assumed(150, "mean length of a prompt; r1_zero's on MATH")
    mean_length: int = assumed(343, "mean length of a completion")
    max_length: int = assumed(1024, "longest completion; a batch of this size has one")
    spread: float = assumed(0.55, "variance of the lengths over the square of their mean", 0)
    optimizer_steps: int = assumed(1, "optimizer steps per pass over a rollout batch")
    epochs: int = assumed(1, "passes over a rollout batch")

    steps: int = assumed(200, "rollout batches of the run")
    evaluations: int = assumed(51, "of the run: before it, and every four steps", 0)
    eval_questions: int = assumed(1024, "completions of an evaluation")
    eval_batch: int = assumed(256, "of these at once on a card, without vLLM")
    start_s: float = assumed(90.0, "imports, loading the model, starting the engine", 0)

    microbatch: int = assumed(4, "rows of a microbatch on a card")
    weights: Precision = assumed("float32", "precision in which weights are loaded")
    quantized: Quantized = assumed("none", "bits of frozen weights, but for embedding and head")
    optimizer: Optimizer = assumed("adamw", "AdamW with states of 32, 16 or 8 bits")
    checkpointing: bool = assumed(False, "gradient checkpointing: activations computed twice")
    sharding: Sharding = assumed(
        "none", "none: a whole copy on every card (DDP); zero3: as ZeRO-3 and FSDP"
    )
    reference: bool = assumed(
        False, "a second model for the KL to the start: TRL loads one with beta and without LoRA"
    )
    lora_rank: int = assumed(0, "of adapters on all matrices, with frozen weights; 0: none", 0)
    fused_head: bool = assumed(True, "logits in chunks, as TRL 1.16 does; false: all at once")
    logit_chunk: int = assumed(256, "tokens of a chunk of logits")
    padded: bool = assumed(False, "true: rows padded to the longest, as stock TRL does")
    padding_left: float = assumed(0.06, "padding that trimming and regrouping leave", 0)
    sharing: int = assumed(1, "completions of one prompt in a pass that computes it once")
    extra_forwards: int = assumed(
        0, "forward passes for old or reference log-probabilities; with vLLM TRL makes 1", 0
    )

    engine: Engine = assumed("vllm", "who generates; transformers does so with the trained weights")
    engine_share: float = share(0.3, "of a card's memory, for vLLM: vllm_gpu_memory_utilization")
    sleep: bool = assumed(True, "vLLM's weights and KV cache leave the card during training")
    engine_buffers_gib: float = assumed(1.0, "vLLM's activations and CUDA graphs", 0)
    context_gib: float = assumed(1.0, "CUDA context and what a sleeping engine keeps, per card", 0)

    mfu: float = share(0.5, "share of a card's operations that large matrix products reach")
    bandwidth_use: float = share(0.7, "share of the published bandwidth that is reached")
    layer_ms: float = assumed(
        1.2, "a pass through a layer takes at least this long: Python starts its kernels", 0
    )
    decode_ms: float = assumed(4.0, "time of a decoding step that depends on no size", 0)
    link_use: float = share(0.7, "share of the published speed between cards that is reached")
    other_s: float = assumed(1.0, "rewards, text, sleep and wake-up of a step", 0)


OPTIONS = {each.name: each for each in fields(Setup)}
HINTS = get_type_hints(Setup)


def check(setup: Setup) -> None:
    for name, option in OPTIONS.items():
        value, least = getattr(setup, name), option.metadata["least"]
        if HINTS[name] not in (int, float):
            continue
        if least is None and not 0 < value <= 1:
            raise ConfigurationError(f"{name} is {value:g}; give a share above 0 and at most 1")
        if least is not None and not least <= value < float("inf"):
            raise ConfigurationError(f"{name} is {value:g}; give a number of at least {least}")
    if setup.padding_left >= 1:
        raise ConfigurationError(f"padding_left is {setup.padding_left:g}; give a share below 1")
    if setup.max_length < setup.mean_length:
        raise ConfigurationError(
            f"max_length {setup.max_length} is below mean_length {setup.mean_length}; raise it, or "
            "lower mean_length"
        )
    if setup.quantized != "none" and not setup.lora_rank:
        raise ConfigurationError(
            f"quantized {setup.quantized} is of frozen weights, and without adapters none are "
            "frozen; give --lora_rank"
        )
    if setup.sharding == "zero3" and setup.gpus == 1:
        raise ConfigurationError(
            "zero3 shards over cards, and there is one; give --gpus 2 or more, or leave out "
            "--sharding"
        )
    if setup.rollouts % (setup.gpus * setup.microbatch):
        raise ConfigurationError(
            f"{setup.rollouts} rollouts are no whole number of microbatches of {setup.microbatch} "
            f"on {setup.gpus} cards; change --rollouts, --microbatch or --gpus"
        )


def word(value: object) -> str:
    """A value as its option has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
