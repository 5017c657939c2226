"""The prompt templates: prompt text, stop strings, and reward functions.

These three belong together: a model that is asked for `<answer>` tags but rewarded for `\\boxed{}`
learns nothing. Code that overrides one part can compare with `TEMPLATES[name]` and warn about the
others.

The texts are files in `prompts/`, and in `prompts/short/` for very small models, for which the
long prompt would cost more than the answer. This module imports neither torch nor trl.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, get_args

from trl_ablate.errors import ConfigurationError

TemplateName = Literal["r1_zero", "question_only", "last_number", "reasoning_xml", "think_xml"]
PromptStyle = Literal["full", "short"]

PROMPT_DIR = Path(__file__).parent


@dataclass(frozen=True)
class Template:
    """One prompt with its stop strings and rewards.

    Attributes:
        conversational: if True, the text is a system prompt and the question a user message, and
            the model's chat template renders them; what follows an empty line is the user message,
            if it contains `{question}`. If False, the text is the whole prompt and contains it.
        stop: generation ends at one of these strings, which is kept in the completion.
        rewards: the names of the reward functions, as in `rewards/<name>/mean`.
        reward_weights: the weights of the reward functions, in the same order.
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
        Template("last_number", True, (), ("last_number",), (1.0,)),
        Template("reasoning_xml", True, ("</answer>",), ("format", "answer"), (1.0, 2.0)),
        Template("think_xml", True, ("</answer>",), ("format", "answer"), (1.0, 2.0)),
    )
}


OWN_SUFFIXES = (".txt", ".jinja")


def is_own(template: str) -> bool:
    """Whether a template is a file of the user, and not one of `TEMPLATES`."""
    return template.endswith(OWN_SUFFIXES)


def get_template(name: str) -> Template:
    """The template with this name; a `ConfigurationError` lists the names if it is unknown."""
    if name not in TEMPLATES:
        raise ConfigurationError(
            f"template={name[:80]!r} is unknown; choose one of {', '.join(TEMPLATES)}, "
            "or give a file of your own that ends in .txt or .jinja."
        )
    return TEMPLATES[name]


@cache
def prompt_text(name: str, style: str = "full") -> str:
    """The text of a template's prompt, without a newline at its end."""
    template = get_template(name)
    if style not in get_args(PromptStyle):
        raise ConfigurationError(
            f"prompt style {style!r} is unknown; choose one of {', '.join(get_args(PromptStyle))}."
        )
    folder = PROMPT_DIR if style == "full" else PROMPT_DIR / style
    return (folder / f"{template.name}.txt").read_text(encoding="utf-8").removesuffix("\n")


def render(template_name: str, question: str, style: str = "full") -> str | list[dict[str, str]]:
    """TRL's `prompt` column for one question: a string, or messages if it is conversational.

    The question is inserted unchanged: braces and backslashes in it have no special meaning.
    """
    text = prompt_text(template_name, style)
    if not get_template(template_name).conversational:
        return text.replace("{question}", question)
    system, user = system_and_user(text)
    content = user.replace("{question}", question)
    return [{"role": "system", "content": system}, {"role": "user", "content": content}]


def system_and_user(text: str) -> tuple[str, str]:
    """The two messages of a conversational template's text; `{question}` is in the second one."""
    system, _, user = text.rpartition("\n\n")
    return (system, user) if "{question}" in user else (text, "{question}")
