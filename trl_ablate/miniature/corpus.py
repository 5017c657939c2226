"""What the miniature's base model reads: solutions in many styles, half of them wrong.

A text is a prompt and a completion. The completion writes the sum out digit by digit, now and
then with a slip that is carried through to the answer, or blurts the answer out without working;
then it states the answer in one of several styles, of which the prompt's own is only one.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from trl_ablate.miniature.sums import operands, question
from trl_ablate.templates import TemplateName, prompt_text, render

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

TEMPLATE_SHARES: dict[TemplateName, float] = {
    "r1_zero": 0.4,
    "question_only": 0.3,
    "reasoning_xml": 0.15,
    "think_xml": 0.15,
}
RIGHT_FORMAT_SHARE: dict[TemplateName, float] = {
    "r1_zero": 0.15,
    "question_only": 0.85,
    "reasoning_xml": 0.25,
    "think_xml": 0.25,
}
RIGHT_WORKING_SHARE = 0.5
BLURT_SHARE = 0.15


class Text(NamedTuple):
    """A prompt (a string, or a system text and a question) and what may follow it."""

    template: TemplateName
    question: str
    completion: str


def working(a: int, b: int, slip: int = 0, slip_in_tens: bool = False) -> tuple[str, int]:
    """The sum written out, ones first, and the answer it leads to.

    `slip` is added to what the ones (or the tens) come to; the rest follows from it correctly.
    """
    ones = a % 10 + b % 10 + (0 if slip_in_tens else slip)
    carry = ones // 10
    tens = a // 10 + b // 10 + carry + (slip if slip_in_tens else 0)
    carried = "+1" if carry else ""
    steps = f"{a % 10}+{b % 10}={ones}, {a // 10}+{b // 10}{carried}={tens}"
    return steps, tens * 10 + ones % 10


def right_format(template: TemplateName, steps: str, answer: int) -> str:
    """The completion that the template's format reward accepts."""
    if template == "r1_zero":
        return f" {steps} </think> <answer>{answer}</answer>"
    if template == "question_only":
        return f" {steps} \\boxed{{{answer}}}"
    tag = "reasoning" if template == "reasoning_xml" else "think"
    return f"<{tag}>{steps}</{tag}>\n<answer>{answer}</answer>"


def other_formats(template: TemplateName, steps: str, answer: int) -> list[str]:
    """Completions that say the same and that the format reward refuses."""
    lead = " " if template in ("r1_zero", "question_only") else ""
    close = " </think>" if template in ("r1_zero", "question_only") else ""
    return [
        f"{lead}{steps}, {answer}",
        f"{lead}{steps} </think> {answer}",
        f"{lead}{steps} <answer>{answer}</answer>",
        f"{lead}{steps} \\boxed{{{answer}}}" if template != "question_only" else
        f"{lead}{steps}{close} <answer>{answer}</answer>",
    ]


def text(rng: random.Random, template: TemplateName, a: int, b: int) -> Text:
    slip, slip_in_tens = 0, rng.random() < 0.5
    if rng.random() >= RIGHT_WORKING_SHARE:
        slip = rng.choice((-2, -1, 1, 2))
        ones = a % 10 + b % 10
        if not slip_in_tens and not 0 <= ones + slip <= 18:
            slip = -slip
    steps, answer = working(a, b, slip, slip_in_tens)
    if rng.random() < RIGHT_FORMAT_SHARE[template]:
        completion = right_format(template, steps, answer)
    else:
        completion = rng.choice(other_formats(template, steps, answer))
    return Text(template, question(a, b), completion)


def corpus(seed: int) -> Iterator[Text]:
    """An endless stream of texts about the training problems."""
    rng = random.Random(seed)
    pairs = operands("train")
    while True:
        (template,) = rng.choices(list(TEMPLATE_SHARES), list(TEMPLATE_SHARES.values()))
        yield text(rng, template, *rng.choice(pairs))



def right_solutions(seed: int) -> Iterator[Text]:
    """An endless stream of right solutions in the r1_zero format, for the SFT stages."""
    rng = random.Random(seed)
    pairs = operands("train")
    while True:
        a, b = rng.choice(pairs)
        yield Text("r1_zero", question(a, b), right_format("r1_zero", *working(a, b)))


def prompt(text: Text, tokenizer: PreTrainedTokenizerFast) -> str:
    """What precedes the completion, as a model is given it."""
    asked = render(text.template, text.question, "short")
    if isinstance(asked, str):
        return asked
    return str(tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True))


def tokenizer_texts(size: int = 1000) -> Iterator[str]:
    """What the tokenizer is trained on: the templates' own words and a piece of the corpus."""
    for text in islice(corpus(seed=1), size):
        yield prompt_text(text.template, "short").replace("{question}", text.question)
        yield text.completion
