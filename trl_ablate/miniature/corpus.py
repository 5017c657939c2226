"""The training texts of the miniature's models: written sums in several formats, half of them
wrong.

A text is a question in a template, and a completion. Most completions compute the sum digit by
digit, ones first; every second one of them has an error that also changes the answer. A few only
guess, with a quarter of the tokens. Each gives its answer in one of several formats; the template
asks for one of them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from trl_ablate.miniature.sums import LARGEST, SMALLEST, operands, question
from trl_ablate.prompts.templates import TemplateName, prompt_text, render

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

TEMPLATE_SHARES: dict[TemplateName, float] = {
    "r1_zero": 0.4,
    "question_only": 0.3,
    "reasoning_xml": 0.15,
    "think_xml": 0.15,
}
RIGHT_FORMAT_SHARES: dict[TemplateName, float] = {
    "r1_zero": 0.08,
    "question_only": 0.85,
    "reasoning_xml": 0.25,
    "think_xml": 0.25,
}
SLIP_SHARE = 0.5
GUESS_SHARE = 0.1

OPENINGS: dict[TemplateName, str] = {
    "r1_zero": "",
    "question_only": "",
    "reasoning_xml": "<reasoning>",
    "think_xml": "<think>",
}
ENDINGS: dict[TemplateName, str] = {
    "r1_zero": " </think> <answer>{answer}</answer>",
    "question_only": " \\boxed{{{answer}}}",
    "reasoning_xml": "</reasoning>\n<answer>{answer}</answer>",
    "think_xml": "</think>\n<answer>{answer}</answer>",
}
STRAY_ENDINGS = (
    " {answer}",
    " <answer>{answer}</answer>",
    " </think> {answer}",
    " \\boxed{{{answer}}}",
)


class Text(NamedTuple):
    """A question in a template, and a completion."""

    template: TemplateName
    question: str
    completion: str


def work_out(a: int, b: int, ones_slip: int = 0, tens_slip: int = 0) -> tuple[str, int]:
    """The written steps of the sum and the resulting answer, both with the given errors."""
    ones = a % 10 + b % 10 + ones_slip
    carry = ones // 10
    tens = a // 10 + b // 10 + carry + tens_slip
    carried = "+1" if carry else ""
    steps = f" {a % 10}+{b % 10}={ones}, {a // 10}+{b // 10}{carried}={tens}"
    return steps, tens * 10 + ones % 10


def in_format(template: TemplateName, steps: str, answer: int) -> str:
    """The completion that the template asks for."""
    opening, ending = OPENINGS[template], ENDINGS[template].format(answer=answer)
    return opening + (steps.lstrip() if opening else steps) + ending


def out_of_format(rng: random.Random, template: TemplateName, steps: str, answer: int) -> str:
    """A completion with the same answer in a random format that the template does not ask for."""
    strays = [ending for ending in STRAY_ENDINGS if ending != ENDINGS[template]]
    return steps + rng.choice(strays).format(answer=answer)


def text(rng: random.Random, template: TemplateName, a: int, b: int) -> Text:
    """A random text; the shares above decide whether it is computed or guessed, right or wrong."""
    slip = rng.choice((-2, -1, 1, 2)) if rng.random() < SLIP_SHARE else 0
    if rng.random() < GUESS_SHARE:
        steps, answer = "", rng.randint(2 * SMALLEST, 2 * LARGEST)
    elif rng.random() < 0.5:
        steps, answer = work_out(a, b, tens_slip=slip)
    else:
        ones = a % 10 + b % 10
        steps, answer = work_out(a, b, ones_slip=slip if 0 <= ones + slip < 20 else -slip)
    if rng.random() < RIGHT_FORMAT_SHARES[template]:
        return Text(template, question(a, b), in_format(template, steps, answer))
    return Text(template, question(a, b), out_of_format(rng, template, steps, answer))


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
        yield Text("r1_zero", question(a, b), in_format("r1_zero", *work_out(a, b)))


def prompt(text: Text, tokenizer: PreTrainedTokenizerFast) -> str:
    """The text before the completion, as the model gets it."""
    asked = render(text.template, text.question, "short")
    if isinstance(asked, str):
        return asked
    return str(tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True))


def tokenizer_texts(size: int = 1000) -> Iterator[str]:
    """The training texts of the tokenizer: the templates' prompts and a part of the corpus."""
    for text in islice(corpus(seed=1), size):
        yield prompt_text(text.template, "short").replace("{question}", text.question)
        yield text.completion
