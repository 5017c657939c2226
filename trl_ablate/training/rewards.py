"""The rewards of a recipe: the template's, or those that `reward_funcs` names; and the metrics of
the style in which a world's questions are answered."""

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerBase

from trl_ablate.miniature.registry import is_miniature, world_of_data
from trl_ablate.miniature.world import Task
from trl_ablate.recipe.resolving import Resolved
from trl_ablate.rewards import MathGrader
from trl_ablate.rewards.functions import RewardFunction, completion_text
from trl_ablate.rewards.own.chosen import Rewards, Tools, chosen_rewards, template_specs
from trl_ablate.rewards.own.model import ModelReward
from trl_ablate.run.failures import one_sentence
from trl_ablate.task import TaskArguments


def task_rewards(
    task: TaskArguments,
    tokenizer: PreTrainedTokenizerBase,
    grader: MathGrader,
    resolved: Resolved,
    *,
    called_by_trl: bool = True,
) -> Rewards:
    """The rewards of `reward_funcs`, or else of the template (or of `reward`). Reward models stay
    models if TRL calls them; else they become functions."""
    if task.only_environment_rewards:
        return Rewards([], [])
    tools = Tools(
        grader,
        task.form,
        functools.partial(_model, resolved=resolved, called_by_trl=called_by_trl),
        eos_token_ids=(cast(int, tokenizer.eos_token_id),),
        special_token_ids=tuple(tokenizer.all_special_ids),
        timeout=task.reward_timeout,
        workers=task.reward_workers,
    )
    if task.own_rewards:
        return chosen_rewards(task.own_rewards, tools)
    made = chosen_rewards(template_specs(cast(str, task.form), task.eos_penalty), tools)
    return replace(made, functions=with_styles_logged(made.functions, task.dataset))


def rewards_of_sets(
    resolved: Resolved, tokenizer: PreTrainedTokenizerBase, grader: MathGrader
) -> dict[str, Rewards]:
    """The rewards of the `eval_sets` that have their own."""
    tasks = {name: resolved.task.evaluation_task(name) for name in resolved.task.sets_with_rewards}
    return {
        name: task_rewards(task, tokenizer, grader, resolved, called_by_trl=False)
        for name, task in tasks.items()
    }


def _model(name: str, resolved: Resolved, called_by_trl: bool) -> Any:
    """A reward model as TRL loads it, from safetensors; its own code runs only if trusted."""
    fix = "give the Hub id or the folder of a sequence classification model with one label"
    with one_sentence(f"reward model {name}", fix):
        model = AutoModelForSequenceClassification.from_pretrained(
            name.rstrip("/"),  # TRL names the reward by the last part
            num_labels=1,
            dtype=resolved.model.dtype,
            attn_implementation=resolved.model.attn_implementation,
            trust_remote_code=resolved.config.trust_remote_code,
            use_safetensors=True,
        )
    kwargs = cast(Any, resolved.config.chat_template_kwargs)
    return model if called_by_trl else ModelReward(model, kwargs)


def with_styles_logged(rewards: Sequence[RewardFunction], dataset: str) -> list[RewardFunction]:
    """The rewards of a run on this dataset; the one that marks the answer logs the styles."""
    world = world_of_data(dataset) if is_miniature(dataset) else None
    if world is None or not world.task.styles:
        return list(rewards)
    marks_answer = [reward for reward in rewards if reward.__name__ != "eos_penalty"][-1]
    return [logging_styles(each, world.task) if each is marks_answer else each for each in rewards]


def logging_styles(reward: RewardFunction, task: Task) -> RewardFunction:
    @functools.wraps(reward)
    def rewarded(prompts, completions, completion_ids, *args: Any, log_metric=None, **kwargs: Any):
        marks = reward(prompts, completions, completion_ids, *args, log_metric=log_metric, **kwargs)
        if log_metric is not None:
            lengths = list(map(len, completion_ids))
            for name, values in style_values(task, completions, marks, lengths).items():
                for value in values:
                    log_metric(name, value)
        return marks

    return rewarded


def style_values(
    task: Task, completions: Sequence[Any], rewards: Sequence[float | None], lengths: Sequence[int]
) -> dict[str, list[float]]:
    """For each style of the world (`direct`, `terse`, `full`): whether each completion is in it (1
    or 0), and the rewards and the lengths in tokens of those that are. TRL takes the mean of all
    values of all processes, so each is logged by itself."""
    styles = [task.style_of(completion_text(completion)) for completion in completions]
    found: dict[str, list[float]] = {}
    for style in task.styles:
        rows = [row for row, name in enumerate(styles) if name == style]
        found[f"style/{style}"] = [float(name == style) for name in styles]
        found[f"style/{style}_length"] = [float(lengths[row]) for row in rows]
        marks = (rewards[row] for row in rows)
        found[f"style/{style}_reward"] = [mark for mark in marks if mark is not None]
    return found
