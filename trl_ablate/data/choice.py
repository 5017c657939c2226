"""Which questions a task names: their source, and which of them are used."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from trl_ablate.task import TaskArguments

Part = Literal["train", "eval"]

USUAL_EVAL_SPLIT = "validation"


@dataclass(frozen=True)
class Source:
    """Where the questions are, and how to read their rows.

    Args:
        name: `math` or `gsm8k` (from the Hub), `miniature`, a JSONL or Parquet file, a folder
            that holds `<split>.jsonl` or `<split>.parquet`, or a dataset id on the Hub.
        split: the source's name for it; if only one of `validation` and `test` exists, it is used
            for both.
        columns: names of the question's and the answer's column; None means `question` or
            `problem`, and `answer` or `solution`.
        config: the configuration of a Hub dataset.
        skip_bad_rows: skip rows without a usable question or answer, and warn with their number,
            instead of raising.
    """

    name: str
    split: str
    columns: tuple[str | None, str | None] = (None, None)
    config: str | None = None
    skip_bad_rows: bool = False


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
    """

    size: int | None = None
    seed: int = 0
    levels: Sequence[int | str] | None = None
    subjects: Sequence[str] | None = None


ALL = Selection()


def source_of(task: TaskArguments, part: Part) -> Source:
    """The source of the task's training or evaluation questions."""
    return Source(
        task.dataset,
        task.train_split if part == "train" else task.eval_split or USUAL_EVAL_SPLIT,
        columns=(task.question_column, task.answer_column),
        config=task.dataset_config,
        skip_bad_rows=task.skip_bad_rows,
    )


def selection_of(task: TaskArguments, part: Part) -> Selection:
    """Which questions the task uses for training or evaluation."""
    size = task.train_size if part == "train" else task.eval_size
    return Selection(size, task.subset_seed, task.levels, task.subjects)


def evaluation_set(task: TaskArguments, name: str) -> tuple[Source, Selection]:
    """One of the task's `eval_sets`, with its dataset's usual split and columns."""
    sets = task.eval_sets or {}
    source = Source(sets[name], USUAL_EVAL_SPLIT, skip_bad_rows=task.skip_bad_rows)
    return source, Selection(task.eval_size, task.subset_seed)
