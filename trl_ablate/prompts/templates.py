"""The prompt templates: what the model reads, where it stops, and which rewards grade it.

A template is one unit because its parts only make sense together: a prompt that asks for
`<answer>` tags, graded by a reward that looks for `\\boxed{}`, trains nothing. Whoever overrides
one part can compare with `TEMPLATES[name]` and warn about the other.

The texts lie in `prompts/` (and `prompts/short/`, for models so small that the long prompt would
cost more than the answer), one file each. Nothing here imports torch or trl.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, get_args

from trl_ablate.errors import ConfigurationError

TemplateName = Literal["r1_zero", "question_only", "reasoning_xml", "think_xml"]
PromptStyle = Literal["full", "short"]

PROMPT_DIR = Path(__file__).parent


@dataclass(frozen=True)
class Template:
    """One prompt with the stop strings and the rewards that belong to it.

    Attributes:
        conversational: the text is a system prompt and the question a user message, rendered by
            the model's chat template; otherwise the text is the whole prompt, with `{question}`.
        stop: generation ends with one of these, which stays in the completion.
        rewards: the names of the reward functions, as they appear in `rewards/<name>/mean`.
        reward_weights: what a full mark of each is worth, in the same order.
    """

    name: str
    conversational: bool
    stop: tuple[str, ...]
    rewards: tuple[str, ...]
    reward_weights: tuple[float, ...]


TEMPLATES: dict[str, Template] = {
    template.name: template
    for template in (
        Template("r1_zero", False, ("</answer>",), ("r1_zero",), (1.0,)),
        Template("question_only", False, (), ("question_only",), (1.0,)),
        Template("reasoning_xml", True, ("</answer>",), ("format", "answer"), (1.0, 2.0)),
        Template("think_xml", True, ("</answer>",), ("format", "answer"), (1.0, 2.0)),
    )
}


def get_template(name: str) -> Template:
    """The template of that name, or a `ConfigurationError` that lists the names there are."""
    if name not in TEMPLATES:
        raise ConfigurationError(
            f"template={name!r} is not known; choose one of {', '.join(TEMPLATES)}."
        )
    return TEMPLATES[name]


@cache
def prompt_text(name: str, style: str = "full") -> str:
    """The text of a template's prompt, without the newline an editor may have put at its end."""
    template = get_template(name)
    if style not in get_args(PromptStyle):
        raise ConfigurationError(
            f"prompt style {style!r} is not known; choose one of "
            f"{', '.join(get_args(PromptStyle))}."
        )
    folder = PROMPT_DIR if style == "full" else PROMPT_DIR / style
    return (folder / f"{template.name}.txt").read_text(encoding="utf-8").removesuffix("\n")


def render(template_name: str, question: str, style: str = "full") -> str | list[dict[str, str]]:
    """TRL's `prompt` column for one question: a string, or messages if it is conversational.

    The question is put in as it stands: braces and backslashes in it mean nothing here.
    """
    text = prompt_text(template_name, style)
    if get_template(template_name).conversational:
        return [{"role": "system", "content": text}, {"role": "user", "content": question}]
    return text.replace("{question}", question)
