r"""Finding the final answer in a completion that is plain text: `r1_zero` and `question_only`.

Pure functions from a completion to an `Extracted`. None of them raises, whatever the text, and
each takes time linear in its length.
"""

from dataclasses import dataclass

from trl_ablate.rewards.grading.latex import last_boxed


@dataclass(frozen=True)
class Extracted:
    """What a completion holds.

    Attributes:
        well_formed: it keeps to the format its template asks for.
        answer: the text to compare with the reference answer; None if there is nothing to compare.
    """

    well_formed: bool
    answer: str | None


def unbox(answer: str) -> str | None:
    r"""An answer without the `\boxed{}` around it (or around its last part).

    None if there is a box but none that closes: what it should hold is anybody's guess.
    """
    answer = answer.strip()
    return last_boxed(answer) if r"\boxed" in answer else answer


def extract_r1_zero(completion: str) -> Extracted:
    """`… </think> <answer> … </answer>`, for a prompt that ends with `<think>`.

    Well formed: each of the three tags stands there exactly once, in that order, and one space,
    nothing else, lies between the first two. Text after `</answer>` is ignored; usually generation
    stops there. Without the format there is no answer either, so the reward is all or nothing.
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
    r"""The last `\boxed{}` whose braces close. A box cut off at the length limit is none."""
    answer = last_boxed(completion)
    return Extracted(answer is not None, answer)
