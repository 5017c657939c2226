"""The question of a row: which of its columns are the question, the answer and the prompt."""

import re
from typing import Any, NamedTuple

import numpy as np

from trl_ablate.data.row_files import Row
from trl_ablate.rewards.grading.latex import last_boxed
from trl_ablate.rewards.own.calling import FROM_TRAINER, PER_ROW

_BARE_BOX = re.compile(r"\\(?:boxed|fbox) *(?!\{)([^\s$.,]+)")
IMAGES = ("image", "images")
"""Columns that TRL passes to the model."""


class BadRowError(ValueError):
    """A row cannot be used; the message gives the reason."""


class Source(NamedTuple):
    """A dataset, and where its rows have their parts."""

    hub_id: str  # or the path of a file or folder
    config: str | None = None
    question: str | None = None  # None: `question` or `problem`
    answer: str | None = None  # None: `answer` or `solution`
    prompt: str | None = None  # the whole prompt; then a row needs no question
    marker: str | None = None  # an answer without it ends before its result
    needs_answers: bool = True  # if not, an answer is passed on as it is


def to_question(row: Row, source: Source) -> dict[str, Any]:
    """The row with its question and answer, level and subject as text, and all other columns.

    Where the row brings its whole prompt, the level is a column like the others.
    """
    if row.defect is not None:
        raise BadRowError(row.defect)
    values, found = row.values, {}
    _, _, question, answer, prompt, marker, needs_answers = source
    questions = (question,) if question else ("question", "problem")
    if prompt is not None:
        found["prompt"] = _prompt(values, prompt)
    if prompt is None or any(isinstance(values.get(one), str) for one in questions):
        found["question"] = _text(values, questions)[1]
    if needs_answers:
        found["answer"] = _gold(values, (answer,) if answer else ("answer", "solution"), marker)
    elif answer is not None:
        if answer not in values:
            raise BadRowError(_no_column(values, answer))
        found["answer"] = values[answer]
    if prompt is None and isinstance(values.get("level"), str | int):
        found["level"] = str(values["level"])
    for subject in ("subject", "type"):
        if isinstance(values.get(subject), str):
            found.setdefault("subject", values[subject])
    for name, value in values.items():
        if name in (*PER_ROW, *FROM_TRAINER):
            raise BadRowError(
                f"a column is called {name!r}, which is an argument of every reward; rename it"
            )
        if name in IMAGES and value not in (None, "", []):
            raise BadRowError(
                f"column {name!r} has an image, which a text model cannot see; remove or rename it"
            )
    # `prompt` is TRL's, and written later.
    taken = (*found, "prompt", *IMAGES)
    others = {name: one for name, one in values.items() if name not in taken}
    return found | others


def _gold(values: dict[str, Any], names: tuple[str, ...], marker: str | None) -> str:
    column, answer = _text(values, names)
    if marker is None:  # of the usual columns, only a solution contains more than its answer
        marker = r"\boxed" if column == "solution" and len(names) > 1 else ""
    if marker not in answer:
        raise BadRowError(f"no {marker} in column {column!r}")
    gold = final_answer(answer)
    if not gold:
        raise BadRowError(f"empty answer in column {column!r}")
    return gold


def _prompt(values: dict[str, Any], column: str) -> str | list[dict[str, Any]]:
    """A prompt that the row brings along: a text, or messages, both unchanged."""
    if column not in values:
        raise BadRowError(_no_column(values, column))
    prompt = values[column]
    text = isinstance(prompt, str) and prompt.strip()
    messages = isinstance(prompt, list) and all(
        isinstance(one, dict) and {"role", "content"} <= one.keys() for one in prompt
    )
    if not prompt or not (text or messages):
        raise BadRowError(
            f"column {column!r} contains {str(prompt)[:60]!r}, which is neither a text nor messages"
            " with role and content"
        )
    return prompt


def _text(values: dict[str, Any], columns: tuple[str, ...]) -> tuple[str, str]:
    """The first of the columns that the row has, and its text; numbers become text."""
    column = next((column for column in columns if column in values), None)
    if column is None:
        raise BadRowError(_no_column(values, *columns))
    value = values[column]
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(_as_written(value))
    if value is None or value == "nan":
        raise BadRowError(f"no value in column {column!r}")
    if not isinstance(value, str):
        raise BadRowError(f"column {column!r} contains a {type(value).__name__}, not text")
    if not value.strip():
        raise BadRowError(f"empty {column}")
    return column, value


def _as_written(value: float) -> float:
    """0.1 for 0.10000000149011612, as a column of float32 holds it."""
    if not isinstance(value, float) or float(f"{value:.15g}") == value:
        return value  # written in few digits itself
    return float(str(np.float32(value))) if np.float32(value) == value else value


def _no_column(values: dict[str, Any], *columns: str) -> str:
    wanted = " or ".join(map(repr, columns))
    return f"no column {wanted}; the row has {', '.join(map(repr, values)) or 'none'}"


def final_answer(text: str) -> str:
    r"""The reference answer at the end of a worked solution, or the whole text if it is not one."""
    if "####" in text:
        return text.rsplit("####", 1)[1].strip()
    boxed = last_boxed(text)
    if boxed is not None:
        return boxed.strip()
    bare = _BARE_BOX.findall(text)  # MATH has boxes without braces: "\boxed 2"
    if not bare and r"\boxed" in text:
        raise BadRowError(r"\boxed{ without its closing brace")
    return bare[-1] if bare else text.strip()
