"""The training phase of a GRPO step: stock `GRPOTrainer` against `AblationTrainer`.

Both train copies of one random model on the same replayed rollouts, alternately for several rounds.
The first step of a round is warm-up and is not counted. The time is measured from the beginning to
the end of an optimizer step, which with replayed rollouts is the training phase. Gradient norms and
final weights are compared, to show that a faster step computes the same result.
"""

import copy
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from accelerate import PartialState
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    TrainerCallback,
)
from trl import GRPOConfig, GRPOTrainer
from trl.trainer import grpo_trainer

from trl_ablate.bench.synthetic import NoEngine, Replay, length_reward, prompts
from trl_ablate.bench.tables import median, ratio, spread
from trl_ablate.config import AblationConfig
from trl_ablate.metrics import GRAD_NORM
from trl_ablate.trainer.ablation import AblationTrainer
from trl_ablate.trainer.phases import peak_memory, reset_peak_memory


@dataclass
class Workload:
    """The training data and the size of a step.

    `corrected`: treat the rollouts as those of an engine and correct their mismatch.
    """

    lengths_N: list[int]
    microbatch: int = 4
    steps: int = 3
    rounds: int = 3
    num_generations: int = 8
    prompt_length: int = 96
    corrected: bool = False

    @property
    def rows(self) -> int:
        return len(self.lengths_N)


@dataclass
class Measured:
    """Measurements of one trainer, over all rounds."""

    seconds: list[float] = field(default_factory=list)
    grad_norms: list[list[float]] = field(default_factory=list)
    weights: list[torch.Tensor] = field(default_factory=list)
    peak: float = 0.0
    padded: float = 0.0


Build = Callable[[PreTrainedModel, PreTrainedTokenizerBase, Workload, TrainerCallback], GRPOTrainer]


def now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


class StepTimer(TrainerCallback):
    """Measures the seconds of every optimizer step, by this clock."""

    def __init__(self, clock: Callable[[], float] = now) -> None:
        self.seconds: list[float] = []
        self._clock, self._began = clock, 0.0

    def on_step_begin(self, args, state, control, **kwargs):
        self._began = self._clock()

    def on_step_end(self, args, state, control, **kwargs):
        self.seconds.append(self._clock() - self._began)


def stock(model, tokenizer, load: Workload, timer: TrainerCallback, **settings) -> GRPOTrainer:
    return _build(GRPOTrainer, GRPOConfig, model, tokenizer, load, timer, settings)


def ours(model, tokenizer, load: Workload, timer: TrainerCallback, **settings) -> GRPOTrainer:
    settings |= {"log_memory": False}  # logging would reset the peak that we measure
    return _build(AblationTrainer, AblationConfig, model, tokenizer, load, timer, settings)


def with_extra_forward(model, tokenizer, load: Workload, timer: TrainerCallback) -> GRPOTrainer:
    """`AblationTrainer` with TRL's extra forward pass for the correction."""
    return ours(model, tokenizer, load, timer, reuse_forward=False)


def compare(model, tokenizer, load: Workload, builds: dict[str, Build]) -> dict[str, Measured]:
    """Run the trainers alternately, `load.rounds` times, each time from the same weights."""
    found = {name: Measured() for name in builds}
    for _ in range(load.rounds):
        for name, build in builds.items():
            _run_once(build, copy.deepcopy(model), tokenizer, load, found[name])
    return found


def rows_of(found: dict[str, Measured], load: Workload) -> list[dict[str, Any]]:
    """The table: seconds per step and their spread, ratio to the first row, tokens/s, padding, peak
    memory.

    Other work on the machine only slows a step down, so `fastest` depends least on it.
    """
    tokens = sum(load.lengths_N)
    first = next(iter(found.values()))
    return [
        {
            "what": name,
            "s/step": median(one.seconds),
            "fastest": min(one.seconds),
            "spread": spread(one.seconds),
            "ratio": ratio(first.seconds, one.seconds),
            "tokens/s": tokens / median(one.seconds),
            "padded": one.padded,
            "peak MiB": one.peak / 2**20,
        }
        for name, one in found.items()
    ]


def differences(one: Measured, other: Measured) -> dict[str, float]:
    """Largest relative difference of gradient norms, largest absolute difference of weights."""
    norms = zip(sum(one.grad_norms, []), sum(other.grad_norms, []), strict=True)
    weights = zip(one.weights, other.weights, strict=True)
    return {
        "gradient norms, relative": max(abs(a - b) / a for a, b in norms),
        "weights at the end, absolute": max((a - b).abs().max().item() for a, b in weights),
    }


def _run_once(build: Build, model, tokenizer, load: Workload, into: Measured) -> None:
    timer = StepTimer()
    trainer = build(model, tokenizer, load, timer)
    trainer.remove_callback(PrinterCallback)
    reset_peak_memory(trainer.args.device)
    trainer.train()
    into.peak = max(into.peak, peak_memory(trainer.args.device))
    into.seconds += timer.seconds[1:]
    history = trainer.state.log_history
    into.grad_norms.append([row[GRAD_NORM] for row in history if GRAD_NORM in row])
    drawn = padding_as_drawn(load.lengths_N, load.prompt_length)
    into.padded = next(
        (row["padding/fraction"] for row in history if "padding/fraction" in row), drawn
    )
    into.weights = [parameter.detach().cpu().clone() for parameter in model.parameters()]


def padding_as_drawn(lengths_N: list[int], prompt_length: int) -> float:
    """The padded share if every completion is padded to the longest."""
    longest = max(lengths_N)
    return 1 - (sum(lengths_N) + prompt_length * len(lengths_N)) / (
        (longest + prompt_length) * len(lengths_N)
    )


def only_timed(*, on_gpu: bool) -> dict[str, Any]:
    """Settings of a trainer that saves and reports nothing, and logs every step."""
    return dict(
        output_dir=tempfile.gettempdir(),  # a trainer makes its folder, even if it saves nothing
        use_cpu=not on_gpu,
        bf16=on_gpu,
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
    )


def _build(cls, config_class, model, tokenizer, load: Workload, timer, settings) -> GRPOTrainer:
    on_gpu = torch.cuda.is_available()
    at_once = load.microbatch * PartialState().num_processes
    arguments: dict[str, Any] = dict(
        **only_timed(on_gpu=on_gpu),
        loss_type="grpo",
        per_device_train_batch_size=load.microbatch,
        gradient_accumulation_steps=load.rows // at_once,
        num_generations=load.num_generations,
        max_completion_length=max(load.lengths_N),
        max_steps=load.steps + 1,
        learning_rate=1e-4,
        lr_scheduler_type="constant",
        use_vllm=load.corrected,
        vllm_mode="server",
        vllm_importance_sampling_mode="token_truncate",
    )
    with mock.patch.object(grpo_trainer, "VLLMGeneration", NoEngine):
        return cls(
            model=model,
            reward_funcs=length_reward,
            args=config_class(**arguments | settings),
            train_dataset=prompts(load.rows * (load.steps + 1) // load.num_generations),
            processing_class=tokenizer,
            rollout_func=Replay(load.lengths_N, len(tokenizer), load.prompt_length),
            callbacks=[timer],
        )
