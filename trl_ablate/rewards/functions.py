"""Reward functions with the signature that TRL calls."""

import functools
import traceback
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from trl_ablate.errors import REWARD_RAISED, ConfigurationError, RewardError
from trl_ablate.prompts.templates import get_template
from trl_ablate.rewards.formats import abuses_eos
from trl_ablate.rewards.grading.grader import MathGrader
from trl_ablate.rewards.scoring import Score, score_batch
from trl_ablate.task import TaskArguments

LogMetric = Callable[[str, float], None]
LogExtra = Callable[[str, list[Any]], None]


class RewardFunction(Protocol):
    """TRL's signature. None means that a completion is ungraded (NaN in TRL), which is not 0."""

    __name__: str

    def __call__(
        self,
        prompts: list[Any],
        completions: list[Any],
        completion_ids: list[list[int]],
        answer: list[str],
        log_metric: LogMetric | None = None,
        log_extra: LogExtra | None = None,
        **kwargs: Any,
    ) -> list[float | None]: ...


def grader_of(task: TaskArguments) -> MathGrader:
    """A grader with the task's settings."""
    return MathGrader(
        workers=task.grader_workers, timeout=task.grader_timeout, on_timeout=task.on_timeout
    )


def build_rewards(
    template: str,
    *,
    grader: MathGrader,
    eos_token_ids: Collection[int] = (),
    special_token_ids: Collection[int] = (),
    eos_penalty: float = 0.0,
) -> tuple[list[RewardFunction], list[float]]:
    """A template's reward functions and their weights, for `GRPOTrainer` and `GRPOConfig`.

    Each function returns 0 or 1 (`eos_penalty`: 0 or -1), which TRL multiplies by its weight. The
    functions share one grading of the batch, and the first function logs it: the metrics
    `format_reward` and `answer_reward` (means over the graded completions), `grader/timeouts`,
    `grader/restarts` and `grader/ungraded` (counts of this batch), and the columns `format_reward`
    and `answer_reward`.

    Every function returns None for an ungraded completion, even if it needs no grader itself: with
    the format reward alone, the completion would look like a wrong answer.
    """
    form = get_template(template)
    graded = GradedRewards(template, grader)
    if eos_penalty < 0:
        raise ConfigurationError(
            f"eos_penalty={eos_penalty!r} is negative and would reward repeated end-of-sequence "
            "tokens; it is subtracted from the reward, so give 0 or more."
        )
    if eos_penalty > 0 and not eos_token_ids:
        raise ConfigurationError(
            f"eos_penalty={eos_penalty!r} needs eos_token_ids; pass the tokenizer's "
            "end-of-sequence token ids, or set eos_penalty to 0."
        )
    if len(form.rewards) == 1:
        functions = [graded.marks(form.rewards[0], "reward", logs=True)]
    else:
        functions = [
            graded.marks("format", "format_reward", logs=True),
            graded.marks("answer", "answer_reward", logs=False),
        ]
    weights = list(form.reward_weights)
    if eos_penalty > 0:
        functions.append(graded.eos_penalty(eos_token_ids, special_token_ids))
        weights.append(eos_penalty)
    return functions, weights


class GradedRewards:
    """Rewards that share one grading of each batch, in the format of a template."""

    def __init__(self, template: str, grader: MathGrader) -> None:
        self._batch = _GradedBatch(template, grader)

    def marks(self, name: str, part: str, *, logs: bool) -> RewardFunction:
        """1 if `part` of the score is above 0, else 0; `logs` writes the metrics of the batch."""
        return _named(name, _marks(self._batch, part, logs=logs))

    def eos_penalty(
        self, eos_token_ids: Collection[int], special_token_ids: Collection[int]
    ) -> RewardFunction:
        return _named("eos_penalty", _eos_marks(self._batch, eos_token_ids, special_token_ids))

    @staticmethod
    def eos_alone(
        eos_token_ids: Collection[int], special_token_ids: Collection[int]
    ) -> RewardFunction:
        """`eos_penalty` without a grading: no completion is ungraded."""
        return _named("eos_penalty", _eos_marks(None, eos_token_ids, special_token_ids))


