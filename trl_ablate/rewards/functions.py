"""From completions to rewards, and the reward functions with the signature that TRL calls."""

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol, TypedDict

from trl_ablate.prompts.templates import get_template
from trl_ablate.rewards.extract import extract
from trl_ablate.rewards.grading.grader import MathGrader
from trl_ablate.rewards.own.calling import log_counts, raised
from trl_ablate.task import TaskArguments


class Score(TypedDict):
    """Rewards of one completion. `answer_reward` and `reward` are None if it was not graded."""

    reward: float | None
    format_reward: float
    answer_reward: float | None


class RewardFunction(Protocol):
    """TRL's signature: prompts, completions, completion_ids, and every column of the data by its
    name. None means that a completion is ungraded (NaN in TRL), which is not 0."""

    __name__: str

    def __call__(self, *lists: Any, **columns: Any) -> list[float | None]: ...


_default_grader = functools.cache(MathGrader)
"""The grader for calls that pass none: created at the first call, closed at exit."""


def grader_of(task: TaskArguments) -> MathGrader:
    """A grader with the task's settings."""
    return MathGrader(task.grader_workers, task.grader_timeout, on_timeout=task.on_timeout)


def score(template: str, completion: str, gold: str, *, grader: MathGrader | None = None) -> Score:
    """The rewards of one completion. `score_batch` is many times faster for several."""
    return score_batch(template, [completion], [gold], grader=grader)[0]


def score_batch(
    template: str,
    completions: Sequence[str],
    golds: Sequence[str],
    *,
    grader: MathGrader | None = None,
) -> list[Score]:
    """The rewards of a batch, in one call to the grader.

    `r1_zero`, `question_only`, `last_number`: format and answer are 0 or 1, and the reward is
    their product.
    XML templates: the reward is the sum of format (0 or 1) and answer (0 or 2, the template's
    weights). So a well-formed wrong answer gets 1, and a right answer in a wrong format gets 2.
    Without a verdict from the grader, `answer_reward` and `reward` are None for any format.
    """
    weights = tuple(get_template(template).rewards.values())
    found = [extract(template, completion) for completion in completions]
    verdicts = (grader or _default_grader()).grade([each.answer for each in found], golds)
    pairs = zip(found, verdicts, strict=True)
    return [_score(each.well_formed, verdict, weights) for each, verdict in pairs]


def _score(well_formed: bool, right: bool | None, weights: tuple[float, ...]) -> Score:
    apart = len(weights) == 2
    format_worth, answer_worth = weights if apart else (1.0, 1.0)
    format_reward = format_worth * well_formed
    if right is None:
        return Score(reward=None, format_reward=format_reward, answer_reward=None)
    answer_reward = answer_worth * right
    together = format_reward + answer_reward if apart else format_reward * answer_reward
    return Score(reward=together, format_reward=format_reward, answer_reward=answer_reward)


class GradedRewards:
    """Rewards that share one grading of each batch, in the format of a template.

    It recognises the last batch by its texts, so the order and number of calls do not matter.
    Without a template nothing is graded, and no completion is ungraded.
    """

    def __init__(self, template: str | None, grader: MathGrader) -> None:
        self._template, self._grader = template, grader
        self._batch: tuple[list[str], list[str]] | None = None
        self._scores: list[Score] = []
        self._counts: dict[str, int] = {}  # how the grader's have changed during the batch

    def function(
        self, name: str, value: Callable[[Score, Sequence[int]], float], *, logs: bool = False
    ) -> RewardFunction:
        """`value` of each completion's score and token ids; `logs` logs the batch.

        None for an ungraded completion, even if the value needs no grading: with the format reward
        alone, the completion would look like a wrong answer.
        """

        def mark(
            prompts, completions, completion_ids, answer=(), log_metric=None, log_extra=None, **_
        ):
            try:
                scores = self._graded(completions, answer)
                if logs:
                    self._log(log_metric, log_extra)
                pairs = zip(scores, completion_ids, strict=True)
                return [None if one["reward"] is None else value(one, ids) for one, ids in pairs]
            except Exception as error:
                raise raised(name, error) from error

        mark.__name__ = name
        return mark

    def _graded(self, completions: Sequence[Any], golds: Sequence[str]) -> list[Score]:
        """The scores of a batch; graded only if it differs from the last batch."""
        if self._template is None:
            return [_score(True, True, ())] * len(completions)
        batch = ([completion_text(completion) for completion in completions], list(golds))
        if batch != self._batch:
            before = self._counters()
            self._scores = score_batch(self._template, *batch, grader=self._grader)
            self._counts = {name: n - before[name] for name, n in self._counters().items()}
            self._batch = batch
        return self._scores

    def _counters(self) -> dict[str, int]:
        return {name: getattr(self._grader, name) for name in ("timeouts", "restarts", "ungraded")}

    def _log(self, log_metric: Callable | None, log_extra: Callable | None) -> None:
        """Log the last batch: values of the graded completions (TRL takes the mean over all
        processes), counts, and columns."""
        for name in ("format_reward", "answer_reward"):
            for each in self._scores:
                if log_metric is not None and each["reward"] is not None:
                    log_metric(name, each[name] or 0.0)
            if log_extra is not None:
                log_extra(name, [each[name] for each in self._scores])
        log_counts(log_metric, self._counts)


def abuses_eos(ids: Sequence[int], ends: Collection[int], special: Collection[int]) -> bool:
    """Whether a completion has several end-of-sequence tokens, or no text at all.

    It should end with one of `ends`. Two or more at any positions, equal or different, are abuse:
    one of the first runs learned to do this and failed. So is one with special tokens only.
    """
    return sum(one in ends for one in ids) > 1 or all(one in ends or one in special for one in ids)


def completion_text(completion: Any) -> str:
    """The text of a completion: the string itself, or the text of the last message in TRL's list;
    none if it ends with what a tool returned."""
    if isinstance(completion, str):
        return completion
    answered = completion and completion[-1].get("role") != "tool"
    content = completion[-1]["content"] if answered else ""
    if isinstance(content, list):  # the parts of a multimodal message
        return "".join(part.get("text", "") for part in content)
    return content or ""
