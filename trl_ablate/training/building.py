"""From a resolved recipe to a trainer that is ready to train: model, data, rewards, callbacks, and
the tools, environments and rollout functions that a recipe names for TRL's trainer.

Optimizer, schedule, data loader and generation are tried out first: transformers makes them after
the model is loaded. There are fifty optimizers, half of them in separate packages, each with its
own arguments and errors; to make one, for a tiny layer, is the only check that covers all of them.
"""

import copy
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar, cast

import torch
from datasets import Dataset
from transformers import (
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    ProgressCallback,
    Trainer,
    get_scheduler,
)
from transformers.training_args import OptimizerNames
from trl import get_peft_config, get_quantization_config

from trl_ablate.config import AblationConfig
from trl_ablate.data.questions import (
    Part,
    check_enough,
    check_prompts_fit,
    load_questions,
    texts_of,
    to_prompts,
)
from trl_ablate.errors import ConfigurationError, brief
from trl_ablate.estimates import MAIN
from trl_ablate.miniature.registry import is_of_one_core
from trl_ablate.named_code import code_place, load_code, one_line
from trl_ablate.recipe.agreement import check_quantization
from trl_ablate.recipe.resolving import Resolved
from trl_ablate.rewards import MathGrader
from trl_ablate.rewards.own.chosen import Rewards
from trl_ablate.rewards.own.model import ModelReward
from trl_ablate.run.failures import one_sentence
from trl_ablate.run.masking import Masker
from trl_ablate.study.engines import THREAD_VARIABLES
from trl_ablate.task import TaskArguments
from trl_ablate.trainer.ablation import AblationTrainer
from trl_ablate.trainer.heap import keep_freed_memory
from trl_ablate.training import models
from trl_ablate.training.dashboard import tolerated_integrations
from trl_ablate.training.rewards import rewards_of_sets, task_rewards

logger = logging.getLogger(__name__)

Built = TypeVar("Built", bound=AblationTrainer)
Sets = dict[str, Dataset]
"""Questions to evaluate on: `MAIN`, and those of `eval_sets`."""

STEPS = 10
OF_LAYERS = ("galore", "apollo", "lomo", "adalomo")
"""Optimizers that need certain layers of the model, which the tiny layer here lacks."""

_made = partial(
    one_sentence, remedy="change it, or its arguments", failed=", which cannot be made here"
)


def build_trainer(resolved: Resolved, grader: MathGrader) -> AblationTrainer:
    """Load everything a recipe names and put it together."""
    check_quantization(resolved.config, resolved.model)
    check_optimizer(resolved.config)
    check_loader(resolved.config)
    check_generation_config(resolved.config)
    model = models.starting_model(resolved)
    tokenizer = models.checked_tokenizer(model, resolved)
    train_dataset = task_dataset(resolved.task, "train", tokenizer)
    check_enough(train_dataset, resolved.config)
    context = models.context_of(model, resolved)
    check_all_fit({MAIN: train_dataset}, tokenizer, context, "train questions")
    sets: Sets = {}
    if resolved.config.eval_strategy != "no":  # else the data may have no such split, as in TRL
        sets = evaluation_sets(resolved.task, tokenizer)
        check_all_fit(sets, tokenizer, context, "eval questions")
        warn_of_repeated(sets, train_dataset)
    return put_together(resolved, grader, model, tokenizer, train_dataset, sets)


