"""Seconds of the phases of one rollout batch: rollout, training, communication.

Training: a forward pass takes 2 operations per parameter and token and 4 · width · context per
layer for attention, half of it where no padding is masked, as causal attention then skips half; a
backward pass takes twice that. The LM head counts completion tokens only. A microbatch takes at
least the time that Python needs to start its kernels (`layer_ms` per layer and pass), and reads and
writes weights and gradients once whatever its size.

Generation: a decoding step reads the weights once and the KV cache of the rows that have not ended;
a batch has as many steps as its longest row, times the number of waves if the cache is too small
for all rows at once.
"""

from trl_ablate.plan import memory
from trl_ablate.plan.gpus import Gpu
from trl_ablate.plan.setup import Setup
from trl_ablate.plan.shapes import Shape

BACKWARD = 2
"""A backward pass takes twice a forward pass: gradients of inputs and of weights."""
CAUSAL = 0.5
"""Of attention is computed if no mask stands in the way of a causal kernel."""
BACKWARD_LORA = 1
"""With frozen weights only the inputs have gradients, but for the small adapters."""


def tokens(setup: Setup) -> tuple[float, float]:
    """Of all rows: positions that are computed, and the sum of each row's squared length."""
    if setup.padded:
        row = float(setup.prompt_tokens + setup.max_length)
        return setup.rollouts * row, setup.rollouts * row**2
    row = setup.prompt_tokens + setup.mean_length
    squares = row**2 + setup.spread * setup.mean_length**2
    more = 1 / (1 - setup.padding_left)
    return setup.rollouts * row * more, setup.rollouts * squares * more * CAUSAL


def forward(shape: Shape, setup: Setup) -> float:
    """Operations of one forward pass over all rows."""
    positions, squares = tokens(setup)
    completed = positions - setup.rollouts * setup.prompt_tokens
    matrices = 2.0 * shape.layers * shape.of_a_layer * positions
    head = 2.0 * shape.embedding * completed
    return matrices + head + 4.0 * shape.layers * shape.queries * squares


def passes(setup: Setup) -> float:
    """Passes over the rows, in forward passes: forward, backward, checkpoints."""
    backward = BACKWARD_LORA if setup.lora_rank else BACKWARD
    return 1.0 + backward + (1 if setup.checkpointing else 0)


def training(shape: Shape, setup: Setup, gpu: Gpu) -> dict[str, float]:
    """Seconds of the parts of a training phase."""
    speed = gpu.flops * setup.mfu * setup.gpus
    microbatches = setup.rollouts / (setup.gpus * setup.microbatch)
    floor = shape.layers * setup.layer_ms / 1e3 * microbatches
    operations = forward(shape, setup)
    moved = traffic(shape, setup) * microbatches / (gpu.bandwidth * setup.bandwidth_use)
    once = passes(setup)
    loss = setup.epochs * max(once * operations / speed + moved, once * floor)
    scored = setup.extra_forwards * max(operations / speed, floor)
    return {
        "forward and backward": loss,
        "other log-probabilities": scored,
        "optimizer": setup.optimizer_steps * setup.epochs * update(shape, setup, gpu),
        "between cards": communication(shape, setup, gpu, microbatches),
    }


def traffic(shape: Shape, setup: Setup) -> float:
    """Bytes that a microbatch moves whatever its size: weights read in each pass (and cast, if
    they are float32), gradients written and added up."""
    read = 2.0 * passes(setup) * shape.parameters
    cast = 6.0 * shape.parameters if setup.weights == "float32" and not setup.lora_rank else 0.0
    return read + cast + (2 + 3 * memory.WIDTH[setup.weights]) * memory.trained(shape, setup)


def update(shape: Shape, setup: Setup, gpu: Gpu) -> float:
    """The optimizer reads gradients, weights and states, and writes weights and states."""
    shards = setup.gpus if setup.sharding == "zero3" else 1
    width = 3 * memory.WIDTH[setup.weights] + 2 * memory.STATES[setup.optimizer]
    moved = width * memory.trained(shape, setup) / shards
    return moved / (gpu.bandwidth * setup.bandwidth_use)


def communication(shape: Shape, setup: Setup, gpu: Gpu, microbatches: float) -> float:
    """DDP sums gradients once per optimizer step; ZeRO-3 gathers weights in every pass and spreads
    gradients in every microbatch. Nothing is assumed to overlap."""
    if setup.gpus == 1:
        return 0.0
    share, speed = (setup.gpus - 1) / setup.gpus, gpu.link * setup.link_use
    count, width = memory.trained(shape, setup), memory.WIDTH[setup.weights]
    if setup.sharding == "none":
        return setup.optimizer_steps * setup.epochs * 2 * width * count * share / speed
    gathers = (3 if setup.checkpointing else 2) * setup.epochs + setup.extra_forwards
    gathered = 2.0 * gathers * shape.parameters
    spread = float(width * count * setup.epochs)
    return microbatches * (gathered + spread) * share / speed


def generation(shape: Shape, setup: Setup, gpu: Gpu) -> dict[str, float]:
    """Seconds of the parts of a rollout."""
    parts = generated(shape, setup, gpu, setup.rollouts)
    return {**parts, "weights to the engine": sync(shape, setup, gpu)}


def evaluation(shape: Shape, setup: Setup, gpu: Gpu) -> float:
    """Seconds of one evaluation."""
    return sum(generated(shape, setup, gpu, setup.eval_questions).values()) + setup.other_s


def generated(shape: Shape, setup: Setup, gpu: Gpu, count: int) -> dict[str, float]:
    """Seconds to generate this many completions on all cards."""
    rows = count / setup.gpus
    speed = gpu.bandwidth * setup.bandwidth_use
    bytes_of_weights = memory.WIDTH[setup.weights] if setup.engine == "transformers" else 2
    steps = setup.max_length * waves(shape, setup, gpu, rows)
    decoded = rows * setup.mean_length
    read = (
        rows
        * (setup.mean_length * setup.prompt_tokens + (1 + setup.spread) * setup.mean_length**2 / 2)
        * shape.kv_bytes
    )
    compute = gpu.flops * setup.mfu
    active = 2.0 * (shape.layers * shape.of_a_layer + shape.embedding)
    prefill = 2.0 * shape.layers * shape.of_a_layer * rows * setup.prompt_tokens / compute
    overhead = setup.decode_ms / 1e3
    if setup.engine == "transformers":
        overhead = shape.layers * setup.layer_ms / 1e3
    memory_bound = steps * bytes_of_weights * shape.parameters / speed + read / speed
    return {
        "prompts": prefill,
        "decoding": max(memory_bound, active * decoded / compute) + steps * overhead,
    }


def sync(shape: Shape, setup: Setup, gpu: Gpu) -> float:
    if setup.engine == "transformers":
        return 0.0
    local = 3.0 * memory.WIDTH[setup.weights] * shape.parameters
    seconds = local / (gpu.bandwidth * setup.bandwidth_use)
    if setup.sharding == "zero3":
        seconds += memory.WIDTH[setup.weights] * shape.parameters / (gpu.link * setup.link_use)
    return seconds


def waves(shape: Shape, setup: Setup, gpu: Gpu, rows: float) -> float:
    """How often the KV cache has to be filled for these rows on a card."""
    if setup.engine == "transformers":
        return 1.0
    needed = rows * (setup.prompt_tokens + setup.mean_length)
    room = memory.cache(shape, setup, gpu) / shape.kv_bytes
    return max(1.0, needed / room) if room > 0 else float("inf")
