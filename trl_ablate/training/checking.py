"""Whether a recipe's data, prompt and reward fit together, found out without a model's weights.

The rewards grade completions that are written here: the reference answer of each question, no
answer, and the answer of another question. The reference answer is tried in several formats,
first in that of the recipe's template, and the one that earns most is used.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase, TrainerState

from trl_ablate.advantages import weighted_reward
from trl_ablate.data.questions import texts_of
from trl_ablate.errors import ConfigurationError, RewardError
from trl_ablate.estimates import MAIN
from trl_ablate.named_code import waited_for
from trl_ablate.recipe.resolving import Resolved
from trl_ablate.rewards import MathGrader
from trl_ablate.rewards.own.calling import not_logged
from trl_ablate.run.failures import one_sentence
from trl_ablate.training.building import check_columns, reward_weights, task_dataset
from trl_ablate.training.models import load_tokenizer, starting_model
from trl_ablate.training.rewards import task_rewards

FORMATS: dict[str, str] = {
    "r1_zero": " </think> <answer> {} </answer>",
    "question_only": r"\boxed{{{}}}",
    "last_number": "so it is {}.",
    "reasoning_xml": "<reasoning> </reasoning>\n<answer>{}</answer>",
    "think_xml": "<think> </think>\n<answer>{}</answer>",
    "the answer in <answer> tags": "<answer>{}</answer>",
    "the answer alone": "{}",
}
"""How a completion gives an answer: by the name of a template, or in words."""

SHOWN = 3
TWO_STEPS = "try two steps: `trl-ablate train RECIPE --max_steps 2`"


@dataclass(frozen=True)
class Graded:
    """Completions of the same kind for all checked questions, and their total rewards."""

    completions: list[str]
    rewards: list[float | None]
    seconds: float
    """Wall time of one row, on average."""

    @property
    def graded(self) -> list[float]:
        return [reward for reward in self.rewards if reward is not None]

    @property
    def mean(self) -> float | None:
        return sum(self.graded) / len(self.graded) if self.graded else None


@dataclass(frozen=True)
class Checked:
    sizes: dict[str, int]
    columns: list[str]
    prompts: list[str]
    repeated: list[str]
    """Questions that occur more than once in the training data."""
    shared: list[str]
    """Questions that are both trained on and evaluated on."""
    questions: list[Mapping[str, Any]]
    """Those that were graded."""
    format: str | None
    """Format of the reference answer; None if the data have no answers."""
    reference: Graded | None
    wrong: Graded | None
    empty: Graded
    reward_names: list[str]

    @property
    def full(self) -> float | None:
        """The most that a reference answer earns."""
        return max(self.reference.graded, default=None) if self.reference else None

    @property
    def short_of_full(self) -> list[int]:
        """The questions whose own answer does not earn full reward."""
        rewards = self.reference.rewards if self.reference else []
        return [index for index, one in enumerate(rewards) if one is None or one != self.full]

    def problems(self) -> list[str]:
        """What makes training pointless, one sentence each."""
        if self.reference is None or self.wrong is None:
            return []
        right, wrong, empty = self.reference.mean, self.wrong.mean, self.empty.mean
        if right is None:
            return ["no reference answer is graded"]
        return [
            f"a reference answer earns no more ({right:.3g}) than {what} ({other:.3g}): the reward "
            "does not tell right from wrong, or expects another format"
            for what, other in (("a wrong one", wrong), ("an empty completion", empty))
            if other is not None and right <= other
        ]


def check_recipe(resolved: Resolved, grader: MathGrader, questions: int) -> Checked:
    """Load the data, the prompt and the rewards of a recipe, and try them out."""
    task = resolved.task
    if task.only_environment_rewards:
        raise ConfigurationError(
            "reward_funcs is [], so that only the environment grades, which check does not run; "
            f"add a reward function, or {TWO_STEPS}"
        )
    model = starting_model(resolved)
    with one_sentence(f"the tokenizer of {model}", "restore its files, or name another model"):
        tokenizer = load_tokenizer(model, resolved)
    train = task_dataset(task, "train", tokenizer)
    evaluates = resolved.config.eval_strategy != "no"  # else the data may have no such split
    evaluated = task_dataset(task, "eval", tokenizer) if evaluates else train.select([])
    rewards = task_rewards(task, tokenizer, grader, resolved, called_by_trl=False)
    weights = reward_weights(resolved, rewards)
    sets = {MAIN: evaluated} if evaluates else {}
    check_columns(rewards, {}, train, sets, resolved.config.eval_by)
    rows: list[Any] = list(train.select(range(min(questions, len(train)))))
    grade = partial(_graded, rewards.functions, torch.tensor(weights), tokenizer, rows)
    try:
        empty = grade([""] * len(rows))
        form, reference = _reference(grade, rows, task.form)
    except RewardError as error:
        if task.environment_factory is None:
            raise
        raise ConfigurationError(
            f"{error}; or if it needs an environment, which check does not run, {TWO_STEPS}"
        ) from error
    texts = texts_of(train)
    return Checked(
        sizes={"train": len(train), "eval": len(evaluated)},
        columns=train.column_names,
        prompts=[_shown(row["prompt"], tokenizer, resolved) for row in rows[:SHOWN]],
        repeated=[text for text, count in Counter(texts).items() if count > 1],
        shared=sorted({*texts} & {*texts_of(evaluated)}),
        questions=rows,
        format=form,
        reference=reference,
        wrong=grade(_wrong(reference.completions)) if reference else None,
        empty=empty,
        reward_names=list(rewards.needs),
    )


def _graded(
    functions: Sequence[Callable[..., Any]],
    weights_F: torch.Tensor,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Mapping[str, Any]],
    completions: list[str],
) -> Graded:
    """One completion for each of the questions, graded as TRL would."""
    messages = not isinstance(rows[0]["prompt"], str)
    ids: Any = tokenizer(completions, add_special_tokens=False)["input_ids"]
    given = {
        "prompts": [row["prompt"] for row in rows],
        "completions": [
            [{"role": "assistant", "content": text}] if messages else text for text in completions
        ],
        "completion_ids": [[*each, tokenizer.eos_token_id] for each in ids],
        **{key: [row[key] for row in rows] for key in rows[0] if key != "prompt"},
        "trainer_state": TrainerState(epoch=0, max_steps=1),
        "log_metric": not_logged,
        "log_extra": not_logged,
    }
    started = time.perf_counter()
    found_FN = [waited_for(function(**given)) for function in functions]
    seconds = (time.perf_counter() - started) / len(completions)
    rewards_FN = [[torch.nan if one is None else float(one) for one in row] for row in found_FN]
    total = weighted_reward(torch.tensor(rewards_FN).T, weights_F).tolist()
    return Graded(completions, [None if one != one else one for one in total], seconds)


def _reference(
    grade: Callable[[list[str]], Graded], rows: Sequence[Mapping[str, Any]], form: str | None
) -> tuple[str | None, Graded | None]:
    """The completions that give the reference answers, in the format that earns most; of equal
    ones, in that of the template."""
    answers = [str(row["answer"]) for row in rows if row.get("answer") is not None]
    if len(answers) < len(rows):
        return None, None
    names = sorted(FORMATS, key=lambda name: name != form)
    tried = {name: grade([FORMATS[name].format(answer) for answer in answers]) for name in names}
    return max(tried.items(), key=lambda one: -torch.inf if one[1].mean is None else one[1].mean)


def _wrong(completions: list[str]) -> list[str]:
    """For each question, the next completion that gives another answer."""
    return [
        next((one for one in completions[index:] + completions[:index] if one != own), "")
        for index, own in enumerate(completions)
    ]


def _shown(prompt: Any, tokenizer: PreTrainedTokenizerBase, resolved: Resolved) -> str:
    if isinstance(prompt, str):
        return prompt
    kwargs: Any = resolved.config.chat_template_kwargs or {}
    return str(tokenizer.apply_chat_template(
        prompt, tokenize=False, add_generation_prompt=True, **kwargs
    ))  # fmt: skip
