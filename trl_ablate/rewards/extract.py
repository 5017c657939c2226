r"""The final answer of a completion, in the format of its template.

Pure functions, which never raise, and take time linear in the length of the text.
"""

import re
from typing import NamedTuple

from trl_ablate.rewards.grading.latex import last_boxed

_XML = {
    tag: re.compile(
        rf"<{tag}>(?:(?!</{tag}>).)*</{tag}>\n<answer>((?:(?!</answer>).)*)</answer>\n?",
        re.DOTALL,
    )
    for tag in ("reasoning", "think")
}
_NUMBER = re.compile(
    r"(?:(?<![\w)])[-\u2212](?:\\?[$£€])?)?"
    r"(?:(?<![\^\d])\d+(?:(?:,|\{,\}|,\\!)\d{3})*(?:\.\d+)?|(?<![\w.)])\.\d+)"
)
_NO_DIGITS = str.maketrans({"\u2212": "-"} | dict.fromkeys(",{}!\\$£€"))


class Extracted(NamedTuple):
    """Whether a completion has the format that its template asks for, and the text to compare with
    the reference answer; None if there is no answer."""

    well_formed: bool
    answer: str | None


def extract(template: str, completion: str) -> Extracted:
    """The answer of a completion in a template's format."""
    if template == "r1_zero":
        return _r1_zero(completion)
    if template.endswith("_xml"):
        return _xml(completion, template.removesuffix("_xml"))
    if template == "question_only":
        answer = last_boxed(completion)  # one that was cut off at the length limit is ignored
    else:  # the last number: usual for models that were taught no format
        numbers = _NUMBER.findall(completion)
        answer = numbers[-1].translate(_NO_DIGITS) if numbers else None
    return Extracted(answer is not None, answer)


def _unboxed(answer: str) -> str | None:
    r"""The answer without the `\boxed{}` around it (or around its last part); None if no box
    closes, as its content is unknown."""
    answer = answer.strip()
    return last_boxed(answer) if r"\boxed" in answer else answer


def _r1_zero(completion: str) -> Extracted:
    """`… </think> <answer> … </answer>`, for a prompt that ends with `<think>`.

    Well formed: each of the three tags occurs exactly once, in this order, with exactly one space
    between the first two. Text after `</answer>` is ignored; usually generation stops there. A
    completion that is not well formed has no answer, so the reward is all or nothing.
    """
    seam, end = "</think> <answer>", completion.find("</answer>")
    start = completion.find(seam)
    once = all(completion.count(tag) == 1 for tag in (*seam.split(), "</answer>"))
    if not once or start < 0 or end < start:
        return Extracted(False, None)
    return Extracted(True, _unboxed(completion[start + len(seam) : end]))


def _xml(completion: str, tag: str) -> Extracted:
    r"""`<tag>…</tag>\n<answer>…</answer>`, with no text before or after.

    Format and answer are rewarded separately, so that a model can earn one of them before it learns
    both: if the format is wrong, the answer is the content of the last `<answer>…</answer>` pair.
    Without such a pair there is no answer, even if the completion is just "42".
    """
    if whole := _XML[tag].fullmatch(completion):
        return Extracted(True, _unboxed(whole.group(1)))
    end = completion.rfind("</answer>")
    start = completion.rfind("<answer>", 0, max(end, 0))
    if end < 0 or start < 0:
        return Extracted(False, None)
    inside = completion[start + len("<answer>") : end].split("</answer>")[0]
    return Extracted(False, _unboxed(inside))
