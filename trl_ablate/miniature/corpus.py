"""The training texts of a world's models: its solutions, in the format that a template asks for, or
in another one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from trl_ablate.miniature.world import World
from trl_ablate.prompts.templates import TemplateName, prompt_text, render

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

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
    template: TemplateName
    question: str
    completion: str


def in_format(template: TemplateName, steps: str, answer: int) -> str:
    opening, ending = OPENINGS[template], ENDINGS[template].format(answer=answer)
    return opening + (steps.lstrip() if opening else steps) + ending


def out_of_format(rng: random.Random, template: TemplateName, steps: str, answer: int) -> str:
    """A completion with the same answer in a random format that the template does not ask for."""
    strays = [ending for ending in STRAY_ENDINGS if ending != ENDINGS[template]]
    return steps + rng.choice(strays).format(answer=answer)


def text(rng: random.Random, template: TemplateName, world: World) -> Text:
    """A random text; the world's shares decide whether it has the format that is asked for."""
    question, steps, answer = world.task.attempt(rng)
    if rng.random() < world.format_shares[template]:
        return Text(template, question, in_format(template, steps, answer))
    return Text(template, question, out_of_format(rng, template, steps, answer))


def corpus(world: World, seed: int) -> Iterator[Text]:
    """An endless stream of texts about the training problems."""
    rng = random.Random(seed)
    while True:
        yield text(rng, _template(rng, world), world)


def right_texts(world: World, seed: int) -> Iterator[Text]:
    """An endless stream of right solutions, each in the format that its template asks for."""
    rng = random.Random(seed)
    while True:
        template = _template(rng, world)
        question, steps, answer = world.task.right(rng)
        yield Text(template, question, in_format(template, steps, answer))


def _template(rng: random.Random, world: World) -> TemplateName:
    (template,) = rng.choices(list(world.template_shares), list(world.template_shares.values()))
    return template


def right_solutions(world: World, seed: int) -> Iterator[Text]:
    """An endless stream of right solutions in the r1_zero format, for the SFT stages."""
    rng = random.Random(seed)
    while True:
        question, steps, answer = world.task.right(rng)
        yield Text("r1_zero", question, in_format("r1_zero", steps, answer))


def prompt(text: Text, tokenizer: PreTrainedTokenizerFast) -> str:
    """The text before the completion, as the model gets it."""
    asked = render(text.template, text.question, "short")
    if isinstance(asked, str):
        return asked
    return str(tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True))


def tokenizer_texts(world: World, size: int = 1000) -> Iterator[str]:
    """The training texts of the tokenizer: the templates' prompts and a part of the corpus."""
    for text in islice(corpus(world, seed=1), size):
        yield prompt_text(text.template, "short").replace("{question}", text.question)
        yield text.completion
