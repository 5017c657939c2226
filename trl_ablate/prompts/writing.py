"""From a row of the data set to its prompt, by a template of ours or by a file of the user.

In a `.txt` file `{question}` and the name of any other column in braces are replaced by the row's
value; `{{name}}` stands for `{name}` itself, and braces around anything but a name are text. A
`.jinja` file gets the columns as variables, in Jinja's sandbox.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from trl_ablate.errors import ConfigurationError
from trl_ablate.prompts.templates import (
    get_template,
    is_own,
    prompt_text,
    render,
    system_and_user,
)

Prompt = str | list[dict[str, str]]
Writer = Callable[[Mapping[str, Any]], Prompt]

_FIELD = re.compile(r"\{\{(?P<literal>\w+)\}\}|\{(?P<name>[A-Za-z_]\w*)\}")


def prompt_writer(
    template: str, style: str, system_prompt: str | None, columns: Collection[str] | None
) -> Writer:
    """The function from a row to TRL's `prompt`.

    Args:
        template: the name of a template, or a file.
        system_prompt: makes messages of the prompt; an empty one leaves the system message out.
            None: a string for a file, and the template's own messages for a template that has some.
        columns: of the data set, which the file may name. None: unknown, so it may name any.
    """
    text = _text_writer(template, style, columns)
    if system_prompt is None:
        if is_own(template):
            return text
        return lambda row: render(template, row["question"], style)
    system = [{"role": "system", "content": system_prompt}] if system_prompt else []
    return lambda row: [*system, {"role": "user", "content": text(row)}]


def _text_writer(
    template: str, style: str, columns: Collection[str] | None
) -> Callable[[Mapping[str, Any]], str]:
    """The text of a row; of a template of ours with its own messages, the user's message."""
    if not is_own(template):
        ours = get_template(template)
        text = prompt_text(template, style)
        text = system_and_user(text)[1] if ours.conversational else text
        return lambda row: text.replace("{question}", row["question"])
    text = _read(template)
    if template.endswith(".jinja"):
        return _jinja_writer(template, text, columns)
    named = [found["name"] for found in _FIELD.finditer(text) if found["name"]]
    _check_fields(template, named, columns)

    def filled(found: re.Match[str], row: Mapping[str, Any]) -> str:
        if found["literal"]:
            return f"{{{found['literal']}}}"
        value = row[found["name"]]
        if value is None:
            raise ConfigurationError(
                f"template {template} names the column '{found['name']}', which is empty for the "
                f"question {str(row['question'])[:80]!r}; fill it, or leave such rows out "
                "with filter"
            )
        return str(value)

    return lambda row: _FIELD.sub(lambda found: filled(found, row), text)


def _jinja_writer(
    template: str, text: str, columns: Collection[str] | None
) -> Callable[[Mapping[str, Any]], str]:
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
            return compiled.render(**row)
        except Exception as error:  # of the template's own code
            raise ConfigurationError(
                f"template {template} cannot write the prompt of {row.get('question')!r:.80} "
                f"({type(error).__name__}: {error}); correct it"
            ) from error

    return write


def _read(template: str) -> str:
    try:
        return Path(template).read_text(encoding="utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"template {template} is not UTF-8 text (byte {error.start}); save it as UTF-8"
        ) from error
    except OSError as error:
        raise ConfigurationError(
            f"there is no template file {template}; create it, or correct the path, which is "
            "relative to the recipe"
            if isinstance(error, FileNotFoundError)
            else f"template {template} cannot be read: {error.strerror}; give another file"
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