def check_optimizer(config: AblationConfig) -> None:
    """Refuse an optimizer or a schedule that cannot be made, or used here, with these settings."""
    name = OptimizerNames(config.optim).value
    of_layers = name.startswith(OF_LAYERS)
    layer: Any = torch.nn.Linear(2, 2)
    with _made(f"optim is {name!r}{_with('optim_args', config.optim_args)}"):
        try:
            made, arguments = Trainer.get_optimizer_cls_and_kwargs(config, layer)
        except Exception as error:
            if of_layers and not isinstance(error, ImportError):
                return
            raise
        if of_layers:
            return
        optimizer = made(layer.parameters(), **arguments)
        if config.use_cpu:  # some take their steps on a GPU only
            if hasattr(optimizer, "train"):  # those without a schedule
                optimizer.train()
            layer(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    schedule: Any = config.lr_scheduler_type
    name, given = getattr(schedule, "value", schedule), config.lr_scheduler_kwargs
    with _made(f"lr_scheduler_type is {name!r}{_with('lr_scheduler_kwargs', given)}"):
        get_scheduler(
            schedule,
            optimizer=optimizer,
            num_warmup_steps=config.get_warmup_steps(STEPS),
            num_training_steps=STEPS,
            scheduler_specific_kwargs=cast(Any, given),
        )


def check_loader(config: AblationConfig) -> None:
    """Refuse settings from which torch cannot make a data loader."""
    names = ("num_workers", "persistent_workers", "prefetch_factor", "multiprocessing_context")
    settings = vars(config)  # transformers before 5.15 has no multiprocessing context
    given = {one: settings[f"dataloader_{one}"] for one in names if f"dataloader_{one}" in settings}
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


def _with(setting: str, given: Any) -> str:
    return f", with {setting} {brief(repr(given))}" * bool(given)


def reward_weights(resolved: Resolved, rewards: Rewards) -> list[float] | None:
    """Those of the setting, and the `eos_penalty`, which is its own; or else the rewards' own."""
    given, penalty = resolved.config.reward_weights, resolved.task.eos_penalty
    if given is None or not rewards.functions:
        return given or rewards.weights or None
    others = len(rewards.functions) - bool(penalty)
    whole = [*given[:others], *rewards.weights[others:]]
    if len(given) < others or given not in (whole, whole[:others]):
        raise ConfigurationError(
            f"reward_weights has {len(given)} numbers, and there are {others} reward functions"
            + f" besides eos_penalty, whose weight is {penalty}" * bool(penalty)
            + "; give one for each, or null"
        )
    return whole


def check_columns(
    rewards: Rewards,
    apart: Mapping[str, Rewards],
    train_dataset: Dataset,
    sets: Sets,
    eval_by: str | None,
) -> None:
    """Refuse questions without the columns that their rewards, or `eval_by`, need."""
    rewards.check_columns(train_dataset.column_names, "train questions")
    for name, dataset in sets.items():
        of = named_questions("eval questions", name)
        apart.get(name, rewards).check_columns(dataset.column_names, of)
    if sets and eval_by is not None and eval_by not in sets[MAIN].column_names:
        raise ConfigurationError(
            f"eval_by is '{eval_by}', but the eval questions have the columns "
            f"{', '.join(sets[MAIN].column_names)}; name one of these, or null"
        )


def named_questions(what: str, name: str) -> str:
    return what if name == MAIN else f"{what} of '{name}'"


def warn_of_repeated(sets: Sets, train_dataset: Dataset) -> None:
    """One warning that counts the questions that are both trained on and evaluated on."""
    trained, found = {*texts_of(train_dataset)}, []
    for name, dataset in sets.items():
        if count := sum(text in trained for text in texts_of(dataset)):
            found.append(f"{count} of {len(dataset)} {named_questions('eval questions', name)}")
    if found:
        logger.warning(
            "%s are also trained on, so that their reward is not of unseen questions; give another "
            "eval_split or dataset",
            ", ".join(found),
        )


def check_all_fit(
    sets: Sets, tokenizer: PreTrainedTokenizerBase, context: int | None, what: str
) -> None:
    """Refuse prompts beyond the model's context, before its weights are loaded."""
    for name, dataset in sets.items():
        if context is not None:
            check_prompts_fit(dataset, tokenizer, context, named_questions(what, name))


def put_together(
    resolved: Resolved,
    grader: MathGrader,
    model: str | PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    train_dataset: Dataset,
    sets: Sets,
    kind: type[Built] = AblationTrainer,
) -> Built:
    config, model_args = copy.copy(resolved.config), resolved.model
    config._n_gpu = min(config.n_gpu, 1)  # not one copy of the model on each, which TRL refuses
    if config.use_cpu:
        keep_freed_memory()
    rewards = task_rewards(resolved.task, tokenizer, grader, resolved)
    config.reward_weights = reward_weights(resolved, rewards)
    apart = rewards_of_sets(resolved, tokenizer, grader)
    check_columns(rewards, apart, train_dataset, sets, config.eval_by)
    loading = {
        "revision": model_args.model_revision,
        "attn_implementation": model_args.attn_implementation,
        "dtype": model_args.dtype,
        "use_safetensors": True,
        **cast(dict[str, Any], config.model_init_kwargs or {}),
    }
    config.model_init_kwargs = cast(Any, loading if isinstance(model, str) else None)
    adapter: Any = get_peft_config(model_args)
    if adapter is not None and loading["revision"] != "main":  # of the base: TRL does not record it
        adapter.revision = loading["revision"]
    environment = environment_of(resolved.task)
    with tolerated_integrations(config) as integrations, explained(environment):
        trainer = kind(
            model=model,
            reward_funcs=rewards.functions or None,
            args=config,
            train_dataset=train_dataset,
            eval_dataset=sets if len(sets) > 1 else sets.get(MAIN),
            processing_class=tokenizer,
            quantization_config=get_quantization_config(model_args),
            peft_config=adapter,
            callbacks=integrations,
            **environment,
        )
    masked = Masker(hide_home=False).value(trainer.args.model_init_kwargs)
    trainer.args.model_init_kwargs = masked  # checkpoints and dashboards hold the arguments
    loaded = cast(PreTrainedModel, trainer.model)
    if config.use_cpu:
        use_one_thread_if_small(loaded)
    for function in (function for one in apart.values() for function in one.functions):
        if isinstance(function, ModelReward):
            function.model.to(trainer.accelerator.device)
    trainer.rewards_of_sets = apart
    models.check_finite(loaded, model if isinstance(model, str) else "the model")
    for noisy in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(noisy)
    return trainer


def task_dataset(task: TaskArguments, part: Part, tokenizer: PreTrainedTokenizerBase) -> Dataset:
    """The questions of `train` or `eval`, rendered by the template."""
    return to_prompts(load_questions(task, part), task, tokenizer, f"{part} questions")


def evaluation_sets(task: TaskArguments, tokenizer: PreTrainedTokenizerBase) -> Sets:
    """The questions to evaluate on, together with those of `eval_sets` if there are any."""
    sets = {MAIN: task_dataset(task, "eval", tokenizer)}
    for name in task.eval_sets or ():
        own = task.evaluation_task(name)
        what = named_questions("eval questions", name)
        sets[name] = to_prompts(load_questions(own, "eval"), own, tokenizer, what)
    return sets


def environment_of(task: TaskArguments) -> dict[str, Any]:
    """The arguments of `GRPOTrainer` that the recipe gives, imported; empty for most recipes."""
    names = ("tools", "environment_factory", "rollout_func")
    return {name: _loaded(name, given) for name in names if (given := vars(task)[name])}


def _loaded(setting: str, path: Any) -> Any:
    """What a path names, or the paths of a list or of a mapping."""
    if isinstance(path, dict):
        return {name: _loaded(setting, one) for name, one in path.items()}
    if isinstance(path, list):
        return [_loaded(setting, one) for one in path]
    place = code_place(path)
    if place is None:
        raise ConfigurationError(
            f"{setting} has {path[:200]!r}; give FILE.py:FUNCTION or package.module.function"
        )
    found = load_code(place, setting)
    if not callable(found):
        raise ConfigurationError(
            f"{setting}: {path} is a {type(found).__name__}, which cannot be called; name a "
            "function or a class"
        )
    return found


@contextmanager
def explained(environment: dict[str, Any]) -> Iterator[None]:
    """TRL refuses tools and environments for many reasons: report them in one sentence."""
    try:
        yield
    except ConfigurationError:
        raise
    except (ImportError, TypeError, ValueError) as error:
        if not environment:
            raise
        why, remedy = one_line(error), ""
        if "tool calling" in why:
            remedy = "; set chat_template to a file with calls, as recipes/worlds/calculator.jinja"
        raise ConfigurationError(
            f"TRL refuses {' and '.join(environment)} of this recipe: {why.rstrip('.')}{remedy}"
        ) from error


THREADS = torch.get_num_threads()
"""torch's own choice: one per core, or what the environment says."""


def use_one_thread_if_small(model: torch.nn.Module) -> None:
    """As the engine of studies does, unless the environment or the user has chosen a number."""
    millions = sum(weights.numel() for weights in model.parameters()) / 1e6
    chosen = any(name in os.environ for name in THREAD_VARIABLES)
    if is_of_one_core(millions) and not chosen and torch.get_num_threads() == THREADS:
        torch.set_num_threads(1)
