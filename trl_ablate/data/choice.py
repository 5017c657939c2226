"""Which questions a task names: where they are, and which of them are taken."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from trl_ablate.task import TaskArguments

Part = Literal["train", "eval"]

USUAL_EVAL_SPLIT = "validation"


@dataclass(frozen=True)
class Source:
    """Where questions are, and how their rows are read.

    Args:
        name: `math` or `gsm8k` (from the Hub), `miniature`, a JSONL or Parquet file, a folder
            that holds `<split>.jsonl` or `<split>.parquet`, or a dataset id on the Hub.
        split: as the source names it; `validation` and `test` stand in for each other where only
            one exists.
        columns: of the question and of the answer; None is `question` or `problem`, and `answer` or
            `solution`.
        config: the configuration of a Hub dataset.
        skip_bad_rows: leave out rows without a usable question or answer, and warn with their
            number, instead of raising.
    """

    name: str
    split: str
    columns: tuple[str | None, str | None] = (None, None)
    config: str | None = None
    skip_bad_rows: bool = False


@dataclass(frozen=True)
class Selection:
    """Which of a source's questions are taken; by default all.

    Args:
        size: how many rows to draw, without replacement, after filtering; None takes all, and so
            does a size beyond the number of rows (with a warning).
        seed: which rows are drawn. The same seed draws the same ones, in the order of the source.
        levels: keep these levels of difficulty only; 5, "5" and "Level 5" are the same.
        subjects: keep these subjects only; case does not matter.
    """

    size: int | None = None
    seed: int = 0
    levels: Sequence[int | str] | None = None
    subjects: Sequence[str] | None = None


ALL = Selection()


def source_of(task: TaskArguments, part: Part) -> Source:
    """Where the task trains, or evaluates."""
    return Source(
        task.dataset,
        task.train_split if part == "train" else task.eval_split or USUAL_EVAL_SPLIT,
        columns=(task.question_column, task.answer_column),
        config=task.dataset_config,
        skip_bad_rows=task.skip_bad_rows,
    )


def selection_of(task: TaskArguments, part: Part) -> Selection:
    """What the task takes to train, or to evaluate."""
    size = task.train_size if part == "train" else task.eval_size
    return Selection(size, task.subset_seed, task.levels, task.subjects)


def evaluation_set(task: TaskArguments, name: str) -> tuple[Source, Selection]:
    """One of the task's `eval_sets`, which has its dataset's usual split and columns."""
    sets = task.eval_sets or {}
    source = Source(sets[name], USUAL_EVAL_SPLIT, skip_bad_rows=task.skip_bad_rows)
    return source, Selection(task.eval_size, task.subset_seed)
