"""Tasks of reasoning-gym: their questions, made from a seed, and their own scorers as a reward.

A question is known by its task, the task's config and its index; it is made again from them to
score an answer, so that no column has to hold what the task knows about it. reasoning-gym is
optional and takes seconds to import.

An answer is text of the model. Some scorers would run it as Python (`eval`, and sympy's
`parse_expr`, which evals): here they read literals and formulas only, and a text that is neither
gets what the scorer gives for one that it cannot read. And scorers run in worker processes that are
killed when they take too long (`chosen.chosen_rewards`).
"""

import ast
import builtins
import functools
import importlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from trl_ablate.errors import ConfigurationError, nearest
from trl_ablate.named_code import one_line
from trl_ablate.reward_specs import GYM
from trl_ablate.rewards.extract import extract
from trl_ablate.rewards.functions import completion_text

USUAL_SIZE = 500  # as in reasoning-gym
FAR_AWAY, SEED_STRIDE = 10**9, 100_003
"""Item i of a task is drawn with seed + i: what is added to the seed for every split but `train`,
and how far apart the questions of two subset_seeds begin."""
EVAL, PARSE = "eval", "parse_expr"
READS = {
    "algorithmic.string_insertion": EVAL,
    "algorithmic.spiral_matrix": EVAL,
    "algorithmic.binary_matrix": EVAL,
    "games.n_queens": EVAL,
    "games.countdown": PARSE,
    "games.puzzle24": PARSE,
    "algebra.simple_integration": "sympy",
    "algebra.intermediate_integration": "sympy",
    "algebra.polynomial_multiplication": "sp",
}
"""Modules whose scorers run an answer, and the name through which they do (sympy's `parse_expr` as
an attribute in the last three)."""
OF_FORMULAS = """
E I pi abs Abs sign min max Min Max sqrt cbrt exp log ln sin cos tan cot sec csc asin acos atan acot
asec acsc sinh cosh tanh coth sech csch asinh acosh atanh erf erfc erfi gamma lowergamma uppergamma
Ei Si Ci li fresnels fresnelc Integral
"""
"""What a formula may name of sympy; a name that sympy and Python do not know is a variable."""
STRICT: dict[str, Callable[[str, Mapping[str, Any]], bool]] = {
    "game_of_life_halting": lambda answer, entry: answer.strip() == str(entry["answer"]),
    "puzzle24": lambda answer, entry: (
        sorted(map(int, re.findall(r"\d+", answer))) == sorted(entry["metadata"]["numbers"])
    ),
}
"""What an answer needs of which the task's own scorer does not look: it gives a full score to any
answer, or to one with other numbers than those of the question."""
_NODES = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.Call, ast.Name, ast.Constant, ast.Load, ast.USub,
    ast.UAdd, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.BitXor,
)  # fmt: skip
LONGEST_EXPONENT, LONGEST_POWER = 4, 10_000  # digits


def gym_rows(
    dataset: str, gym: Mapping[str, Any] | None, split: str, size: int | None, seed: int
) -> list[dict[str, Any]]:
    """As many questions as are asked for, in the order of their index; `gym` is the config of the
    task, whose own size (of the training questions) and seed are used if it has them."""
    config = {"seed": seed * SEED_STRIDE % 2**31, **(gym or {})}
    config["size"] = size or config.get("size", USUAL_SIZE)
    for name, least in (("size", 1), ("seed", 0)):
        if type(config[name]) is not int or config[name] < least:
            raise ConfigurationError(
                f"gym: {name} is {str(config[name])[:80]}; give a whole number from {least} on"
            )
    if split != "train":
        config = _far_away(config)
    task = dataset.removeprefix(GYM)
    made = create(task, config)
    described = json.dumps({"task": task, "config": config}, sort_keys=True)
    try:
        return [_row(made[index], described, index) for index in range(config["size"])]
    except Exception as error:  # of the task's own code
        raise ConfigurationError(
            f"dataset '{dataset}' cannot make its questions with gym {str(config)[:200]}: "
            f"{one_line(error)}; change gym"
        ) from error


def _far_away(config: dict[str, Any]) -> dict[str, Any]:
    """The config with other seeds, also of the tasks in a composite that have their own."""
    moved = dict(config)
    if type(moved.get("seed")) is int:
        moved["seed"] += FAR_AWAY
    if "datasets" in moved:
        inside = [{"config": {}, **one} for one in moved["datasets"]]
        moved["datasets"] = [{**one, "config": _far_away(one["config"])} for one in inside]
    return moved


def _row(entry: dict[str, Any], described: str, index: int) -> dict[str, Any]:
    """The question and the answer, if the task has one; numbers of its metadata are columns."""
    answer, metadata = entry["answer"], dict(entry.get("metadata") or {})
    metadata.pop("source_index", None)
    return {
        "question": entry["question"],
        "answer": None if answer is None else str(answer),
        **{name: value for name, value in metadata.items() if type(value) is int},
        "gym": described,
        "gym_index": index,
    }


