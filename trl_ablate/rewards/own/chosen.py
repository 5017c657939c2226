"""From `reward_funcs` of a recipe to the functions and weights that TRL takes."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trl_ablate.errors import ConfigurationError
from trl_ablate.prompts.templates import TEMPLATES
from trl_ablate.reward_specs import MATH_REWARDS, RewardSpec
from trl_ablate.rewards.functions import GradedRewards
from trl_ablate.rewards.grading.grader import MathGrader
from trl_ablate.rewards.own.calling import guarded
from trl_ablate.rewards.own.finding import calls_of
from trl_ablate.rewards.own.timed import Timed, timed


@dataclass(frozen=True)
class Rewards:
    """What `GRPOTrainer` takes: functions or reward models, and a weight for each."""

    functions: list[Any]
    weights: list[float]
    needs: Mapping[str, list[str]] = field(default_factory=dict)
    """Reward's name -> the columns that it cannot be called without."""

    def check_columns(self, columns: Sequence[str], what: str) -> None:
        """Refuse data without a column that a reward needs."""
        for name, needed in self.needs.items():
            for column in needed:
                if column not in columns:
                    raise ConfigurationError(
                        f"reward '{name}' needs the column '{column}', but the {what} have "
                        f"{', '.join(columns)}; add the column, or rename the function's argument "
                        "or give it a default"
                    )


@dataclass(frozen=True)
class Tools:
    """What rewards are made with.

    Args:
        form: the template whose format `answer` and `format` read; None if the recipe names none.
        load_model: loads a reward model by its Hub id or folder.
        limits: of functions in worker processes; None if the recipe sets no `reward_timeout`.
    """

    grader: MathGrader
    form: str | None
    load_model: Callable[[str], Any]
    eos_token_ids: Collection[int] = ()
    special_token_ids: Collection[int] = ()
    limits: Timed | None = None


def chosen_rewards(specs: Sequence[RewardSpec], tools: Tools) -> Rewards:
    """The rewards that `reward_funcs` lists, in its order."""
    graded: dict[str, GradedRewards] = {}
    functions, needs, names = [], {}, []
    for spec in specs:
        if spec.kind == "own":
            function = _own(spec, specs, tools, graded)
            needed = ["answer"] if spec.path in MATH_REWARDS else []
        elif spec.kind == "model":
            function, needed = tools.load_model(spec.path), []
        else:
            calls = calls_of(spec)
            needed = calls.needed()
            limits = tools.limits
            function = timed(calls, spec, limits) if limits else guarded(calls)
        name = spec.path if spec.kind == "model" else function.__name__
        if name in names:
            raise ConfigurationError(
                f"reward_funcs has two rewards named '{name}', whose metrics would mix; give one "
                "of them another `name`"
            )
        names.append(name)
        needs[name] = needed
        functions.append(function)
    return Rewards(functions, [spec.weight for spec in specs], needs)


def _own(
    spec: RewardSpec,
    specs: Sequence[RewardSpec],
    tools: Tools,
    graded: dict[str, GradedRewards],
) -> Callable[..., Any]:
    """A reward of this package. Those of one format share the grading of a batch, which the first
    of them logs."""
    graders = [one.path for one in specs if one.path in MATH_REWARDS]
    if spec.path == "eos_penalty" and not graders:
        return _renamed(GradedRewards.eos_alone(tools.eos_token_ids, tools.special_token_ids), spec)
    form = _form(spec.path if spec.path != "eos_penalty" else graders[0], tools.form)
    batch = graded.setdefault(form, GradedRewards(form, tools.grader))
    if spec.path == "eos_penalty":
        return _renamed(batch.eos_penalty(tools.eos_token_ids, tools.special_token_ids), spec)
    parts = {"answer": "answer_reward", "format": "format_reward"}
    part, logs = parts.get(spec.path, "reward"), spec.path == graders[0]
    return _renamed(batch.marks(spec.path, part, logs=logs), spec)


def _form(path: str, form: str | None) -> str:
    if path in TEMPLATES:
        return path
    if form is None:
        raise ConfigurationError(
            f"reward '{path}' reads answers in the format of a template, and the recipe's template "
            f"is its own; set `reward` to one of {', '.join(TEMPLATES)}"
        )
    return form


def _renamed(function: Callable[..., Any], spec: RewardSpec) -> Callable[..., Any]:
    if spec.name is not None:
        function.__name__ = spec.name
    return function
