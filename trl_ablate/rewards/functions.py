"""From completions to rewards, and the reward functions with the signature that TRL calls."""

import atexit
import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol, TypedDict

from trl_ablate.errors import REWARD_RAISED, ConfigurationError, RewardError
from trl_ablate.named_code import line_of, one_line
from trl_ablate.prompts.templates import get_template
from trl_ablate.rewards.extract import extract
from trl_ablate.rewards.grading.grader import MathGrader
from trl_ablate.task import TaskArguments

LogMetric = Callable[[str, float], None]
LogExtra = Callable[[str, list[Any]], None]


class Score(TypedDict):
    """Rewards of one completion. `answer_reward` and `reward` are None if it was not graded."""

    reward: float | None
    format_reward: float
    answer_reward: float | None


@functools.cache
def _default_grader() -> MathGrader:
    """The grader for calls that pass none: created at the first call, closed at exit."""
    grader = MathGrader()
    atexit.register(grader.close)
    return grader


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
    weights = get_template(template).reward_weights
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
    graded = GradedRewards(template, grader)
    parts = ("reward",) if len(form.rewards) == 1 else ("format_reward", "answer_reward")
    functions = [
        graded.marks(name, part, logs=part == parts[0])
        for name, part in zip(form.rewards, parts, strict=True)
    ]
    weights = list(form.reward_weights)
    if eos_penalty > 0:
        functions.append(graded.eos_penalty(eos_token_ids, special_token_ids))
        weights.append(eos_penalty)
    return functions, weights


class GradedRewards:
    """Rewards that share one grading of each batch, in the format of a template.

    It recognises the last batch by its texts, so the order and number of calls do not matter.
    Without a template nothing is graded, and no completion is ungraded.
    """

    def __init__(self, template: str | None, grader: MathGrader) -> None:
        self._template = template
        self._grader = grader
        self._batch: tuple[list[str], list[str]] | None = None
        self._scores: list[Score] = []
        self._counts: dict[str, int] = {}
        """How the grader's counters have changed during the batch."""

    def marks(self, name: str, part: str, *, logs: bool) -> RewardFunction:
        """1 if `part` of the score is above 0, else 0, None if ungraded; `logs` logs the batch."""

        def mark(
            prompts, completions, completion_ids, answer, log_metric=None, log_extra=None, **_
        ):
            scores = self._graded(completions, answer)
            if logs:
                self._log(log_metric, log_extra)
            return [None if each["reward"] is None else float(each[part] > 0) for each in scores]

        return _named(name, mark)

    def eos_penalty(
        self, eos_token_ids: Collection[int], special_token_ids: Collection[int]
    ) -> RewardFunction:
        """-1 if a completion abuses end-of-sequence tokens, 0 if not, None if ungraded."""
        eos, special = frozenset(eos_token_ids), frozenset(special_token_ids)

        def mark(
            prompts, completions, completion_ids, answer=(), log_metric=None, log_extra=None, **_
        ):
            marks = [-float(abuses_eos(ids, eos, special)) for ids in completion_ids]
            if self._template is None:
                return marks
            pairs = zip(self._graded(completions, answer), marks, strict=True)
            return [None if each["reward"] is None else mark for each, mark in pairs]

        return _named("eos_penalty", mark)

    def _graded(self, completions: Sequence[Any], golds: Sequence[str]) -> list[Score]:
        """The scores of a batch; graded only if it differs from the last batch."""
        batch = ([completion_text(completion) for completion in completions], list(golds))
        if batch != self._batch:
            assert self._template is not None
            before = self._counters()
            self._scores = score_batch(self._template, *batch, grader=self._grader)
            self._counts = {name: n - before[name] for name, n in self._counters().items()}
            self._batch = batch
        return self._scores

    def _counters(self) -> dict[str, int]:
        return {name: getattr(self._grader, name) for name in ("timeouts", "restarts", "ungraded")}

    def _log(self, log_metric: LogMetric | None, log_extra: LogExtra | None) -> None:
        """Log the last batch. A mean without graded completions is not logged."""
        graded = [each for each in self._scores if each["reward"] is not None]
        for name in ("format_reward", "answer_reward"):
            if log_metric is not None and graded:
                log_metric(name, sum(each[name] or 0.0 for each in graded) / len(graded))
            if log_extra is not None:
                log_extra(name, [each[name] for each in self._scores])
        for name, count in self._counts.items():
            if log_metric is not None:
                log_metric(f"grader/{name}", float(count))


def abuses_eos(
    completion_ids: Sequence[int],
    eos_token_ids: Collection[int],
    special_token_ids: Collection[int],
) -> bool:
    """Whether a completion has several end-of-sequence tokens, or no text at all.

    A completion should end with one end-of-sequence token. Two or more at any positions, equal or
    different, are abuse: one of the first runs learned to do this and failed. So is a completion
    that is empty or has special tokens only.
    """
    ends = sum(token in eos_token_ids for token in completion_ids)
    special = {*eos_token_ids, *special_token_ids}
    return ends > 1 or all(token in special for token in completion_ids)


def completion_text(completion: Any) -> str:
    """The text of a completion: the string itself, or the text of the last message in TRL's
    list."""
    if isinstance(completion, str):
        return completion
    content = completion[-1]["content"] if completion else ""
    if isinstance(content, list):  # the parts of a multimodal message
        return "".join(part.get("text", "") for part in content)
    return content or ""


def _named(name: str, function: Callable[..., Any]) -> RewardFunction:
    """The function with the name that TRL logs and that its errors print."""

    @functools.wraps(function)
    def named(*args: Any, **kwargs: Any) -> list[float | None]:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            line, file = line_of(error, None)
            said = REWARD_RAISED.format(name=name, error=one_line(error), line=line, file=file)
            raise RewardError(said) from error

    named.__name__ = name
    return named
