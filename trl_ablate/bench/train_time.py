"""The training phase of a GRPO step: stock `GRPOTrainer` against `AblationTrainer`.

Both train copies of one random model on the same replayed rollouts, alternately for several rounds.
The first step of a round is warm-up and is not counted. The time is measured from the beginning to
the end of an optimizer step, which with replayed rollouts is the training phase. Gradient norms and
final weights are compared, to show that a faster step computes the same result.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from math import lcm
from statistics import median
from typing import Any

import torch
from accelerate import PartialState
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from trl import GRPOTrainer
from trl.trainer import grpo_trainer

from trl_ablate.bench import synthetic
from trl_ablate.bench.modes import Train, Training, check_rows
from trl_ablate.bench.positions import LIMIT
from trl_ablate.bench.timing import (
    OURS,
    STOCK,
    Measured,
    Result,
    compared,
    measure,
    trainer_of,
)
from trl_ablate.errors import ConfigurationError
from trl_ablate.trainer.temporary import replaced

Ways = Mapping[str, tuple[bool, Mapping[str, Any]]]
"""Name -> whether stock TRL trains, and its settings."""


@dataclass
class Workload(Training):
    """The training data and the size of a step."""

    lengths_N: list[int]

    @property
    def rows(self) -> int:
        return len(self.lengths_N)

    @property
    def padded_as_drawn(self) -> float:
        """The padded share if every completion is padded to the longest."""
        whole = (max(self.lengths_N) + self.prompt_length) * self.rows
        return 1 - (sum(self.lengths_N) + self.prompt_length * self.rows) / whole

    def padded(self, one: Measured) -> float:
        """The padded share that a trainer logged; stock TRL logs none."""
        logged = one.logged("padding/fraction")
        return self.padded_as_drawn if logged is None else logged


def bench(asked: Train) -> Result | None:
    """What `trl-ablate bench train` publishes; None in all processes but the first."""
    state = PartialState(cpu=not torch.cuda.is_available())
    sizes = {each.name: getattr(asked, each.name) for each in fields(Training)}
    load = Workload(lengths_asked(asked, state.num_processes), **sizes)
    torch.manual_seed(asked.seed)
    model, tokenizer = synthetic.model_and_tokenizer(
        asked.model_shape, asked.model_name_or_path, asked.vocabulary
    )
    extra = {f"{OURS}, extra forward": (False, {"reuse_forward": False})} if load.corrected else {}
    ways = {**({} if asked.only else {STOCK: (True, {})}), **extra, OURS: (False, {})}
    found = compare(model, tokenizer, load, ways)
    title = (
        f"training phase, {load.rows} completions of {sum(load.lengths_N) / load.rows:.0f} tokens "
        f"(longest {max(load.lengths_N)}), microbatch {load.microbatch}, {asked.model}"
    )
    table, facts = rows_of(found, load), differences(found[next(iter(ways))], found[OURS])
    facts |= {} if asked.only else {LIMIT: found[STOCK].limit("train")}
    return (title, table, facts) if state.is_main_process else None


def lengths_asked(asked: Train, processes: int) -> list[int]:
    """Drawn or recorded lengths; fewer recorded ones than rows are cut to whole groups and
    microbatches."""
    check_rows(asked.rows, group=asked.group, microbatch=asked.microbatch, processes=processes)
    if not asked.lengths or asked.uniform:
        return synthetic.lengths_of(asked)
    recorded = synthetic.recorded_lengths(asked.lengths)[: asked.rows]
    least = lcm(asked.group, asked.microbatch * processes)
    if len(recorded) < least:
        raise ConfigurationError(
            f"{asked.lengths} has {len(recorded)} lengths, and a step takes a multiple of {least}; "
            "record more, or lower --group or --microbatch"
        )
    return recorded[: len(recorded) // least * least]


def compare(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    load: Workload,
    ways: Ways,
    *,
    keep_weights: bool = True,
) -> dict[str, Measured]:
    """Train in each way alternately, `load.rounds` times, each time from the same weights."""
    found = {name: Measured() for name in ways}
    for _ in range(load.rounds):
        for name, (stock, settings) in ways.items():
            own = copy.deepcopy(model)
            measure(_build(stock, own, tokenizer, load, settings), found[name])
            if keep_weights:
                found[name].weights = [weight.detach().cpu().clone() for weight in own.parameters()]
    return found


def rows_of(found: Mapping[str, Measured], load: Workload) -> list[dict[str, Any]]:
    """The table: seconds per step and their spread, ratio to the first row, tokens/s, padding, peak
    memory.

    Other work on the machine only slows a step down, so `fastest` depends least on it.
    """
    first = next(iter(found.values()))
    return [
        {
            **compared(name, "s/step", one, first),
            "fastest": min(one.seconds),
            "tokens/s": sum(load.lengths_N) / median(one.seconds),
            "positions": one.positions_of_step("train"),
            "padded": load.padded(one),
            "peak GiB": one.peak / 2**30,
        }
        for name, one in found.items()
    ]


def differences(one: Measured, other: Measured) -> dict[str, float]:
    """Of the gradient norms, and the largest absolute one of weights."""
    weights = zip(one.weights, other.weights, strict=True)
    return {
        "gradient norms, relative": apart(one, other),
        "weights at the end, absolute": max((a - b).abs().max().item() for a, b in weights),
    }


def apart(one: Measured, other: Measured) -> float:
    """Largest relative difference of gradient norms; from a norm of 0 the absolute one."""
    norms = zip(one.grad_norms, other.grad_norms, strict=True)
    return max(abs(a - b) / (a or 1.0) for a, b in norms)


def _build(
    stock: bool, model: PreTrainedModel, tokenizer: Any, load: Workload, given: Mapping[str, Any]
) -> GRPOTrainer:
    settings = dict(
        **({"bf16": True} if load.bf16 else {}),
        loss_type="grpo",
        per_device_train_batch_size=load.microbatch,
        gradient_accumulation_steps=load.rows // (load.microbatch * PartialState().num_processes),
        num_generations=load.group,
        max_completion_length=max(load.lengths_N),
        max_steps=load.steps + 1,
        learning_rate=1e-4,
        use_vllm=load.corrected,
        vllm_mode="server",
        vllm_importance_sampling_mode="token_truncate",
    )
    with replaced(grpo_trainer, VLLMGeneration=synthetic.NoEngine):
        return trainer_of(
            stock,
            settings | dict(given),
            model=model,
            reward_funcs=partial(synthetic.length_reward, group=load.group, idle=load.idle),
            train_dataset=synthetic.prompts(load.rows * (load.steps + 1) // load.group),
            processing_class=tokenizer,
            rollout_func=synthetic.Replay(
                load.lengths_N, len(tokenizer), load.prompt_length, load.group
            ),
        )
