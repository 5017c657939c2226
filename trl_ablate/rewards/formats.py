"""Completions in two XML blocks (`reasoning_xml`, `think_xml`), and abuse of end-of-sequence
tokens."""

import re
from collections.abc import Collection, Sequence

from trl_ablate.rewards.answers import Extracted, unbox

_PATTERNS = {
    tag: re.compile(
        rf"<{tag}>(?:(?!</{tag}>).)*</{tag}>\n<answer>((?:(?!</answer>).)*)</answer>\n?",
        re.DOTALL,
    )
    for tag in ("reasoning", "think")
}


def extract_xml(completion: str, tag: str) -> Extracted:
    r"""`<tag>…</tag>\n<answer>…</answer>`, with no text before or after.

    The blocks may span lines. Format and answer are rewarded separately, so that a model can earn
    one of them before it learns both: if the format is wrong, the answer is the content of the
    last `<answer>…</answer>` pair. Without such a pair there is no answer, even if the completion
    is just "42".
    """
    whole = _PATTERNS[tag].fullmatch(completion)
    if whole is not None:
        return Extracted(True, unbox(whole.group(1)))
    end = completion.rfind("</answer>")
    start = completion.rfind("<answer>", 0, max(end, 0))
    if end < 0 or start < 0:
        return Extracted(False, None)
    inside = completion[start + len("<answer>") : end].split("</answer>")[0]
    return Extracted(False, unbox(inside))


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
