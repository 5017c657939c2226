"""Logs in which style a world's questions are answered, and what each style is worth.

For each style of the world (`direct`, `terse`, `full`): its share of the completions, and the mean
reward and length in tokens of its completions. They are metrics of training and of evaluation:
`style/direct`, `style/direct_reward`, `style/direct_length`. A style without completions has a
share of 0 and no other metric.
"""

import functools
from collections.abc import Sequence
from typing import Any

from trl_ablate.miniature.registry import is_miniature, world_of_data
from trl_ablate.miniature.world import Task
from trl_ablate.rewards.functions import RewardFunction, completion_text


def with_styles_logged(rewards: Sequence[RewardFunction], dataset: str) -> list[RewardFunction]:
    """The rewards of a run on this dataset; the one that marks the answer logs the styles."""
    world = world_of_data(dataset) if is_miniature(dataset) else None
    if world is None or not world.task.styles:
        return list(rewards)
    marks_answer = [reward for reward in rewards if reward.__name__ != "eos_penalty"][-1]
    return [logging_styles(each, world.task) if each is marks_answer else each for each in rewards]


def logging_styles(reward: RewardFunction, task: Task) -> RewardFunction:
    """The reward function, which also logs the styles of the completions that it rewards."""

    @functools.wraps(reward)
    def rewarded(prompts, completions, completion_ids, *args: Any, log_metric=None, **kwargs: Any):
        marks = reward(prompts, completions, completion_ids, *args, log_metric=log_metric, **kwargs)
        if log_metric is not None:
            lengths = list(map(len, completion_ids))
            for name, value in style_metrics(task, completions, marks, lengths).items():
                log_metric(name, value)
        return marks

    return rewarded


def style_metrics(
    task: Task,
    completions: Sequence[Any],
    rewards: Sequence[float | None],
    lengths: Sequence[int],
) -> dict[str, float]:
    styles = [task.style_of(completion_text(completion)) for completion in completions]
    found: dict[str, float] = {}
    for style in task.styles:
        rows = [row for row, name in enumerate(styles) if name == style]
        graded = [mark for row in rows if (mark := rewards[row]) is not None]
        found[f"style/{style}"] = len(rows) / len(styles)
        if rows:
            found[f"style/{style}_length"] = sum(lengths[row] for row in rows) / len(rows)
        if graded:
            found[f"style/{style}_reward"] = sum(graded) / len(graded)
    return found
