r"""Datasets: questions with final answers, from the Hub, from files, or from the miniature.

`load_questions` gives the columns `question` and `answer` (and `level` and `subject` where there
are any); `to_prompts` adds TRL's `prompt`. Both are plain functions of their arguments, so that the
same arguments give the same rows in the same order in every run and every process.

The reference answer is what a row's answer column ends in: the text after the last `####` (GSM8K),
or else what stands in its last `\boxed{}` (worked solutions), or else all of it.

Rows without a usable question or answer stop the loading, with the place and the reason: a run
that trains on fewer rows than its recipe says should be told to. `skip_bad_rows` leaves them out
and reports how many.
"""

import logging
import random
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from datasets import Dataset

from trl_ablate.data.sources import BadRowError, Row, read_source, to_question
from trl_ablate.errors import ConfigurationError
from trl_ablate.prompts.templates import render

logger = logging.getLogger(__name__)

_MINIATURE_SIZES = {"train": 4096, "validation": 1024}


@dataclass(frozen=True)
class NamedDataset:
    """What a short name stands for."""

    hub_id: str
    config: str | None
    question_column: str
    answer_column: str
    marker: str | None


NAMED_DATASETS = {
    "math": NamedDataset(
        "DigitalLearningGmbH/MATH-lighteval", "default", "problem", "solution", r"\boxed"
    ),
    "gsm8k": NamedDataset("openai/gsm8k", "main", "question", "answer", "####"),
}


class Tokenizer(Protocol):
    """The part of a tokenizer that counts a prompt's tokens."""

    def __call__(self, text: str, **kwargs: Any) -> Any: ...

    def apply_chat_template(self, conversation: list[dict[str, str]], **kwargs: Any) -> Any: ...


def load_questions(
    name: str,
    *,
    split: str,
    question_column: str | None = None,
    answer_column: str | None = None,
    config: str | None = None,
    size: int | None = None,
    seed: int = 0,
    levels: Collection[int | str] | None = None,
    subjects: Collection[str] | None = None,
    skip_bad_rows: bool = False,
) -> Dataset:
    """Questions and reference answers.

    Args:
        name: `math` or `gsm8k` (from the Hub), `miniature`, a JSONL or Parquet file, a folder
            that holds `<split>.jsonl` or `<split>.parquet`, or a dataset id on the Hub.
        split: as the source names it; `validation` and `test` stand in for each other where only
            one exists.
        question_column, answer_column: default to `question`/`problem` and `answer`/`solution`.
        config: the configuration of a Hub dataset.
        size: how many rows to draw, without replacement, after filtering; None takes all, and so
            does a size beyond the number of rows (with a warning).
        seed: which rows are drawn. The same seed draws the same ones, in the order of the source.
        levels: keep these levels of difficulty only; 5, "5" and "Level 5" are the same.
        subjects: keep these subjects only; case does not matter.
        skip_bad_rows: leave out rows without a usable question or answer, and warn with their
            number, instead of raising.
    """
    if size is not None and size < 1:
        raise ConfigurationError(f"size={size!r}: give at least 1 row, or leave it out for all.")
    if name == "miniature":
        return _load_miniature(split, size, seed, levels, subjects)
    known = NAMED_DATASETS.get(name)
    if known is not None:
        source, config = known.hub_id, config or known.config
        question_column = question_column or known.question_column
        answer_column = answer_column or known.answer_column
    else:
        source = name
    rows = read_source(source, split=split, config=config)
    questions = _collect(
        rows,
        question_column=question_column,
        answer_column=answer_column,
        marker=known.marker if known is not None else None,
        skip_bad_rows=skip_bad_rows,
    )
    questions = _filter_levels(questions, levels, name)
    questions = _filter_subjects(questions, subjects, name)
    if not questions:
        raise ConfigurationError(
            f"dataset {name!r}, split {split!r}, has no usable rows left; look at what it holds, "
            "and at what levels and subjects leave out."
        )
    return _to_dataset(draw(questions, size, seed, name))


def to_prompts(
    dataset: Dataset,
    template: str,
    style: str = "full",
    *,
    tokenizer: Tokenizer | None = None,
    max_prompt_length: int | None = None,
    what: str = "data",
) -> Dataset:
    """Adds the column `prompt`, rendered by the template; all other columns stay.

    With a tokenizer and a limit, questions whose prompt has more tokens are dropped, and their
    number is reported under the name `what`. It is an error if none is left.
    """
    prompts = [render(template, question, style) for question in dataset["question"]]
    rendered = dataset.add_column("prompt", prompts)  # pyright: ignore[reportCallIssue]
    if tokenizer is None or max_prompt_length is None:
        return rendered
    lengths = [_token_count(prompt, tokenizer) for prompt in prompts]
    kept = [row for row, length in enumerate(lengths) if length <= max_prompt_length]
    if not kept:
        raise ConfigurationError(
            f"{what}: all {len(lengths)} prompts have more than max_prompt_length "
            f"{max_prompt_length} tokens, the shortest {min(lengths)}; raise max_prompt_length "
            "(with vLLM, vllm_max_model_length too)"
        )
    if len(kept) < len(lengths):
        logger.warning(
            "%s: dropped %d of %d questions, %d are left; their prompts have more than "
            "max_prompt_length %d tokens, the longest %d (row %d)",
            what,
            len(lengths) - len(kept),
            len(lengths),
            len(kept),
            max_prompt_length,
            max(lengths),
            lengths.index(max(lengths)),
        )
    return rendered.select(kept) if len(kept) < len(lengths) else rendered


