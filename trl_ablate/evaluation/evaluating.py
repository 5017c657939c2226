"""Evaluates a saved model: builds it, generates and grades completions, and makes a report."""

import sys
from collections.abc import Mapping
from typing import Any

from transformers.utils.logging import disable_progress_bar

from trl_ablate.estimates import MAIN, standard_errors
from trl_ablate.recipe.resolving import Resolved
from trl_ablate.rewards import MathGrader, grader_of
from trl_ablate.run.masking import Masker, known_secrets
from trl_ablate.run.provenance import provenance
from trl_ablate.trainer.ablation import AblationTrainer
from trl_ablate.trainer.one_shot import evaluations
from trl_ablate.training.building import check_all_fit, evaluation_sets, put_together
from trl_ablate.training.models import (
    check_model,
    context_of,
    is_adapter,
    load_tokenizer,
    merged_adapter,
    one_sentence,
    resolve_model,
    starting_point,
)


def evaluate(resolved) -> dict[str, Any]:
    """The `Evaluation` of the main dataset (at key '') and of each of `eval_sets`."""
    disable_progress_bar()
    with grader_of(resolved.task) as grader:
        evaluator = build_evaluator(resolved, grader)
        questions: Any = evaluator.eval_dataset
        return evaluations(evaluator, questions)


def describe(name: str, resolved, found: Mapping[str, Any]) -> dict[str, Any]:
    """The content of the JSON file: the numbers, the settings, and the code and machine."""
    config, task = resolved.config, resolved.task
    samples = config.num_generations_eval or config.num_generations
    named = {name: task.evaluation_task(name).dataset for name in task.eval_sets or ()}
    sources = {"": task.dataset, **named}
    report = {
        "checkpoint": name,
        "model": resolved.model.model_name_or_path,
        "samples": samples,
        "temperature": _or(config.eval_temperature, config.temperature),
        "top_p": _or(config.eval_top_p, config.top_p),
        "seed": config.seed,
        "sets": {
            key or "main": {
                "dataset": sources[key],
                "questions": len(one.rows) // samples,
                "metrics": one.metrics,
                "standard_errors": standard_errors(one.rows, samples),
            }
            for key, one in found.items()
        },
        "command": sys.argv,
        **provenance(),
        "resolved": resolved.to_dict(),
    }
    return Masker(known_secrets([], sys.argv, config.hub_token)).value(report)


def _or(value, other):
    return other if value is None else value


def build_evaluator(resolved: Resolved, grader: MathGrader) -> AblationTrainer:
    """A trainer that only evaluates; an adapter is merged into its base."""
    name = resolve_model(starting_point(resolved))
    fix = "give a model's folder, a run's directory, a Hub id, or miniature"
    with one_sentence(f"checkpoint {name}", fix):
        tokenizer = load_tokenizer(name, resolved)
        model = merged_adapter(name, resolved) if is_adapter(name) else name
        if model is name:
            check_model(name, resolved)
    sets = evaluation_sets(resolved.task, tokenizer)
    check_all_fit(sets, tokenizer, context_of(name, resolved), "eval questions")
    questions = sets[MAIN] if isinstance(sets, dict) else sets
    return put_together(resolved, grader, model, tokenizer, questions, sets)
