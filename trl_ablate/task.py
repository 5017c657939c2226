"""The task: what is trained on and how it is graded. No torch."""

import re
from dataclasses import dataclass
from typing import Literal

from trl_ablate.errors import ConfigurationError
from trl_ablate.prompts.templates import PromptStyle, TemplateName
from trl_ablate.settings import check_ranges, setting


@dataclass
class TaskArguments:
    """What is trained on and how it is graded: the start, the data, the prompt and the reward."""

    start: str = setting(
        "base", "Model that training starts from: model_name_or_path, or an entry of starts."
    )
    starts: dict[str, str] | None = setting(
        None, "Model id or folder of every other start, such as sft_early; a profile gives them."
    )
    learning_rate_scale: float = setting(
        1.0,
        "Factor of the recipe's learning rate; a profile sets it for its model.",
        above=0,
    )
    dataset: str = setting(
        "math", "math, gsm8k, miniature, a Hub id, or a path to JSONL or Parquet files."
    )
    dataset_config: str | None = setting(None, "Configuration of a Hub dataset.")
    train_split: str = setting("train", "Split to train on.")
    eval_split: str | None = setting(None, "Split to evaluate on. Null: the dataset's usual one.")
    question_column: str | None = setting(
        None, "Column of the question. Null: the dataset's usual."
    )
    answer_column: str | None = setting(
        None, "Column of the gold answer. Null: the dataset's usual."
    )
    train_size: int | None = setting(None, "Questions to train on. Null: all.", least=1)
    eval_size: int | None = setting(
        1024, "Questions to evaluate on, the same ones in every run. Null: all.", least=1
    )
    eval_sets: dict[str, str] | None = setting(
        None,
        "Further sets to evaluate on, name: dataset, each with eval_size questions of its usual "
        "split and columns; their metrics are eval_<name>_reward and so on.",
    )
    subset_seed: int = setting(0, "Seed that draws train_size and eval_size questions.", least=0)
    levels: list[str] | None = setting(None, "Keep these difficulty levels only.")
    subjects: list[str] | None = setting(None, "Keep these subjects only.")
    max_prompt_length: int | None = setting(
        None,
        "Questions whose prompt has more tokens are dropped, from training and evaluation, and "
        "their number is reported. Null: what vllm_max_model_length leaves beside "
        "max_completion_length, or no limit without vLLM.",
        least=1,
    )
    skip_bad_rows: bool = setting(False, "Count unreadable rows instead of stopping at the first.")
    template: TemplateName = setting("r1_zero", "Template: its prompt, stop strings and reward.")
    prompt_style: PromptStyle = setting(
        "full", "The template's full text, or a short text for the miniature."
    )
    reward: TemplateName | None = setting(
        None, "Reward of another template. Null: the template's own."
    )
    eos_penalty: float = setting(
        0.0, "Subtracted from the reward of completions that stack end-of-sequence tokens.", least=0
    )
    grader_workers: int = setting(
        2, "Processes that compare answers, per training process.", least=1, most=256
    )
    grader_timeout: float = setting(
        1.0, "Seconds that one comparison of two answers may take.", above=0
    )
    on_timeout: Literal["none", "zero"] = setting(
        "none", "A completion whose comparison takes longer counts as ungraded (none), or as wrong."
    )

    def __post_init__(self):
        check_ranges(self)
        for name, source in (self.eval_sets or {}).items():
            named = re.fullmatch(r"\w+", name) and name != "main"
            if not named or not isinstance(source, str) or not source:
                raise ConfigurationError(
                    f"eval_sets has {name!r}: {source!r}; use a name of letters, digits and _ "
                    "other than main, and a dataset: math, gsm8k, miniature, a Hub id, or a path"
                )