class _GradedBatch:
    """Grades each batch once for all reward functions.

    It recognises the last batch by its texts, so the order and number of calls do not matter.
    `counts` is the change of the grader's counters during the last batch.
    """

    def __init__(self, template: str, grader: MathGrader) -> None:
        self._template = template
        self._grader = grader
        self._graded: tuple[list[str], list[str]] | None = None
        self._scores: list[Score] = []
        self.counts: dict[str, int] = {}

    def scores(self, completions: Sequence[Any], golds: Sequence[str]) -> list[Score]:
        """The scores of a batch; graded only if it differs from the last batch."""
        key = ([completion_text(completion) for completion in completions], list(golds))
        if key != self._graded:
            before = self._counters()
            self._scores = score_batch(self._template, *key, grader=self._grader)
            after = self._counters()
            self.counts = {name: after[name] - before[name] for name in after}
            self._graded = key
        return self._scores

    def log(self, log_metric: LogMetric | None, log_extra: LogExtra | None) -> None:
        """Log the last batch. A mean without graded completions is not logged."""
        for name in ("format_reward", "answer_reward"):
            values = [each[name] for each in self._scores]
            graded = [
                value
                for value, each in zip(values, self._scores, strict=True)
                if value is not None and each["reward"] is not None
            ]
            if log_metric is not None and graded:
                log_metric(name, sum(graded) / len(graded))
            if log_extra is not None:
                log_extra(name, values)
        for name, count in self.counts.items():
            if log_metric is not None:
                log_metric(f"grader/{name}", float(count))

    def _counters(self) -> dict[str, int]:
        grader = self._grader
        return {
            "timeouts": grader.timeouts,
            "restarts": grader.restarts,
            "ungraded": grader.ungraded,
        }


def completion_text(completion: Any) -> str:
    """The text of a completion: the string itself, or the text of the last message in TRL's
    list."""
    if isinstance(completion, str):
        return completion
    content = completion[-1]["content"] if completion else ""
    if isinstance(content, list):  # the parts of a multimodal message
        return "".join(part.get("text", "") for part in content)
    return content or ""


def _marks(batch: _GradedBatch, part: str, *, logs: bool) -> RewardFunction:
    """1 if this part of the score is above 0, 0 if it is 0, None if ungraded."""

    def mark(prompts, completions, completion_ids, answer, log_metric=None, log_extra=None, **_):
        scores = batch.scores(completions, answer)
        if logs:
            batch.log(log_metric, log_extra)
        return [None if each["reward"] is None else float(each[part] > 0) for each in scores]

    return mark


def _eos_marks(
    batch: _GradedBatch | None,
    eos_token_ids: Collection[int],
    special_token_ids: Collection[int],
) -> RewardFunction:
    """-1 if a completion abuses end-of-sequence tokens, 0 if not, None if ungraded."""
    eos, special = frozenset(eos_token_ids), frozenset(special_token_ids)

    def mark(prompts, completions, completion_ids, answer=(), log_metric=None, log_extra=None, **_):
        marks: list[float | None] = [
            -float(abuses_eos(ids, eos, special)) for ids in completion_ids
        ]
        if batch is None:
            return marks
        scores = batch.scores(completions, answer)
        return [
            None if each["reward"] is None else mark
            for each, mark in zip(scores, marks, strict=True)
        ]

    return mark


def _named(name: str, function: RewardFunction) -> RewardFunction:
    """The function with the name that TRL logs and that its errors print."""

    @functools.wraps(function)
    def named(*args: Any, **kwargs: Any) -> list[float | None]:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            at = traceback.extract_tb(error.__traceback__)[-1]
            message = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise RewardError(
                REWARD_RAISED.format(name=name, error=message, line=at.lineno, file=at.filename)
            ) from error

    named.__name__ = name
    return named