def create(task: str, config: Mapping[str, Any]) -> Any:
    """A task's `ProceduralDataset`; `config` has fields of the task's config class."""
    try:
        from reasoning_gym.composite import DatasetSpec
        from reasoning_gym.factory import DATASETS, create_dataset
    except ImportError as error:
        raise ConfigurationError(
            f"dataset '{GYM}{task}' needs reasoning-gym, which is not installed; "
            "pip install 'trl-ablate[gym]'"
        ) from error
    make_scorers_harmless()
    if task not in DATASETS:
        meant = nearest(task, DATASETS) or "; its documentation lists the tasks"
        raise ConfigurationError(
            f"dataset '{GYM}{task[:80]}' is not a task of reasoning-gym{meant}"
        )
    given = dict(config)
    if task == "composite" and "datasets" in given:
        usual = {"weight": 1, "config": {}}
        given["datasets"] = [DatasetSpec(**{**usual, **one}) for one in given["datasets"]]
    try:
        return create_dataset(task, **given)
    except (TypeError, ValueError, AssertionError) as error:
        raise ConfigurationError(
            f"dataset '{GYM}{task}' refuses gym {str(dict(config))[:200]}: {one_line(error)}; give "
            "the fields of the task's config"
        ) from error


@functools.lru_cache(maxsize=8)
def _made(described: str) -> Any:
    found = json.loads(described)
    return create(found["task"], found["config"])


@functools.lru_cache(maxsize=8192)
def _entry(described: str, index: int) -> dict[str, Any]:
    return _made(described)[index]


@functools.cache
def make_scorers_harmless() -> None:
    """Import reasoning-gym, and let no scorer of it run an answer."""
    import sympy

    for name, used in READS.items():
        module = importlib.import_module(f"reasoning_gym.{name}")
        reader: Any = {EVAL: ast.literal_eval, PARSE: formula}.get(used)
        stand_in = reader or SimpleNamespace(**{**vars(sympy), PARSE: formula})
        setattr(module, used, stand_in)


def formula(text: str, *args: Any, **kwargs: Any) -> Any:
    """sympy's `parse_expr` for a formula of numbers, variables, operators and usual functions; any
    other text, and a number too long to compute, is a `ValueError` (or `SyntaxError`)."""
    import sympy

    known = {*sympy.__all__, *dir(builtins)}.difference(OF_FORMULAS.split())
    digits: dict[ast.AST, int] = {}
    for node in reversed([*ast.walk(ast.parse(text.strip(), mode="eval"))]):  # inner ones first
        if not isinstance(node, _NODES):
            raise ValueError(f"a formula has no {type(node).__name__}")
        if isinstance(node, ast.Name) and (node.id in known or node.id.startswith("_")):
            raise ValueError(f"a formula has no {node.id}")
        digits[node] = sum(digits[child] for child in ast.iter_child_nodes(node))
        if isinstance(node, ast.Constant):
            value: Any = node.value
            if type(value) not in (int, float) or not math.isfinite(value):
                raise ValueError(f"a formula has no {value!r:.80}")
            digits[node] = len(str(value))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
            if digits[node.right] > LONGEST_EXPONENT:
                raise ValueError("an exponent is too long")
            digits[node] = digits[node.left] * 10 ** digits[node.right]
            if digits[node] > LONGEST_POWER:
                raise ValueError("a power is too long")
    return sympy.parse_expr(text, *args, **kwargs)


def with_entries(reward: Callable[..., Any]) -> Callable[..., Any]:
    """The reward `score`, which is also given what the tasks know about the questions: to make that
    takes seconds in some tasks, which is not the answer's time. It logs the column `answer_reward`:
    many tasks give a part of the score for a wrong answer, and a success is a full one."""

    @functools.wraps(reward)
    def given_entries(**given: Any) -> Any:
        places = zip(given["gym"], given["gym_index"], strict=True)
        scores = reward(**given, entries=[_entry(described, int(n)) for described, n in places])
        if (log_extra := given.get("log_extra")) is not None:
            log_extra("answer_reward", [one if one is None else float(one >= 1) for one in scores])
        return scores

    return given_entries


def score(
    prompts: Sequence[Any],
    completions: Sequence[Any],
    completion_ids: Sequence[Any],
    gym: Sequence[str],
    gym_index: Sequence[int],
    form: str = "r1_zero",
    entries: Sequence[dict[str, Any]] | None = None,
) -> list[float | None]:
    """The task's own score, from 0 to 1, of each completion's answer in the format of a template;
    0 without an answer, and for one at which the scorer raises, unless it raises at the task's own
    answer, too: then the completion is ungraded. `entries`: what the tasks know about the
    questions, if it is made already."""
    answers = [extract(form, completion_text(text)).answer for text in completions]
    if entries is None:
        entries = [_entry(*place) for place in zip(gym, map(int, gym_index), strict=True)]
    return [_score(*row) for row in zip(answers, gym, entries, strict=True)]


def _score(answer: str | None, described: str, entry: dict[str, Any]) -> float | None:
    if answer is None:
        return 0.0
    task = _made(described)
    strict = STRICT.get((entry.get("metadata") or {}).get("source_dataset", ""))
    if strict and not strict(answer, entry):
        return 0.0
    found = _scored(task, answer, entry)
    scorer_works = found is not None or _scored(task, str(entry["answer"]), entry) is not None
    return (found or 0.0) if scorer_works else None


def _scored(task: Any, answer: str, entry: dict[str, Any]) -> float | None:
    try:
        return float(task.score_answer(answer, entry))
    except Exception:  # many scorers parse the answer, and raise for text that they do not expect
        return None
