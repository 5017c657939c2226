r"""Datasets: questions with final answers, from the Hub, from files, or from the miniature.

`load_questions` gives the columns `question` and `answer` (and `level` and `subject` where there
are any), then every other column of the source; `to_prompts` adds TRL's `prompt`. Both are plain
functions of their arguments, so that the same arguments give the same rows in the same order in
every run and every process.

Where a reward of this package compares answers, the reference answer is what a row's answer column
ends in: the text after the last `####` (GSM8K), or else what stands in its last `\boxed{}` (worked
solutions), or else all of it. The other columns are passed to the rewards as they are.

Rows without a usable question or answer stop the loading, with the place and the reason: a run
that trains on fewer rows than its recipe says should be told to. `skip_bad_rows` leaves them out
and reports how many.
"""

import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, cast

import pyarrow
from datasets import Dataset

from trl_ablate.data.choice import Selection, Source
from trl_ablate.data.filters import by_pass_rate, columns_of, filtered, of_these
from trl_ablate.data.row_files import read_source
from trl_ablate.data.sources import BadRowError, to_question
from trl_ablate.errors import ConfigurationError
from trl_ablate.miniature.registry import is_miniature, problems, world_of_data
from trl_ablate.prompts.writing import prompt_writer
from trl_ablate.reward_specs import GYM
from trl_ablate.rewards.gym import gym_rows

if TYPE_CHECKING:
    from trl_ablate.config import AblationConfig

logger = logging.getLogger(__name__)

FIRST_COLUMNS = ("question", "answer", "level", "subject")


@dataclass(frozen=True)
class NamedDataset:
    """What a short name stands for."""

    hub_id: str
    config: str | None = None
    question_column: str | None = None
    answer_column: str | None = None
    marker: str | None = None


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


def load_questions(source: Source, selection: Selection | None = None) -> Dataset:
    """Questions and reference answers; without a selection, all."""
    selection = selection or Selection()
    name, size, seed = source.name, selection.size, selection.seed
    if size is not None and size < 1:
        raise ConfigurationError(f"size={size!r}: give at least 1 row, or leave it out for all.")
    if is_miniature(name):
        return _load_miniature(source, selection)
    made = name.startswith(GYM)  # in the number that was asked for
    given = gym_rows(name, source.gym, source.split, size, seed) if made else _collect(source)
    questions = _filtered(given, selection, name)
    if not questions:
        raise ConfigurationError(
            f"dataset {name!r}, split {source.split!r}, has no usable rows left; look at "
            "what it holds, and at what levels, subjects and filter leave out."
        )
    _report_repeats(questions, name)
    return _to_dataset(questions if made else draw(questions, size, seed, name), name)


def _report_repeats(questions: list[dict[str, Any]], name: str) -> None:
    """Warn about rows that are equal in every column: they count more than once."""
    seen: set[str] = set()
    repeats = [row for row in questions if (text := repr(row)) in seen or seen.add(text)]
    if repeats:
        logger.warning(
            "dataset %r: %d of %d rows repeat an earlier row in every column, the first is %r; "
            "remove them if they should not count more than once",
            name, len(repeats), len(questions), _beginning(repeats[0]),
        )  # fmt: skip


def to_prompts(
    dataset: Dataset,
    template: str | None,
    style: str = "full",
    *,
    system_prompt: str | None = None,
    tokenizer: Tokenizer | None = None,
    max_prompt_length: int | None = None,
    what: str = "data",
) -> Dataset:
    """Adds the column `prompt`, rendered by the template; all other columns stay.

    A template of None keeps the column `prompt` that the dataset has.

    With a tokenizer and a limit, questions whose prompt has more tokens are dropped, and their
    number is reported under the name `what`. It is an error if none is left.
    """
    if template is None:
        prompts, rendered = list(dataset["prompt"]), dataset
    else:
        write = prompt_writer(template, style, system_prompt, dataset.column_names)
        prompts = [write(cast(dict[str, Any], row)) for row in dataset]
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
            what, len(lengths) - len(kept), len(lengths), len(kept), max_prompt_length,
            max(lengths), lengths.index(max(lengths)),
        )  # fmt: skip
    return rendered.select(kept) if len(kept) < len(lengths) else rendered


