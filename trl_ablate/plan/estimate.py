"""Bytes on one card, seconds of the phases of one rollout batch, and what would fit.

Training: a forward pass takes 2 operations per parameter and token and 4 · width · context per
layer for attention, half of it where no padding is masked, as causal attention then skips half; a
backward pass takes twice that. The LM head counts completion tokens only. A microbatch takes at
least the time that Python needs to start its kernels (`layer_ms` per layer and pass), and reads and
writes weights and gradients once whatever its size.

Generation: a decoding step reads the weights once and the KV cache of the rows that have not ended;
a batch has as many steps as its longest row, times the number of waves if the cache is too small
for all rows at once.
"""

from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from trl_ablate.plan.setup import Setup, check, word
from trl_ablate.plan.sizes import GIB, GPUS, Gpu, Shape, shape_of

ROOM = 0.95
"""Of a card's memory: the rest is lost to fragmentation."""
WIDTH = {"float32": 4, "bfloat16": 2}
QUANTIZED = {"8bit": 1.0, "4bit": 0.56}
"""Bytes of a weight with its share of the scales."""
STATES = {"adamw": 8, "adamw_bf16": 4, "adamw_8bit": 2}
"""Bytes of both of Adam's states for one parameter."""
ACTIVATIONS_OF_HIDDEN = 24
"""Bytes kept per hidden unit, layer and token: both norms' input in float32 and what they keep,
their output and that of attention in bfloat16."""
ACTIVATIONS_OF_MLP = 8
"""Bytes kept per unit of the MLP: gate, up, the activation and the product, in bfloat16."""
LOGITS = 12
"""Bytes of a token's logits per entry: bfloat16, float32, and the gradient in float32 and 16."""
CACHES_ON_A_CPU = 6
"""Caches in bfloat16 that generating takes there, in float32 and growing; fitted to SmolLM2."""
DRAWING = 24
"""Bytes of a row's logits per entry while its token is drawn."""
BACKWARD = 2
"""A backward pass takes twice a forward pass: gradients of inputs and of weights."""
BACKWARD_LORA = 1
"""With frozen weights only the inputs have gradients, but for the small adapters."""
CAUSAL = 0.5
"""Of attention is computed if no mask stands in the way of a causal kernel."""


