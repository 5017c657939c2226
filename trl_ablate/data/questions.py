r"""Datasets: questions with final answers, from the Hub, from files, or from the miniature.

`load_questions` gives the columns `question` and `answer` (and `level` and `subject` where there
are any), then every other column of the source; `to_prompts` adds TRL's `prompt`. The same
arguments give the same rows in the same order in every run and every process.

Rows without a usable question or answer stop the loading, with the place and the reason: a run
that trains on fewer rows than its recipe says should be told to. `skip_bad_rows` leaves them out
and reports how many.
"""

import logging
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

import pyarrow
from datasets import Dataset

from trl_ablate.data.filters import by_pass_rate, columns_of, filtered, of_these
from trl_ablate.data.row_files import read_source
from trl_ablate.data.usable_rows import BadRowError, Source, to_question
from trl_ablate.errors import ConfigurationError
from trl_ablate.miniature.registry import is_miniature, problems, world_of_data
from trl_ablate.prompts.templates import prompt_writer
from trl_ablate.reward_specs import GYM
from trl_ablate.rewards.gym import gym_rows
from trl_ablate.run.failures import one_sentence
from trl_ablate.task import TaskArguments

if TYPE_CHECKING:
    from trl_ablate.config import AblationConfig

logger = logging.getLogger(__name__)

Part = Literal["train", "eval"]

FIRST_COLUMNS = ("question", "answer", "level", "subject")
MAX_NESTING = 20  # of lists; `datasets` fails on about 30, with an error of Python's

NAMED_DATASETS = {
    "math": Source(
        "DigitalLearningGmbH/MATH-lighteval", "default", "problem", "solution", marker=r"\boxed"
    ),
    "gsm8k": Source("openai/gsm8k", "main", "question", "answer", marker="####"),
}
"""What a short name stands for."""


class Tokenizer(Protocol):
    """The part of a tokenizer that counts a prompt's tokens."""

    def __call__(self, text: str, **kwargs: Any) -> Any: ...

    def apply_chat_template(self, conversation: list[dict[str, str]], **kwargs: Any) -> Any: ...


def load_questions(task: TaskArguments, part: Part) -> Dataset:
    """The questions and reference answers that the task trains on, or those that it evaluates on.

    They are filtered first; then as many are drawn as are asked for, by the seed alone, in the
    source's order. Of reasoning-gym as many are made as are asked for, and then filtered.
    """
    name, seed = task.dataset, task.subset_seed
    size = task.train_size if part == "train" else task.eval_size
    split = task.train_split if part == "train" else task.eval_split or "validation"
    of_gym, of_world = name.startswith(GYM), is_miniature(name)
    if task.prompt_column is not None and (of_gym or of_world):
        raise ConfigurationError(
            f"prompt_column is {task.prompt_column!r}, but {name} makes questions, to which a "
            "template asks; leave prompt_column out"
        )
    if of_gym:
        questions = gym_rows(name, task.gym, split, size, seed)  # in the number that was asked for
    elif of_world:
        split = "validation" if split == "test" else split
        questions = _problems(name, split, seed)
    else:
        questions = _collect(task, split)
    questions = of_these("level", task.levels, questions, name)
    questions = of_these("subject", task.subjects, questions, name)
    questions = filtered(questions, task.filter, name)
    if part == "train" and (rates := task.rates_to_train_on) is not None:
        questions = by_pass_rate(questions, *rates, name)
    if of_gym and len(questions) < (size or 0):
        logger.warning("%s: the filters leave %d of %d questions", name, len(questions), size)
    if not questions:
        raise ConfigurationError(
            f"dataset {name!r}, split {split!r}, has no usable rows left; look at "
            "what it holds, and at what levels, subjects and filter leave out."
        )
    if of_gym and task.needs_answers and any(row["answer"] is None for row in questions):
        raise ConfigurationError(
            f"dataset {name!r} has questions without an answer, which the rewards of this recipe "
            "compare; name its own scorer (reward_funcs: [reasoning_gym]), or another task"
        )
    if of_world:
        questions = _level_by_level(questions, name, split, size)
    elif not of_gym:
        questions = draw(questions, size, seed, name)
    return _to_dataset(questions, name)


def to_prompts(
    dataset: Dataset,
    task: TaskArguments,
    tokenizer: Tokenizer | None = None,
    what: str = "data",
) -> Dataset:
    """Adds the column `prompt`, rendered by the task's template, if the rows bring none along.

    With a tokenizer, its chat template has to write the first prompt, if that is messages. With
    `max_prompt_length`, too, questions whose prompt has more tokens are dropped, and their number
    is reported under the name `what`. It is an error if none is left.
    """
    limit = task.max_prompt_length
    if task.prompt_column is not None:
        prompts, rendered = list(dataset["prompt"]), dataset
    else:
        names = dataset.column_names
        write = prompt_writer(task.template, task.prompt_style, task.system_prompt, names)
        prompts = [write(cast(dict[str, Any], row)) for row in dataset]
        rendered = dataset.add_column("prompt", prompts)  # pyright: ignore[reportCallIssue]
    if tokenizer is not None and not isinstance(prompts[0], str):
        roles = " and ".join(dict.fromkeys(one["role"] for one in prompts[0]))
        fix = "set chat_template, system_prompt '' if it takes no system message, or text prompts"
        failed = f" cannot write messages of {roles}"
        with one_sentence(f"{what}: the tokenizer's chat template", fix, failed):
            _token_count(prompts[0], tokenizer)
    if tokenizer is None or limit is None:
        return rendered
    lengths = [_token_count(prompt, tokenizer) for prompt in prompts]
    kept = [row for row, length in enumerate(lengths) if length <= limit]
    if not kept:
        raise ConfigurationError(
            f"{what}: all {len(lengths)} prompts have more than max_prompt_length {limit} tokens, "
            f"the shortest {min(lengths)}; raise max_prompt_length (with vLLM, "
            "vllm_max_model_length too)"
        )
    if len(kept) < len(lengths):
        logger.warning(
            "%s: dropped %d of %d questions, %d are left; their prompts have more than "
            "max_prompt_length %d tokens, the longest %d (row %d)",
            what, len(lengths) - len(kept), len(lengths), len(kept), limit,
            max(lengths), lengths.index(max(lengths)),
        )  # fmt: skip
    return rendered.select(kept) if len(kept) < len(lengths) else rendered


