"""One arm at one point: its trainer, made as `train` makes it, and its gradients on the rollouts.

The trainer starts from the arm's own model, so a KL refers to that; then it loads the weights of
the point.
"""

import copy
import dataclasses
import re
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch.optim.lr_scheduler import LambdaLR
from transformers.utils import logging
from trl.trainer import grpo_trainer

from trl_ablate.bench.synthetic import NoEngine
from trl_ablate.errors import ConfigurationError
from trl_ablate.recipe.resolving import Resolved
from trl_ablate.trainer.temporary import replaced
from trl_ablate.training.building import put_together
from trl_ablate.training.models import checked_tokenizer, silent, starting_model
from trl_ablate.xray.gradients import BY, GradientTaker, Pushes, TakenGradients, divisors_of
from trl_ablate.xray.trainer import Sources, XrayTrainer

ADAM_EPS = 1e-8
OF_THE_RECIPE = ("lr", "weight_decay")
"""Settings of an optimizer that its state in a checkpoint does not replace."""
QUIET: dict[str, Any] = {
    "max_grad_norm": 0.0, "shuffle_dataset": False, "eval_strategy": "no", "eval_on_start": False,
    "save_strategy": "no", "load_best_model_at_end": False, "push_to_hub": False, "report_to": [],
    "logging_strategy": "steps", "logging_steps": 1, "log_completions": False, "log_memory": False,
    "disable_tqdm": True,
}  # fmt: skip
"""Settings of a trainer that does not clip, and writes and evaluates nothing."""


@dataclass(frozen=True)
class Point:
    """Where gradients are taken: a checkpoint of the reference, or its start, and with a drift so
    many optimizer steps of the reference away from it."""

    checkpoint: Path | None
    """None: the model that the reference starts from."""
    drift: int = 0
    moved: dict[str, torch.Tensor] | None = None
    """The weights after the drift; set once the reference has walked."""
    divisors: Mapping[str, torch.Tensor] | None = None
    """Of the optimizer; see `gradients.py`."""

    @property
    def name(self) -> str:
        return "base" if self.checkpoint is None else str(self.checkpoint)


def make_trainer(
    resolved: Resolved, sources: Sources, *, steps: int, engine: bool = False, **changes: Any
) -> XrayTrainer:
    """A trainer of an arm on the questions of the X-ray.

    Args:
        steps: optimizer steps.
        engine: start the arm's vLLM; only drawing needs it.
        changes: further settings.
    """
    if resolved.config.fp16:
        raise ConfigurationError(
            "an X-ray needs every gradient, and fp16 skips those that overflow; use --bf16 true or "
            "--fp16 false"
        )
    logging.disable_progress_bar()
    config = copy.copy(resolved.config)
    own = {"output_dir": str(sources.work), "max_steps": steps, "seed": sources.seed}
    for name, value in {**QUIET, **own, **changes}.items():
        setattr(config, name, value)
    resolved = dataclasses.replace(resolved, config=config)
    model = starting_model(resolved)
    tokenizer = checked_tokenizer(model, resolved)
    questions = Dataset.from_list(list(sources.questions))
    parts = (resolved, sources.grader, model, tokenizer, questions, {})
    with nullcontext() if engine else replaced(grpo_trainer, VLLMGeneration=NoEngine):
        trainer = put_together(*parts, kind=XrayTrainer)
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        raise ConfigurationError(
            "an X-ray needs whole gradients in every process, which FSDP and DeepSpeed shard; use "
            "DDP or one process"
        )
    return trainer


def load_point(trainer: XrayTrainer, point: Point) -> None:
    if point.checkpoint is not None:
        _load_checkpoint(trainer, point.checkpoint)
    if point.moved is not None:
        with torch.no_grad():
            for name, parameter in trainable(trainer).items():
                parameter.copy_(point.moved[name])


def _load_checkpoint(trainer: XrayTrainer, checkpoint: Path) -> None:
    if not any(checkpoint.glob("*.safetensors")):
        raise ConfigurationError(
            f"{checkpoint} holds no weights (*.safetensors); give a checkpoint-N folder of a run"
        )
    try:
        with silent():  # about a head that shares the embedding's weights
            trainer._load_from_checkpoint(str(checkpoint))
    except RuntimeError as error:
        wrong = re.search(r"size mismatch for (.*?)\.?$", str(error), re.MULTILINE)
        if wrong is None:
            raise
        raise ConfigurationError(
            f"{checkpoint} is a checkpoint of another model: its {wrong[1]}; give a checkpoint of "
            "a run of the reference, or its --profile"
        ) from error


