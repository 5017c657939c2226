"""From completions to rewards. Pure functions, except that the grader compares the answers."""

import atexit
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypedDict

from trl_ablate.prompts.templates import get_template
from trl_ablate.rewards.answers import Extracted, extract_question_only, extract_r1_zero
from trl_ablate.rewards.formats import extract_xml
from trl_ablate.rewards.grading.grader import MathGrader


class Score(TypedDict):
    """Rewards of one completion. `answer_reward` and `reward` are None if it was not graded."""

    reward: float | None
    format_reward: float
    answer_reward: float | None


_EXTRACT: dict[str, Callable[[str], Extracted]] = {
    "r1_zero": extract_r1_zero,
    "question_only": extract_question_only,
    "reasoning_xml": partial(extract_xml, tag="reasoning"),
    "think_xml": partial(extract_xml, tag="think"),
}


def extract(template: str, completion: str) -> Extracted:
    """The answer of a completion in a template's format."""
    return _EXTRACT[template](completion)


_default_lock = threading.Lock()
_default: list[MathGrader] = []


def default_grader() -> MathGrader:
    """The grader for calls that pass none: created at the first call, closed at exit."""
    with _default_lock:
        if not _default:
            _default.append(MathGrader())
            atexit.register(_default[0].close)
        return _default[0]


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

    `r1_zero` and `question_only`: format and answer are 0 or 1, and the reward is their product.
    XML templates: the reward is the sum of format (0 or 1) and answer (0 or 2, the template's
    weights). So a well-formed wrong answer gets 1, and a right answer in a wrong format gets 2.
    Without a verdict from the grader, `answer_reward` and `reward` are None for any format.
    """
    weights = get_template(template).reward_weights
    extracted = [extract(template, completion) for completion in completions]
    verdicts = (grader or default_grader()).grade([each.answer for each in extracted], golds)
    return [
        _score(each.well_formed, verdict, weights)
        for each, verdict in zip(extracted, verdicts, strict=True)
    ]


def _score(well_formed: bool, right: bool | None, weights: tuple[float, ...]) -> Score:
    apart = len(weights) == 2
    format_worth, answer_worth = weights if apart else (1.0, 1.0)
    format_reward = format_worth * well_formed
    if right is None:
        return Score(reward=None, format_reward=format_reward, answer_reward=None)
    answer_reward = answer_worth * right
    together = format_reward + answer_reward if apart else format_reward * answer_reward
    return Score(reward=together, format_reward=format_reward, answer_reward=answer_reward)
