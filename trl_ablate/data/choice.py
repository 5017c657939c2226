"""Which questions a task names: their source, and which of them are used."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trl_ablate.task import TaskArguments

Part = Literal["train", "eval"]


@dataclass(frozen=True)
class Source:
    """Where the questions are, and how to read their rows.

    Args:
        name: `math` or `gsm8k` (from the Hub), `miniature`, a JSON, JSONL, CSV, Parquet or Arrow
            file, a folder that holds `<split>.jsonl` or the like, a folder that `save_to_disk`
            wrote, or a dataset id on the Hub.
        split: the source's name for it; if only one of `validation` and `test` exists, it is used
            for both.
        columns: names of the question's and the answer's column; None means `question` or
            `problem`, and `answer` or `solution`.
        config: the configuration of a Hub dataset.
        skip_bad_rows: skip rows without a usable question or answer, and warn with their number,
            instead of raising.
        prompt_column: name of the column with the whole prompt; then a row needs no question.
        needs_answers: whether a row without a usable answer is unusable. If not, the answer column
            is passed on as it is.
        gym: the config of a task of reasoning-gym.
    """

    name: str
    split: str
    columns: tuple[str | None, str | None] = (None, None)
    config: str | None = None
    skip_bad_rows: bool = False
    prompt_column: str | None = None
    needs_answers: bool = True
    gym: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Selection:
    """Which of a source's questions are used; by default all.

    Args:
        size: how many rows to draw, without replacement, after filtering. None uses all rows; a
            size above the number of rows does too, with a warning.
        seed: decides which rows are drawn. The same seed draws the same rows, in the
            source's order.
        levels: keep only these levels of difficulty; 5, "5" and "Level 5" are the same.
        subjects: keep only these subjects; upper and lower case are equal.
        filter: conditions on columns, as in `filters.py`.
        pass_rate: a file of pass rates, the lowest and the highest rate to keep.
    """

    size: int | None = None
    seed: int = 0
    levels: Sequence[int | str] | None = None
    subjects: Sequence[str] | None = None
    filter: str | Sequence[str] | None = None
    pass_rate: tuple[str, float, float] | None = None


def source_of(task: TaskArguments, part: Part) -> Source:
    """The source of the task's training or evaluation questions."""
    return Source(
        task.dataset,
        task.train_split if part == "train" else task.eval_split or "validation",
        columns=(task.question_column, task.answer_column),
        config=task.dataset_config,
        skip_bad_rows=task.skip_bad_rows,
        prompt_column=task.prompt_column,
        needs_answers=task.needs_answers,
        gym=task.gym,
    )


def selection_of(task: TaskArguments, part: Part) -> Selection:
    """Which questions the task uses for training or evaluation."""
    chosen = (task.subset_seed, task.levels, task.subjects, task.filter)
    if part == "eval":
        return Selection(task.eval_size, *chosen)
    return Selection(task.train_size, *chosen, pass_rate=task.rates_to_train_on)


def evaluation_set(task: TaskArguments, name: str) -> tuple[Source, Selection]:
    """One of the task's `eval_sets`, by default with its dataset's usual split and columns."""
    own = task.evaluation_task(name)
    return source_of(own, "eval"), selection_of(own, "eval")