def trainable(trainer: XrayTrainer) -> dict[str, torch.nn.Parameter]:
    model: Any = trainer.accelerator.unwrap_model(trainer.model)
    return {name: one for name, one in model.named_parameters() if one.requires_grad}


def load_optimizer(trainer: XrayTrainer, point: Point) -> None:
    """Create the trainer's optimizer, with its state in the checkpoint if there is one."""
    trainer.create_optimizer()
    file = point.checkpoint and point.checkpoint / "optimizer.pt"
    if file is None or not file.is_file():
        return
    state = torch.load(file, map_location=trainer.args.device, weights_only=True)
    optimizer: Any = trainer.optimizer
    groups = optimizer.param_groups
    own = [{key: group[key] for key in OF_THE_RECIPE if key in group} for group in groups]
    try:
        optimizer.load_state_dict(state)
        for group, settings in zip(optimizer.param_groups, own, strict=True):
            group |= {**settings, "initial_lr": settings["lr"]}
    except ValueError as error:
        raise ConfigurationError(
            f"{file} is the state of another optimizer or model ({error}); delete it, and the "
            "second moments are estimated from the rollouts"
        ) from error


def take(
    resolved: Resolved,
    point: Point,
    sources: Sources,
    *,
    scores_again: bool = False,
    estimates: bool = False,
    draws: bool = False,
) -> tuple[TakenGradients, GradientTaker]:
    """The gradients of an arm on all rollout batches of a point.

    Args:
        scores_again: the arm's own reward functions score the stored completions.
        estimates: sum the squared gradients.
        draws: rollout batches may be missing; they are drawn, and no classes are summed.
    """
    per_batch = resolved.config.optimizer_steps_per_rollout
    engine = draws and resolved.config.use_vllm and sources.recorded is None
    trainer = make_trainer(resolved, sources, steps=per_batch * sources.batches, engine=engine)
    load_point(trainer, point)
    taker = GradientTaker(trainable(trainer), per_batch, sources.seed, point.divisors, estimates)
    trainer.optimizer, trainer.lr_scheduler = taker, LambdaLR(taker, lambda step: 1.0)
    group: Any = resolved.config.num_generations
    pushes = None if draws else Pushes(sources.folder.batches(sources.batches), group)
    trainer.reads(sources, apart=point.drift > 0, scores_again=scores_again, on_push=pushes)
    taker.start_clock()
    trainer.train()
    taken = taker.taken()
    taken.tokens = token_shares(trainer)
    if pushes is not None:
        taken.pushes = {name: _summed(trainer, pushes.sums[name]) for name in BY}
    return taken, taker


def walk(resolved: Resolved, point: Point, sources: Sources) -> Point:
    """The point after the reference has taken `point.drift` optimizer steps on its rollouts, from
    the checkpoint's optimizer state and at the recipe's learning rate."""
    clipping = {"max_grad_norm": resolved.config.max_grad_norm, "lr_scheduler_type": "constant"}
    trainer = make_trainer(resolved, sources, steps=point.drift, warmup_steps=0, **clipping)
    load_point(trainer, point)
    load_optimizer(trainer, point)
    trainer.reads(sources, apart=True)
    trainer.train()
    named = trainable(trainer)
    optimizer: Any = trainer.optimizer
    moved = {name: one.detach().cpu().clone() for name, one in named.items()}
    divisors = divisors_of(optimizer.optimizer, named)
    return dataclasses.replace(point, moved=moved, divisors=divisors)


def stored_divisors(
    resolved: Resolved, point: Point, sources: Sources
) -> dict[str, torch.Tensor] | None:
    """Of the optimizer in the checkpoint; None without plain second moments."""
    trainer = make_trainer(resolved, sources, steps=1)
    load_optimizer(trainer, point)
    return divisors_of(trainer.optimizer, trainable(trainer))


def token_shares(trainer: XrayTrainer) -> dict[str, float]:
    """Shares of the stored tokens: clipped by the surrogate, masked as truncated, and dropped with
    their group."""
    lost = trainer.lost_tokens
    counts = torch.tensor([lost[name] for name in ("stored", "masked", "dropped")])
    stored, masked, dropped = _summed(trainer, counts)
    clipped = [row["clip_fraction"] for row in trainer.state.log_history if "clip_fraction" in row]
    mean = sum(clipped) / max(1, len(clipped))
    return {"clipped": mean, "masked": masked / stored, "dropped": dropped / stored}


def _summed(trainer: XrayTrainer, table: torch.Tensor) -> Any:
    local = table.float().to(trainer.accelerator.device)
    total: Any = trainer.accelerator.reduce(local, reduction="sum")
    return total.cpu().double().numpy()