def check_enough(questions: Dataset, config: "AblationConfig") -> None:
    """Refuse fewer questions than one rollout batch takes: TRL's sampler leaves out a batch that it
    cannot fill, so that there would be no step."""
    needed = cast(int, config.generation_batch_size) // cast(int, config.num_generations)
    if len(questions) < needed:
        raise ConfigurationError(
            f"there are {len(questions)} questions to train on, after all filters, and a rollout "
            f"batch takes {needed} (generation_batch_size {config.generation_batch_size} / "
            f"num_generations {config.num_generations}); raise train_size, filter less (levels, "
            "subjects, filter, max_prompt_length), or lower generation_batch_size"
        )


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
                f"the question, which begins with {_beginning(dataset[row])!r}"
            )


def _beginning(row: dict[str, Any]) -> str:
    return str(row.get("question") or row["prompt"])[:60]


def _bytes_of(prompt: str | list[dict[str, str]]) -> int:
    texts = [prompt] if isinstance(prompt, str) else [str(each["content"]) for each in prompt]
    return sum(len(text.encode(errors="replace")) for text in texts)


def draw(items: Sequence[Any], size: int | None, seed: int, name: str) -> list[Any]:
    """`size` of the items, chosen by the seed alone, in their old order."""
    if size is None or size >= len(items):
        if size is not None and size > len(items):
            logger.warning("%s: %d rows asked for, %d there are; using all", name, size, len(items))
        return list(items)
    return [items[index] for index in sorted(random.Random(seed).sample(range(len(items)), size))]


def _load_miniature(source: Source, selection: Selection) -> Dataset:
    """The questions of a world, level by level: an evaluation takes them in this order, and answers
    of similar length are generated faster together. Training shuffles them anyway."""
    world = world_of_data(source.name)
    split = "validation" if source.split == "test" else source.split
    try:
        rows = problems(cast(Any, split), seed=selection.seed, world=world)
    except ValueError as error:
        raise ConfigurationError(f"dataset {source.name!r}: {error}.") from error
    of_selection = _filtered(cast(list[dict[str, Any]], rows), selection, source.name)
    if not of_selection:
        raise ConfigurationError(
            f"dataset {source.name!r}: no question meets filter {selection.filter!r}; widen it"
        )
    size = selection.size or world.usual_sizes.get(cast(Any, split), len(of_selection))
    if size > len(of_selection):
        raise ConfigurationError(
            f"dataset {source.name!r}: size is {size}; the {split} set has {len(of_selection)} "
            "problems of these levels; ask for fewer."
        )
    chosen = of_selection[:size]
    return _to_dataset(sorted(chosen, key=lambda row: row.get("level", "")), source.name)


def _collect(source: Source) -> list[dict[str, Any]]:
    """The usable rows: question and answer as text, and all other columns."""
    known = NAMED_DATASETS.get(source.name) or NamedDataset(source.name)
    question, answer = source.columns
    columns = (question or known.question_column, answer or known.answer_column)
    source = replace(source, columns=columns)
    questions: list[dict[str, Any]] = []
    bad: list[str] = []
    for row in read_source(known.hub_id, split=source.split, config=source.config or known.config):
        try:
            questions.append(to_question(row, source, known.marker))
        except BadRowError as error:
            if not source.skip_bad_rows:
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


def _filtered(
    questions: list[dict[str, Any]], selection: Selection, name: str
) -> list[dict[str, Any]]:
    """Those of the selection's levels, subjects, conditions and pass rates."""
    questions = of_these("level", selection.levels, questions, name)
    questions = of_these("subject", selection.subjects, questions, name)
    questions = filtered(questions, selection.filter, name)
    if selection.pass_rate is not None:
        questions = by_pass_rate(questions, *selection.pass_rate, name)
    return questions


def _to_dataset(questions: list[dict[str, Any]], name: str) -> Dataset:
    """A dataset with the columns that any row has; a row without one has None there."""
    there = columns_of(questions)
    found = {}
    for column in dict.fromkeys([*(one for one in FIRST_COLUMNS if one in there), *there]):
        found[column] = [row.get(column) for row in questions]
        try:
            pyarrow.array(found[column])
        except (pyarrow.ArrowException, OverflowError) as error:
            raise ConfigurationError(
                f"dataset {name!r}: column '{column}' mixes values that do not fit into one column "
                f"({' '.join(str(error).split())[:200]}); give it one type, or remove it"
            ) from error
    return Dataset.from_dict(found)


def _token_count(prompt: str | list[dict[str, str]], tokenizer: Tokenizer) -> int:
    if isinstance(prompt, str):
        return len(tokenizer(prompt)["input_ids"])
    text = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
    return len(tokenizer(text, add_special_tokens=False)["input_ids"])  # the template has them
