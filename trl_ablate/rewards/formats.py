"""Completions in two XML blocks (`reasoning_xml`, `think_xml`), and end-of-sequence hacking."""

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
    r"""`<tag>…</tag>\n<answer>…</answer>`, with nothing before and nothing after.

    The blocks may span lines. Format and answer are marked apart, so that a model is paid for
    either before it manages both: without the format, the answer is what stands in the last
    `<answer>…</answer>` that closes. Without such a pair there is no answer; a bare "42" is none.
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
    """Whether a completion repeats or stacks end-of-sequence tokens, or says nothing at all.

    One end-of-sequence token is how a completion should end. Two or more, of the same or of
    different kinds, wherever they stand, are the hack that one of the first runs fell to, and so
    is a completion of special tokens only. An empty completion says nothing either.
    """
    ends = sum(token in eos_token_ids for token in completion_ids)
    special = {*eos_token_ids, *special_token_ids}
    return ends > 1 or all(token in special for token in completion_ids)
