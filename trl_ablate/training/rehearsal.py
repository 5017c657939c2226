"""Checks of optimizer, schedule, data loader and generation: each is made once, on a tiny layer,
and on a CPU the optimizer takes a step. It needs no data and no model.

transformers makes them late, after the model is loaded. There are fifty optimizers, half of them in
separate packages, each with its own arguments and errors; to make one is the only check that covers
all of them.
"""

from functools import partial
from typing import Any

import torch
from transformers import GenerationConfig, Trainer, get_scheduler
from transformers.training_args import OptimizerNames

from trl_ablate.config import AblationConfig
from trl_ablate.recipe.strict import brief
from trl_ablate.training.models import one_sentence

STEPS = 10
OF_LAYERS = ("galore", "apollo", "lomo", "adalomo")
"""Optimizers that need certain layers of the model, which the tiny layer here lacks."""

_made = partial(
    one_sentence, remedy="change it, or its arguments", failed=", which cannot be made here"
)


def check_optimizer(config: AblationConfig) -> None:
    """Refuse an optimizer or a schedule that cannot be made, or used here, with these settings."""
    name = OptimizerNames(config.optim).value
    given = f", with optim_args {brief(repr(config.optim_args))}" * bool(config.optim_args)
    layer: Any = torch.nn.Linear(2, 2)
    with _made(f"optim is {name!r}{given}"):
        try:
            made, arguments = Trainer.get_optimizer_cls_and_kwargs(config, layer)
        except Exception as error:
            if name.startswith(OF_LAYERS) and not isinstance(error, ImportError):
                return
            raise
        if name.startswith(OF_LAYERS):
            return
        optimizer = made(layer.parameters(), **arguments)
        if config.use_cpu:  # some take their steps on a GPU only
            _take_a_step(layer, optimizer)
    _check_schedule(config, optimizer)


def check_loader(config: AblationConfig) -> None:
    """Refuse settings from which torch cannot make a data loader."""
    names = ("num_workers", "persistent_workers", "prefetch_factor", "multiprocessing_context")
    settings = vars(config)  # transformers before 5.15 has no multiprocessing context
    names = [name for name in names if f"dataloader_{name}" in settings]
    given = {name: settings[f"dataloader_{name}"] for name in names}
    shown = ", ".join(f"dataloader_{name} {value}" for name, value in given.items() if value)
    nothing: Any = [0]
    with _made(f"a data loader with {shown}"):
        torch.utils.data.DataLoader(nothing, **given)


def check_generation_config(config: AblationConfig) -> None:
    """Refuse `generation_kwargs` that transformers does not take, where it generates."""
    given: Any = config.generation_kwargs or {}
    if not config.use_vllm:
        with _made(f"generation_kwargs is {brief(repr(given))}"):
            GenerationConfig(**given)


def _take_a_step(layer: torch.nn.Module, optimizer: Any) -> None:
    if hasattr(optimizer, "train"):  # those without a schedule
        optimizer.train()
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()


def _check_schedule(config: AblationConfig, optimizer: torch.optim.Optimizer) -> None:
    name = getattr(config.lr_scheduler_type, "value", config.lr_scheduler_type)
    given: Any = config.lr_scheduler_kwargs
    shown = f", with lr_scheduler_kwargs {brief(repr(given))}" * bool(given)
    with _made(f"lr_scheduler_type is {name!r}{shown}"):
        get_scheduler(
            config.lr_scheduler_type,
            optimizer=optimizer,
            num_warmup_steps=config.get_warmup_steps(STEPS),
            num_training_steps=STEPS,
            scheduler_specific_kwargs=given,
        )