def texts_of(dataset: Dataset) -> list[str]:
    """The questions of a dataset, or its prompts if it has none, to find those in two sets."""
    column = "question" if "question" in dataset.column_names else "prompt"
    return [str(text) for text in dataset[column]]


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
    """Refuse a prompt of more tokens than the model's context, with which a training seems to hang.
    A token is at least one byte, so that only long texts are tokenized."""
    for row, prompt in enumerate(dataset["prompt"]):
        texts = [prompt] if isinstance(prompt, str) else [str(each["content"]) for each in prompt]
        if sum(len(text.encode(errors="replace")) for text in texts) <= context:
            continue
        if (length := _token_count(prompt, tokenizer)) > context:
            begins = str(dataset[row].get("question") or prompt)[:60]
            raise ConfigurationError(
                f"{what}: the prompt of row {row} has {length} tokens, more than the model's "
                f"context of {context}; set max_prompt_length to leave out such rows, or shorten "
                f"the question, which begins with {begins!r}"
            )


def draw(items: Sequence[Any], size: int | None, seed: int, name: str) -> list[Any]:
    """`size` of the items, chosen by the seed alone, in their old order."""
    if size is None or size >= len(items):
        if size is not None and size > len(items):
            logger.warning("%s: %d rows asked for, %d there are; using all", name, size, len(items))
        return list(items)
    return [items[index] for index in sorted(random.Random(seed).sample(range(len(items)), size))]


def _problems(name: str, split: Any, seed: int) -> list[dict[str, Any]]:
    world = world_of_data(name)
    try:
        return cast(list[dict[str, Any]], problems(split, seed=seed, world=world))
    except ValueError as error:
        raise ConfigurationError(f"dataset {name!r}: {error}.") from error


def _level_by_level(
    questions: list[dict[str, Any]], name: str, split: Any, size: int | None
) -> list[dict[str, Any]]:
    """A world's questions in the order in which an evaluation takes them: answers of similar length
    are generated faster together. Training shuffles them anyway."""
    if size is None:
        size = world_of_data(name).usual_sizes.get(split)
    elif size > len(questions):
        raise ConfigurationError(
            f"dataset {name!r}: size is {size}; the {split} set has {len(questions)} "
            "problems of these levels; ask for fewer."
        )
    return sorted(questions[:size], key=lambda row: row.get("level", ""))


def _collect(task: TaskArguments, split: str) -> list[dict[str, Any]]:
    """The usable rows: question and answer as text, and all other columns."""
    known = NAMED_DATASETS.get(task.dataset) or Source(task.dataset)
    source = known._replace(
        config=task.dataset_config or known.config,
        question=task.question_column or known.question,
        answer=task.answer_column or known.answer,
        prompt=task.prompt_column,
        needs_answers=task.needs_answers,
    )
    questions: list[dict[str, Any]] = []
    bad: list[str] = []
    for row in read_source(source.hub_id, split=split, config=source.config):
        try:
            questions.append(to_question(row, source))
        except BadRowError as error:
            if not task.skip_bad_rows:
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


def _to_dataset(questions: list[dict[str, Any]], name: str) -> Dataset:
    """A dataset with the columns that any row has; a row without one has None there."""
    there = columns_of(questions)
    found = {}
    for column in dict.fromkeys([*(one for one in FIRST_COLUMNS if one in there), *there]):
        found[column] = [row.get(column) for row in questions]
        try:
            levels = str(pyarrow.array(found[column]).type).count("<")
        except (pyarrow.ArrowException, OverflowError) as error:
            raise ConfigurationError(
                f"dataset {name!r}: column '{column}' mixes values that do not fit into one column "
                f"({' '.join(str(error).split())[:200]}); give it one type, or remove it"
            ) from error
        if levels > MAX_NESTING:
            raise ConfigurationError(
                f"dataset {name!r}: column '{column}' nests {levels} lists or objects, and at most "
                f"{MAX_NESTING} are allowed; flatten or remove it"
            )
    return Dataset.from_dict(found)


def _token_count(prompt: str | list[dict[str, str]], tokenizer: Tokenizer) -> int:
    if isinstance(prompt, str):
        return len(tokenizer(prompt)["input_ids"])
    text = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
    return len(tokenizer(text, add_special_tokens=False)["input_ids"])  # the template has them
