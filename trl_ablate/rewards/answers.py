r"""Find the final answer in a plain-text completion (templates `r1_zero` and `question_only`).

Pure functions from a completion to an `Extracted`. They never raise, and their time is linear in
the length of the text.
"""

from dataclasses import dataclass

from trl_ablate.rewards.grading.latex import last_boxed


@dataclass(frozen=True)
class Extracted:
    """The format check and the answer of a completion.

    Attributes:
        well_formed: whether the completion has the format that its template asks for.
        answer: the text to compare with the reference answer; None if there is no answer.
    """

    well_formed: bool
    answer: str | None


def unbox(answer: str) -> str | None:
    r"""The answer without the `\boxed{}` around it (or around its last part).

    None if the answer has a `\boxed{` but no box whose braces close, as its content is unknown.
    """
    answer = answer.strip()
    return last_boxed(answer) if r"\boxed" in answer else answer


def extract_r1_zero(completion: str) -> Extracted:
    """`… </think> <answer> … </answer>`, for a prompt that ends with `<think>`.

    Well formed: each of the three tags occurs exactly once, in this order, with exactly one space
    between the first two. Text after `</answer>` is ignored; usually generation stops there. A
    completion that is not well formed has no answer, so the reward is all or nothing.
    """
    closing, opening, end = "</think>", "<answer>", "</answer>"
    seam = f"{closing} {opening}"
    start = completion.find(seam)
    once = all(completion.count(tag) == 1 for tag in (closing, opening, end))
    if not once or start < 0 or completion.find(end) < start:
        return Extracted(False, None)
    inside = completion[start + len(seam) : completion.find(end)]
    return Extracted(True, unbox(inside))


def extract_question_only(completion: str) -> Extracted:
    r"""The last `\boxed{}` whose braces close. A box cut off at the length limit is ignored."""
    answer = last_boxed(completion)
    return Extracted(answer is not None, answer)
