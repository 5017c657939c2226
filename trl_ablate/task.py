"""The task: what is trained on and how it is graded. No torch."""

import dataclasses
import re
from dataclasses import dataclass
from typing import Any, Literal

from trl_ablate.errors import ConfigurationError
from trl_ablate.prompts.templates import TEMPLATES, PromptStyle, TemplateName, get_template, is_own
from trl_ablate.reward_specs import (
    GYM,
    GYM_REWARD,
    GYM_SCORE,
    MATH_REWARDS,
    RewardSpec,
    reward_specs,
)
from trl_ablate.settings import check_ranges, names_with, setting

EVAL_SET_KEYS = {
    **{key: key for key in ("dataset", "dataset_config", "gym", "filter", "levels", "subjects")},
    **{"split": "eval_split", "size": "eval_size"},
    **{key: key for key in ("question_column", "answer_column", "prompt_column")},
    **{key: key for key in ("reward", "reward_funcs")},
}
"""Keys of an entry of `eval_sets`, and the settings of this task that they replace."""

KINDS_OF_KEYS = {"size": int, "gym": dict, "reward_funcs": list, "levels": list, "subjects": list}
KINDS = {int: "whole number", list: "list", str: "text", dict: "mapping"}


@dataclass
class TaskArguments:
    """What is trained on and how it is graded: the start, the data, the prompt and the reward."""

    start: str = setting(
        "base",
        "Model that training starts from: model_name_or_path, or an entry of starts.",
        role="weights",
    )
    starts: dict[str, str] | None = setting(
        None,
        "Model id or folder of every other start, such as sft_early; a profile gives them.",
        role="world",
    )
    learning_rate_scale: float = setting(
        1.0, "Factor of the recipe's learning rate; a profile sets it for its model.", above=0
    )
    dataset: str = setting(
        "math",
        "math, gsm8k, miniature, reasoning_gym/TASK, a Hub id, or a path: a JSON, JSONL, CSV, "
        "Parquet or Arrow file, or a folder of them; miniature/WORLD. A recipe's path is relative "
        "to it, or else to the working directory; one of the command line the other way round.",
        role=("questions", "dataset"),
    )
    dataset_config: str | None = setting(None, "Configuration of a Hub dataset.", role="data")
    gym: dict[str, Any] | None = setting(
        None,
        "Config of a reasoning_gym/TASK: fields of the task's config, among them size and seed. "
        "Its own scorer is the reward, unless reward_funcs or reward is given.",
        role="data",
    )
    train_split: str = setting("train", "Split to train on.", role="questions")
    eval_split: str | None = setting(
        None, "Split to evaluate on. Null: the dataset's usual one.", role="evaluated data"
    )
    question_column: str | None = setting(
        None, "Column of the question. Null: the dataset's usual.", role="data"
    )
    answer_column: str | None = setting(
        None, "Column of the gold answer. Null: the dataset's usual.", role="data"
    )
    prompt_column: str | None = setting(
        None,
        "Column with the whole prompt, a text or messages, which is used as it is in place of the "
        "template's text and stop strings.",
        role="data",
    )
    filter: str | list[str] | None = setting(
        None,
        "Conditions on columns, such as 'level >= 3 and subject != Geometry'; rows that do not "
        "meet all of them are left out. Operators: == != < <= > >= in, not in, contains.",
        role="data",
    )
    train_size: int | None = setting(
        None, "Questions to train on. Null: all.", least=1, role="questions"
    )
    eval_size: int | None = setting(
        1024, "Questions to evaluate on, the same ones in every run. Null: all.", least=1
    )
    pass_rate: dict[str, Any] | None = setting(
        None,
        "Train only on questions that a model answers this often: {file: rates.jsonl, between: "
        "[0.1, 0.9]}, with the file that `evaluate --per_question` writes.",
        role=("questions", "file"),
    )
    eval_sets: dict[str, str | dict[str, Any]] | None = setting(
        None,
        "Further sets to evaluate on, name: dataset, each with eval_size questions of its usual "
        "split and columns; or name: {dataset, dataset_config, gym, split, size, filter, levels, "
        "subjects, question_column, answer_column, prompt_column, reward, reward_funcs}. Their "
        "metrics are eval_<name>_reward and so on.",
        role=("evaluated data", "dataset"),
    )
    subset_seed: int = setting(
        0, "Seed that draws train_size and eval_size questions.", least=0, role="questions"
    )
    levels: list[str] | None = setting(None, "Keep these difficulty levels only.", role="data")
    subjects: list[str] | None = setting(None, "Keep these subjects only.", role="data")
    max_prompt_length: int | None = setting(
        None,
        "Questions whose prompt has more tokens are dropped, from training and evaluation, and "
        "their number is reported. Null: what vllm_max_model_length leaves beside "
        "max_completion_length, or no limit without vLLM.",
        least=1,
    )
    skip_bad_rows: bool = setting(False, "Count unreadable rows instead of stopping at the first.")
    template: TemplateName | str = setting(
        "r1_zero",
        "Template: its prompt, stop strings and reward. Or a file with the prompt alone: .txt with "
        "{question} and any other column in braces, or .jinja.",
        role=("questions", "file"),
    )
    system_prompt: str | None = setting(
        None,
        "System prompt: the prompt becomes messages, with the template's text from the user. "
        "Empty: the same without a system message. Null: as the template has it.",
        role="questions",
    )
    chat_template: str | None = setting(
        None,
        "Jinja file that replaces the tokenizer's chat template. Null: the tokenizer's own.",
        role=("questions", "file"),
    )
    prompt_style: PromptStyle = setting(
        "full", "The template's full text, or a short text for the miniature.", role="questions"
    )
    reward: TemplateName | None = setting(
        None, "Reward of another template. Null: the template's own.", role="reward"
    )
    reward_funcs: list[str | dict[str, Any]] | None = setting(
        None,
        "Rewards in place of the template's, as in TRL: names, FILE.py:FUNCTION, dotted import "
        "paths, reward models (org/name or ./folder), or {path, weight, kwargs, name}. Files are "
        "relative to the recipe, and their code is executed. [] with an environment_factory: the "
        "environment's own reward alone.",
        role=("reward", "code"),
    )
    reward_timeout: float | None = setting(
        None,
        "Seconds that a function of reward_funcs may take for one row; it then runs in worker "
        "processes, row by row. Null: no limit, in this process; for scorers of reasoning_gym 5.",
        above=0,
    )
    reward_workers: int = setting(
        2,
        "Worker processes of each function with a reward_timeout, and of reasoning_gym's scorer.",
        least=1,
        most=256,
        role="machine",
    )
    eos_penalty: float = setting(
        0.0,
        "Subtracted from the reward of completions that stack end-of-sequence tokens or are empty.",
        least=0,
        role="reward",
    )
    tools: list[str] | None = setting(
        None,
        "Functions that the model may call, as in TRL: FILE.py:FUNCTION or dotted import paths; "
        "their code is executed.",
        role=("generation", "code"),
    )
    environment_factory: str | dict[str, str] | None = setting(
        None,
        "Class or function that makes an environment, as in TRL; or name: class for several. "
        "FILE.py:CLASS or a dotted import path; its code is executed.",
        role=("generation", "code"),
    )
    rollout_func: str | None = setting(
        None,
        "Function that generates the completions, as in TRL: FILE.py:FUNCTION or a dotted import "
        "path; its code is executed.",
        role=("generation", "code"),
    )
    grader_workers: int = setting(
        2,
        "Processes that compare answers, per training process.",
        least=1,
        most=256,
        role="machine",
    )
    grader_timeout: float = setting(
        1.0,
        "Seconds that one comparison of two answers may take: of processor time on Linux.",
        above=0,
    )
    on_timeout: Literal["none", "zero"] = setting(
        "none", "A completion whose comparison takes longer counts as ungraded (none), or as wrong."
    )

    @property
    def rates_to_train_on(self) -> tuple[str, float, float] | None:
        """The file of `pass_rate`, and the lowest and the highest rate."""
        given = self.pass_rate
        if given is None:
            return None
        between: Any = given.get("between")
        numbers = isinstance(between, list) and all(type(one) in (int, float) for one in between)
        if set(given) != {"file", "between"} or not isinstance(given["file"], str):
            raise ConfigurationError(
                f"pass_rate is {str(given)[:200]!r}; give {{file: rates.jsonl, between: [0.1, "
                "0.9]}"
            )
        if not numbers or len(between) != 2 or not 0 <= between[0] <= between[1] <= 1:
            raise ConfigurationError(
                f"pass_rate: between is {str(between)[:80]!r}; give the lowest and the highest "
                "rate, from 0 to 1, such as [0.1, 0.9]"
            )
        return given["file"], float(between[0]), float(between[1])

    @property
    def only_environment_rewards(self) -> bool:
        """Whether `reward_funcs` is [], and the environments grade their completions."""
        return self.reward_funcs == [] and self.environment_factory is not None

    @property
    def own_rewards(self) -> list[RewardSpec]:
        """The entries of `reward_funcs`, with `eos_penalty` if it is on; a task of
        reasoning-gym implies its own scorer; else empty if not given."""
        implied = [GYM_REWARD] if self.dataset.startswith(GYM) and self.reward is None else None
        given = implied if self.reward_funcs is None else self.reward_funcs
        if given is None or self.only_environment_rewards:
            return []
        in_form = {"form": self.form} if self.form is not None else {}
        specs = [
            dataclasses.replace(one, kwargs={**in_form, **one.kwargs})
            if one.path == GYM_SCORE
            else one
            for one in reward_specs(given)
        ]
        if self.eos_penalty:
            specs.append(RewardSpec("eos_penalty", weight=self.eos_penalty))
        return specs

    def __post_init__(self):
        check_ranges(self)
        self._check_rewards_and_prompt()
        _ = self.rates_to_train_on
        for name, source in (self.eval_sets or {}).items():
            named = re.fullmatch(r"\w+", name) and name != "main"
            if isinstance(source, dict) and named:
                self.evaluation_task(name)
            elif not named or not isinstance(source, str) or not source:
                raise ConfigurationError(
                    f"eval_sets has {name!r}: {source!r}; use a name of letters, digits and _ "
                    "other than main, and a dataset: math, gsm8k, miniature, a Hub id, or a path"
                )

    def _check_rewards_and_prompt(self) -> None:
        own = is_own(self.template)
        if not own:
            get_template(self.template)
        if own and self.reward is None and self.reward_funcs is None:
            raise ConfigurationError(
                f"template {self.template[:300]!r} is a file, which implies no reward; set "
                f"reward_funcs, or `reward` to the format that it asks for ({', '.join(TEMPLATES)})"
            )
        if self.only_environment_rewards and self.eos_penalty:
            raise ConfigurationError(
                f"eos_penalty is {self.eos_penalty}, but reward_funcs is [], so that only the "
                "environment grades; set eos_penalty to 0, or reward_funcs to [{path: eos_penalty, "
                f"weight: {self.eos_penalty}}}]"
            )
        of_a_form = [one.path for one in self.own_rewards if one.path in ("answer", "format")]
        if of_a_form and self.form is None:
            raise ConfigurationError(
                f"reward_funcs has '{of_a_form[0]}', which reads the format of a template, and "
                f"template {self.template[:300]!r} is a file; set `reward` to one of "
                f"{', '.join(TEMPLATES)}"
            )

    @property
    def form(self) -> str | None:
        """The template whose format the answers have; None if only the user's rewards read them."""
        return self.reward or (None if is_own(self.template) else self.template)

    @property
    def needs_answers(self) -> bool:
        """Whether a reward of this package compares answers, which then have to be in the data."""
        if self.only_environment_rewards:
            return False
        return not self.own_rewards or any(one.path in MATH_REWARDS for one in self.own_rewards)

    @property
    def stop(self) -> list[str] | None:
        """The strings that end a completion if the recipe does not set `stop`."""
        asks = self.prompt_column is None and not is_own(self.template)
        return list(get_template(self.template).stop) or None if asks else None

    @property
    def sets_with_rewards(self) -> list[str]:
        """The `eval_sets` with rewards of their own: given, or implied by their dataset or this."""
        return [
            name
            for name, one in (self.eval_sets or {}).items()
            if (isinstance(one, dict) and {"reward", "reward_funcs"} & one.keys())
            or self.evaluation_task(name).own_rewards != self.own_rewards
        ]

    def evaluation_task(self, name: str) -> "TaskArguments":
        """The task of one of `eval_sets`: this one, with the set's own data and rewards. A set that
        names its dataset has none of the settings that describe this task's."""
        source = (self.eval_sets or {})[name]
        own = {"dataset": source} if isinstance(source, str) else source
        for key, value in own.items():
            if key not in EVAL_SET_KEYS:
                raise ConfigurationError(
                    f"eval_sets: '{name}' has the unknown key {str(key)[:80]!r}; use "
                    f"{', '.join(EVAL_SET_KEYS)}"
                )
            wanted = KINDS_OF_KEYS.get(key, str)
            if type(value) is not wanted and not (key == "filter" and isinstance(value, list)):
                raise ConfigurationError(
                    f"eval_sets: {key} of '{name}' is {str(value)[:80]!r}; give a {KINDS[wanted]}"
                )
            if key == "reward":
                get_template(str(value))
            if key == "filter" and not all(isinstance(one, str) for one in value):
                raise ConfigurationError(
                    f"eval_sets: filter of '{name}' is {str(value)[:80]!r}; give texts"
                )
        forgotten = names_with(TaskArguments, "data", "evaluated data") if "dataset" in own else ()
        given = {EVAL_SET_KEYS[key]: value for key, value in own.items()}
        if "reward" in own:
            given = {"reward_funcs": None} | given
        return dataclasses.replace(self, **dict.fromkeys(forgotten) | {"eval_sets": None} | given)
