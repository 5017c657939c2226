"""The prompt templates: prompt text, stop strings, rewards; and prompts by a file of the user.

These three belong together: a model that is asked for `<answer>` tags but rewarded for `\\boxed{}`
learns nothing. The texts are files in `prompts/`, and in `prompts/short/` for very small models,
for which the long prompt would cost more than the answer.

In a user's `.txt` file the name of a column in braces is replaced by the row's value; `{{name}}`
stands for `{name}` itself. A `.jinja` file gets the columns as variables, in Jinja's sandbox.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from trl_ablate.errors import ConfigurationError

TemplateName = Literal["r1_zero", "question_only", "last_number", "reasoning_xml", "think_xml"]
PromptStyle = Literal["full", "short"]

Prompt = str | list[dict[str, str]]
Writer = Callable[[Mapping[str, Any]], Prompt]

PROMPT_DIR = Path(__file__).parent
_FIELD = re.compile(r"\{\{(?P<literal>\w+)\}\}|\{(?P<name>[^\W\d]\w*)\}")


@dataclass(frozen=True)
class Template:
    """One prompt with its stop strings and rewards.

    The text of a conversational one is a system prompt and the question a user message (what
    follows an empty line, if that contains `{question}`); else it is the whole prompt.
    """

    conversational: bool
    stop: tuple[str, ...]  # generation ends at one of them, which is kept in the completion
    rewards: Mapping[str, float]  # name, as in `rewards/<name>/mean`, and weight


TEMPLATES = {
    "r1_zero": Template(False, ("</answer>",), {"r1_zero": 1.0}),
    "question_only": Template(False, (), {"question_only": 1.0}),
    "last_number": Template(True, (), {"last_number": 1.0}),
    "reasoning_xml": Template(True, ("</answer>",), {"format": 1.0, "answer": 2.0}),
    "think_xml": Template(True, ("</answer>",), {"format": 1.0, "answer": 2.0}),
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
    get_template(name)  # refuses an unknown one
    if style not in get_args(PromptStyle):
        raise ConfigurationError(
            f"prompt style {style!r} is unknown; choose one of {', '.join(get_args(PromptStyle))}."
        )
    folder = PROMPT_DIR if style == "full" else PROMPT_DIR / style
    return (folder / f"{name}.txt").read_text(encoding="utf-8").removesuffix("\n")


def prompt_writer(
    template: str, style: str, system_prompt: str | None, columns: Collection[str] | None
) -> Writer:
    """The function from a row to TRL's `prompt`: a text, or messages.

    The question is inserted unchanged: braces and backslashes in it have no special meaning.

    Args:
        template: the name of a template, or a file.
        system_prompt: makes messages of the prompt; an empty one leaves the system message out.
            None: a string for a file, and the template's own messages for a template that has some.
        columns: of the data set, which the file may name. None: unknown, so it may name any.
    """
    system = None
    if is_own(template):
        write = _file_writer(template, columns)
    else:
        user = prompt_text(template, style)
        if get_template(template).conversational:
            first, _, last = user.rpartition("\n\n")
            system, user = (first, last) if "{question}" in last else (user, "{question}")

        def write(row: Mapping[str, Any]) -> str:
            return user.replace("{question}", row["question"])

    system = system if system_prompt is None else system_prompt
    if system is None:
        return write
    before = [{"role": "system", "content": system}] if system else []
    return lambda row: [*before, {"role": "user", "content": write(row)}]


def render(template: str, question: str, style: str = "full") -> Prompt:
    """The prompt of one question by one of our templates."""
    return prompt_writer(template, style, None, None)({"question": question})


def _file_writer(template: str, columns: Collection[str] | None) -> Callable[..., str]:
    """The text of a row by a file of the user."""
    text = _read(template)
    if template.endswith(".jinja"):
        return _jinja_writer(template, text, columns)
    named = [found["name"] for found in _FIELD.finditer(text) if found["name"]]
    if other := [name for name in columns or () if f"{{{name}}}" in text and name not in named]:
        raise ConfigurationError(
            f"template {template} names the column '{other[0]}', which is not one word of letters, "
            "digits and _; rename it, or write the template as a .jinja file"
        )
    _check_fields(template, named, columns)

    def write(row: Mapping[str, Any]) -> str:
        if empty := [name for name in named if row[name] is None]:
            raise ConfigurationError(
                f"template {template} names the column '{empty[0]}', which is empty for the "
                f"question {str(row['question'])[:80]!r}; fill it, or leave such rows out "
                "with filter"
            )
        values = {name: str(row[name]) for name in named}
        return _FIELD.sub(lambda found: values.get(found["name"], f"{{{found['literal']}}}"), text)

    return write


def _jinja_writer(template: str, text: str, columns: Collection[str] | None) -> Callable[..., str]:
    from jinja2 import StrictUndefined, TemplateError, meta
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )
    try:
        named = meta.find_undeclared_variables(environment.parse(text))
        compiled = environment.from_string(text)
    except TemplateError as error:
        raise ConfigurationError(
            f"template {template} is not a Jinja template ({error}); correct it"
        ) from error
    _check_fields(template, sorted(named), columns)

    def write(row: Mapping[str, Any]) -> str:
        try:
            return compiled.render(row)
        except Exception as error:  # of the template's own code
            raise ConfigurationError(
                f"template {template} cannot write the prompt of {row.get('question')!r:.80} "
                f"({type(error).__name__}: {error}); correct it"
            ) from error

    return write


def _read(template: str) -> str:
    try:
        return Path(template).read_text(encoding="utf-8-sig").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"template {template} is not UTF-8 text (byte {error.start}); save it as UTF-8"
        ) from error
    except FileNotFoundError as error:
        raise ConfigurationError(
            f"there is no template file {template}; create it, or correct the path, which is "
            "relative to the recipe"
        ) from error
    except OSError as error:
        raise ConfigurationError(
            f"template {template} cannot be read: {error.strerror}; give another file"
        ) from error


def _check_fields(template: str, named: Sequence[str], columns: Collection[str] | None) -> None:
    """Refuse a file that shows no question, or names a column that does not exist."""
    unknown = [name for name in named if columns is not None and name not in columns]
    if columns is not None and unknown:
        literal = "" if template.endswith(".jinja") else f", or write {{{{{unknown[0]}}}}} for text"
        raise ConfigurationError(
            f"template {template} names the column '{unknown[0]}', which the data do not have; "
            f"they have {', '.join(columns)}; correct the name{literal}"
        )
    if "question" not in named:
        raise ConfigurationError(
            f"template {template} does not contain {{question}}, so that all prompts would be the "
            "same; add it where the question goes"
        )
