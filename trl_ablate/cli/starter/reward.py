"""The rewards of this task. Each gets lists: completions, and every column of the data by its name.

Return one number for each completion, or None for one that cannot be graded (it is then left out).
A function takes only the arguments that it needs; `**kwargs` is for the others.
"""

import re


def correct(completions, answer, **kwargs):
    """1 if the text between the answer tags is the row's answer, else 0."""
    return [float(given(text) == wanted) for text, wanted in zip(completions, answer, strict=True)]


def brief(completions, **kwargs):
    """1 up to 40 characters, falling to 0 at 200; 0 without an answer."""
    return [
        min(1.0, max(0.0, (200 - len(text)) / 160)) if given(text) is not None else 0.0
        for text in completions
    ]


def given(text):
    """The text between the answer tags; None if there are none."""
    found = re.search(r"<answer>\s*(.*?)\s*</answer>", text, re.DOTALL)
    return found[1] if found else None