def check_prompts_fit(dataset: Dataset, tokenizer: Tokenizer, context: int, what: str) -> None:
    """Refuse a prompt of more tokens than the model's context.

    The time of a forward pass grows with the square of the length, so that a training with prompts
    of 100,000 characters seems to hang. A token is at least one byte, so that only long texts are
    tokenized.
    """
    for row, prompt in enumerate(dataset["prompt"]):
        if _bytes_of(prompt) <= context:
            continue
        if (length := _token_count(prompt, tokenizer)) > context:
            raise ConfigurationError(
                f"{what}: the prompt of row {row} has {length} tokens, more than the model's "
                f"context of {context}; set max_prompt_length to leave out such rows, or shorten "
                f"the question, which begins with {dataset['question'][row][:60]!r}"
            )


def _bytes_of(prompt: str | list[dict[str, str]]) -> int:
    texts = [prompt] if isinstance(prompt, str) else [each["content"] for each in prompt]
    return sum(len(text.encode(errors="replace")) for text in texts)


def draw(items: Sequence[Any], size: int | None, seed: int, name: str) -> list[Any]:
    """`size` of the items, chosen by the seed alone, in their old order."""
    if size is None or size >= len(items):
        if size is not None and size > len(items):
            logger.warning("%s: %d rows asked for, %d there are; using all", name, size, len(items))
        return list(items)
    return [items[index] for index in sorted(random.Random(seed).sample(range(len(items)), size))]


def _load_miniature(
    split: str,
    size: int | None,
    seed: int,
    levels: Collection[int | str] | None,
    subjects: Collection[str] | None,
) -> Dataset:
    if levels or subjects:
        raise ConfigurationError(
            "dataset 'miniature' has no levels and no subjects; leave levels and subjects out."
        )
    from trl_ablate.miniature import problems

    split = "validation" if split == "test" else split
    try:
        rows = problems(cast(Any, split), size or _MINIATURE_SIZES.get(split, 1), seed)
    except ValueError as error:
        raise ConfigurationError(f"dataset 'miniature': {error}.") from error
    return Dataset.from_list(rows)


def _collect(
    rows: Iterable[Row],
    *,
    question_column: str | None,
    answer_column: str | None,
    marker: str | None,
    skip_bad_rows: bool,
) -> list[dict[str, str]]:
    """The usable rows, as columns of text."""
    questions: list[dict[str, str]] = []
    bad: list[str] = []
    for row in rows:
        try:
            questions.append(to_question(row, question_column, answer_column, marker))
        except BadRowError as error:
            if not skip_bad_rows:
                raise ConfigurationError(
                    f"{row.place}: {error}; correct the row, or set skip_bad_rows to leave out "
                    "such rows."
                ) from error
            bad.append(f"{row.place}: {error}")
    if bad:
        logger.warning(
            "skipped %d bad rows of %d; the first: %s", len(bad), len(bad) + len(questions), bad[0]
        )
    return questions


def _filter_levels(
    questions: list[dict[str, str]], levels: Collection[int | str] | None, name: str
) -> list[dict[str, str]]:
    if not levels:
        return questions
    wanted = {_level_name(level) for level in levels}
    _check_filter("levels", wanted, {_level_name(row.get("level")) for row in questions}, name)
    return [row for row in questions if _level_name(row.get("level")) in wanted]


def _filter_subjects(
    questions: list[dict[str, str]], subjects: Collection[str] | None, name: str
) -> list[dict[str, str]]:
    if not subjects:
        return questions
    wanted = {subject.casefold() for subject in subjects}
    present = {row.get("subject", "").casefold() for row in questions}
    _check_filter("subjects", wanted, present, name)
    return [row for row in questions if row.get("subject", "").casefold() in wanted]


def _level_name(level: int | str | None) -> str:
    return str(level or "").casefold().removeprefix("level").strip()


def _check_filter(what: str, wanted: set[str], present: set[str], name: str) -> None:
    missing = sorted(wanted - present)
    if missing:
        there = ", ".join(sorted(present - {""})) or "none at all"
        raise ConfigurationError(
            f"{what}={missing!r} match no row of dataset {name!r}; it has {there}."
        )


def _to_dataset(questions: list[dict[str, str]]) -> Dataset:
    """A dataset with the columns that any row has; a row without one has None there."""
    columns = [
        column
        for column in ("question", "answer", "level", "subject")
        if any(column in row for row in questions)
    ]
    return Dataset.from_dict({column: [row.get(column) for row in questions] for column in columns})


def _token_count(prompt: str | list[dict[str, str]], tokenizer: Tokenizer) -> int:
    if isinstance(prompt, str):
        return len(tokenizer(prompt)["input_ids"])
    text = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
    return len(tokenizer(text, add_special_tokens=False)["input_ids"])  # the template has them