@dataclass(frozen=True)
class Estimate:
    """What a setup needs. Times are infinite where the engine's weights do not fit."""

    setup: Setup
    shape: Shape
    gpu: Gpu

    @cached_property
    def trained(self) -> int:
        """Parameters that are trained."""
        rank = self.setup.lora_rank
        return self.shape.adapter(rank) if rank else self.shape.parameters

    @property
    def width(self) -> int:
        """Bytes of a trained weight."""
        return WIDTH[self.setup.weights]

    @property
    def shards(self) -> int:
        return self.setup.gpus if self.setup.sharding == "zero3" else 1

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return self.setup.prompt_tokens + self.setup.max_length

    @property
    def by_vllm(self) -> bool:
        return self.setup.engine == "vllm"

    @property
    def staying(self) -> dict[str, float]:
        """Bytes that stay on a card in all phases: weights, also of the reference, and
        the optimizer's states."""
        setup, shape = self.setup, self.shape
        states = float(STATES[setup.optimizer] * self.trained)
        weights = float(self.width * self.trained)
        if setup.lora_rank:  # frozen weights below the adapters; neither end is ever quantized
            width = QUANTIZED.get(setup.quantized, self.width)
            body = shape.layers * shape.of_a_layer
            weights += width * body + self.width * (shape.parameters - body)
        elif setup.optimizer == "adamw_8bit":  # transformers' own exception
            states += (STATES["adamw"] - STATES["adamw_8bit"]) * shape.embedding
        parts = {"weights": weights / self.shards, "optimizer states": states / self.shards}
        if setup.reference and not setup.lora_rank:  # or else it is the model without its adapters
            parts["reference model"] = self.width * shape.parameters / self.shards
        return parts

    @cached_property
    def bytes_training(self) -> dict[str, float]:
        setup, shape = self.setup, self.shape
        parts = self.staying
        copies = 2 if setup.gpus > 1 and setup.sharding == "none" else 1  # DDP's buckets
        parts["gradients"] = copies * self.width * self.trained / self.shards
        if setup.weights == "float32":
            held = shape.parameters if self.shards == 1 else 2 * shape.of_a_layer
            passing = setup.lora_rank and (setup.checkpointing or setup.quantized != "none")
            parts["bfloat16 copies by autocast"] = 2.0 * (0 if passing else held)
        elif self.shards > 1:
            parts["gathered layers"] = 2.0 * 2 * shape.of_a_layer
        parts["activations"] = setup.microbatch * self.longest * self._activations()
        parts["logits"] = self._logits()
        parts["context"] = setup.context_gib * GIB
        if self.by_vllm and not setup.sleep:
            parts["engine, awake"] = setup.engine_share * self.gpu.memory
        return parts

    def _activations(self) -> float:
        """Bytes per token of a microbatch."""
        shape = self.shape
        layer = ACTIVATIONS_OF_HIDDEN * shape.hidden + ACTIVATIONS_OF_MLP * shape.intermediate
        layer += 4 * (shape.queries + shape.keys)
        if self.setup.checkpointing:
            return shape.layers * 4 * shape.hidden + layer
        return shape.layers * layer

    def _logits(self) -> float:
        """Bytes of logits, and of the head's gradient, which is made whole before it is added."""
        setup = self.setup
        tokens = setup.microbatch * setup.max_length
        held = min(setup.logit_chunk, tokens) if setup.fused_head else tokens
        gradient = 0 if setup.lora_rank else 4 * self.shape.embedding
        return float(LOGITS * held * self.shape.vocabulary + gradient)

    @cached_property
    def bytes_rollout(self) -> dict[str, float]:
        """Gradients and activations are free; the engine has its weights and its cache. Without
        vLLM, which queues rows, the largest batch counts: it may be an evaluation's."""
        setup, parts = self.setup, self.staying
        parts["context"] = setup.context_gib * GIB
        if self.by_vllm:
            parts["engine: share of the card"] = setup.engine_share * self.gpu.memory
        else:
            whole = 0.0 if self.shards == 1 else parts["weights"] * self.shards
            parts["gathered weights"] = whole  # ds3_gather_for_generation
            rows = max(setup.rollouts / setup.gpus, setup.eval_batch if setup.evaluations else 0)
            caches = CACHES_ON_A_CPU if setup.gpu.startswith("cpu") else 1
            parts["KV cache"] = rows * self.longest * float(self.shape.kv_bytes) * caches
            parts["drawing tokens"] = DRAWING * rows * self.shape.vocabulary
        return parts

    @property
    def cache_tokens(self) -> float:
        """What vLLM's KV cache on a card holds; negative if the engine's weights do not fit."""
        taken = 2 * self.shape.parameters + self.setup.engine_buffers_gib * GIB
        room = self.setup.engine_share * self.gpu.memory - taken
        return room / self.shape.kv_bytes if self.by_vllm else 0.0

    @cached_property
    def seconds(self) -> dict[str, dict[str, float]]:
        """Of the parts of each phase of a step."""
        rollout = self.generated(self.setup.rollouts, self.setup.sharing)
        return {
            "rollout": {**rollout, "weights to the engine": self._sync()},
            "training": self._training(),
            "rest": {"rewards, text, sleep": self.setup.other_s},
        }

    @property
    def step(self) -> float:
        """Seconds of a step."""
        return sum(sum(parts.values()) for parts in self.seconds.values())

    @property
    def evaluation(self) -> float:
        """Seconds of one evaluation."""
        questions, setup = self.setup.eval_questions, self.setup
        at_once = questions if self.by_vllm else min(questions, setup.eval_batch * setup.gpus)
        return questions / at_once * sum(self.generated(at_once).values()) + setup.other_s

    @property
    def run(self) -> float:
        """Seconds of the whole run."""
        setup = self.setup
        return setup.start_s + setup.steps * self.step + setup.evaluations * self.evaluation

    @property
    def _bandwidth(self) -> float:
        return self.gpu.bandwidth * self.setup.bandwidth_use

    def forward(self) -> float:
        """Operations of one forward pass over all rows."""
        setup, shape = self.setup, self.shape
        prompt, mean = setup.prompt_tokens, setup.mean_length
        row, squares, share, more = float(self.longest), float(self.longest) ** 2, 1.0, 1.0
        if not setup.padded:
            row = prompt / setup.sharing + mean
            squares = (prompt + mean) ** 2 + setup.spread * mean**2
            share, more = CAUSAL, 1 / (1 - setup.padding_left)
        positions = setup.rollouts * row * more
        completed = positions - setup.rollouts * prompt / setup.sharing
        matrices = 2.0 * shape.layers * shape.of_a_layer * positions
        head = 2.0 * shape.embedding * completed
        attended = setup.rollouts * squares * more * share
        return matrices + head + 4.0 * shape.layers * shape.queries * attended

    @property
    def passes(self) -> float:
        """Passes over the rows, in forward passes: forward, backward, checkpoints."""
        backward = BACKWARD_LORA if self.setup.lora_rank else BACKWARD
        return 1.0 + backward + (1 if self.setup.checkpointing else 0)

    def _training(self) -> dict[str, float]:
        setup = self.setup
        speed = self.gpu.flops * setup.mfu * setup.gpus
        microbatches = setup.rollouts / (setup.gpus * setup.microbatch)
        floor = self.shape.layers * setup.layer_ms / 1e3 * microbatches
        operations, passes = self.forward(), self.passes
        moved = self._traffic() * microbatches / self._bandwidth
        loss = setup.epochs * max(passes * operations / speed + moved, passes * floor)
        return {
            "forward and backward": loss,
            "other log-probabilities": setup.extra_forwards * max(operations / speed, floor),
            "optimizer": setup.optimizer_steps * setup.epochs * self._update(),
            "between cards": self.communication(microbatches),
        }

    def _traffic(self) -> float:
        """Bytes that a microbatch moves whatever its size: weights read in each pass (and cast, if
        they are float32), gradients written and added up."""
        parameters = self.shape.parameters
        casts = self.setup.weights == "float32" and not self.setup.lora_rank
        cast = 6.0 * parameters if casts else 0.0
        return 2.0 * self.passes * parameters + cast + (2 + 3 * self.width) * self.trained

    def _update(self) -> float:
        """The optimizer reads gradients, weights and states, and writes weights and states."""
        width = 3 * self.width + 2 * STATES[self.setup.optimizer]
        return width * self.trained / self.shards / self._bandwidth

    def communication(self, microbatches: float) -> float:
        """DDP sums gradients once per optimizer step; ZeRO-3 gathers weights in every pass and
        spreads gradients in every microbatch. Nothing is assumed to overlap."""
        setup = self.setup
        if setup.gpus == 1:
            return 0.0
        share, speed = (setup.gpus - 1) / setup.gpus, self.gpu.link * setup.link_use
        count = self.width * self.trained
        if setup.sharding == "none":
            return setup.optimizer_steps * setup.epochs * 2 * count * share / speed
        gathers = (3 if setup.checkpointing else 2) * setup.epochs + setup.extra_forwards
        gathered = 2.0 * gathers * self.shape.parameters
        return microbatches * (gathered + float(count * setup.epochs)) * share / speed

    def generated(self, count: int, sharing: int = 1) -> dict[str, float]:
        """Seconds of the parts of generating this many completions on all cards, where `sharing`
        have one prompt."""
        setup, shape = self.setup, self.shape
        rows, compute = count / setup.gpus, self.gpu.flops * setup.mfu
        length, matrices = setup.mean_length, shape.layers * shape.of_a_layer
        steps = setup.max_length * self.waves(rows)
        tokens_read = length * setup.prompt_tokens + (1 + setup.spread) * length**2 / 2
        read = rows * tokens_read * shape.kv_bytes / self._bandwidth
        weights = 2 if self.by_vllm else self.width
        memory_bound = steps * weights * shape.parameters / self._bandwidth + read
        operations = 2.0 * (matrices + shape.embedding) * (rows * length) / compute
        overhead = setup.decode_ms / 1e3 if self.by_vllm else shape.layers * setup.layer_ms / 1e3
        return {
            "prompts": 2.0 * matrices * rows * setup.prompt_tokens / sharing / compute,
            "decoding": max(memory_bound, operations) + steps * overhead,
        }

    def waves(self, rows: float) -> float:
        """How often the KV cache has to be filled for these rows on a card."""
        if not self.by_vllm:
            return 1.0
        needed, room = rows * (self.setup.prompt_tokens + self.setup.mean_length), self.cache_tokens
        return max(1.0, needed / room) if room > 0 else float("inf")

    def _sync(self) -> float:
        """Seconds until the engine has the trained weights."""
        if not self.by_vllm:
            return 0.0
        weights = self.width * self.shape.parameters
        gathered = weights / (self.gpu.link * self.setup.link_use) if self.shards > 1 else 0.0
        return 3.0 * weights / self._bandwidth + gathered

    @cached_property
    def problems(self) -> list[str]:
        """Why it does not fit, one sentence each; empty if it fits."""
        memory, problems = self.gpu.memory, []
        for name, parts in (("training", self.bytes_training), ("generation", self.bytes_rollout)):
            if (total := sum(parts.values())) > ROOM * memory:
                problems.append(
                    f"{name} needs {total / GIB:.1f} GiB on a card, of which {ROOM:.0%} of "
                    f"{memory / GIB:.1f} GiB can be used"
                )
        if self.by_vllm and self.cache_tokens < self.longest:
            problems.append(
                f"the engine's share of {self.setup.engine_share * memory / GIB:.1f} GiB holds its "
                f"weights and {max(0.0, self.cache_tokens):.0f} tokens, not one row of "
                f"{self.longest}"
            )
        return problems

    @cached_property
    def changes(self) -> list[str]:
        """Single changes that save memory and with which it would fit, the cheapest first."""
        if not self.problems:
            return []
        setup, less = self.setup, {"microbatch": 1, "checkpointing": True}
        tried: list[dict[str, Any]] = [
            {"sleep": True},
            {"eval_batch": max(1, setup.rollouts // setup.gpus)},
            {"microbatch": 1},
            {"checkpointing": True},
            {"engine_share": round(min(0.9, setup.engine_share + 0.2), 4)},
            {"optimizer": "adamw_8bit"},
            {"lora_rank": 16},
            {**less, "optimizer": "adamw_8bit"},
        ]
        if setup.gpus > 1:
            tried += [{"sharding": "zero3"}, {**less, "sharding": "zero3"}]
        elif setup.rollouts % (8 * setup.microbatch) == 0:
            tried += [{"gpus": 8, "sharding": "zero3"}]
        helpful = [
            change
            for change in tried
            if (changed := replace(setup, **change)) != setup and not plan(changed).problems
        ]
        return [" ".join(f"--{key} {word(one)}" for key, one in each.items()) for each in helpful]

    def to_dict(self) -> dict[str, Any]:
        fits = not self.problems
        return {
            "assumptions": asdict(self.setup),
            "gpu": asdict(self.gpu),
            "parameters": self.shape.parameters,
            "trained_parameters": self.trained,
            "bytes_training": self.bytes_training,
            "bytes_rollout": self.bytes_rollout,
            "cache_tokens": self.cache_tokens,
            "seconds": self.seconds,
            "seconds_per_step": self.step if fits else None,
            "seconds_per_evaluation": self.evaluation if fits else None,
            "seconds_of_the_run": self.run if fits else None,
            "fits": fits,
            "problems": self.problems,
            "changes": self.changes,
        }


def plan(setup: Setup) -> Estimate:
    """The answer to one question; raises a `ConfigurationError` for values that cannot be."""
    check(setup)
    return Estimate(setup, shape_of(setup.model), GPUS[setup.gpu])
