"""Evaluates a saved model (a folder, a run's directory, a Hub id, or the miniature): finds it,
builds it, generates and grades completions, and makes a report."""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers.utils.logging import disable_progress_bar

from trl_ablate.errors import ConfigurationError
from trl_ablate.estimates import MAIN, standard_errors
from trl_ablate.metrics import EVAL_REWARD
from trl_ablate.miniature.registry import has_levels, is_miniature
from trl_ablate.recipe.overrides import read_overrides
from trl_ablate.recipe.places import SHIPPED
from trl_ablate.recipe.resolving import Resolved, load_recipe, resolve_run
from trl_ablate.rewards import MathGrader, grader_of
from trl_ablate.run.checkpoints import check_seal
from trl_ablate.run.directory import RunDirectory, is_checkpoint
from trl_ablate.run.failures import one_sentence
from trl_ablate.run.folders import where_it_stands
from trl_ablate.run.identity import provenance
from trl_ablate.run.masking import Masker, known_secrets
from trl_ablate.switches import named
from trl_ablate.trainer.ablation import AblationTrainer
from trl_ablate.trainer.one_shot import evaluations
from trl_ablate.training import models
from trl_ablate.training.building import check_all_fit, evaluation_sets, put_together

MODEL_FILES = ("config.json", "adapter_config.json")
"""Every folder with a model or an adapter has one of these files."""

ONLY_EVALUATION: dict[str, Any] = {
    "start": "base", "report_to": "none", "evaluation": "one_shot",
    "eval_strategy": "no", "save_strategy": "no", "best_metric": EVAL_REWARD,
    "metric_for_best_model": None, "load_best_model_at_end": False, "beta": 0.0,
    "sync_ref_model": False, "use_peft": False, "gradient_checkpointing": False,
    "push_to_hub": False, "lr_scheduler_type": "constant", "lr_scheduler_kwargs": None,
}  # fmt: skip
"""Settings of a trainer that only evaluates: one model, nothing saved, nothing reported."""


@dataclass(frozen=True)
class Checkpoint:
    """A model, and the run that it belongs to, if known."""

    model: str
    run: RunDirectory | None = None


def find_checkpoint(name: str) -> Checkpoint:
    """The model that a name refers to; for a run, its best model, or else its last."""
    folder = Path(name)
    if not folder.exists():
        is_path = name.startswith((".", "/", "~")) or name.count("/") > 1
        if is_path and not is_miniature(name):
            raise ConfigurationError(
                f"checkpoint {name} does not exist; give a model's folder, a run's directory, "
                "a Hub id, or miniature"
            )
        return Checkpoint(name)
    run = RunDirectory(folder)
    if run.config_file.exists():
        for model in map(where_it_stands, (run.checkpoint_best, run.checkpoint_last)):
            if holds_model(model):
                check_seal(model)
                return Checkpoint(str(model), run)
    if not holds_model(folder):
        raise ConfigurationError(
            f"checkpoint {name} holds no model ({' or '.join(MODEL_FILES)}); give a model's "
            "folder, or a run's directory with checkpoint_best or checkpoint_last"
        )
    around = RunDirectory(folder.resolve().parent)
    in_a_run = around.config_file.exists()
    check_seal(folder, needed=in_a_run and is_checkpoint(folder))
    return Checkpoint(name, around if in_a_run else None)


def holds_model(folder: Path) -> bool:
    return any((folder / name).is_file() for name in MODEL_FILES)


def to_evaluate(
    checkpoint: Checkpoint,
    words: Iterable[str] = (),
    *,
    recipe: Path | None = None,
    profile: str = "auto",
    scratch: str,
) -> Resolved:
    """The settings for an evaluation: those of the recipe, or else of the run, changed by `words`.

    If the words name a dataset, the settings that describe the former dataset are dropped.
    """
    given = read_overrides(words)
    forgotten = dict.fromkeys(named("data", "evaluated data")) if "dataset" in given else {}
    if forgotten and not has_levels(str(given["dataset"])):
        forgotten["eval_by"] = None
    fixed = {**ONLY_EVALUATION, "model_name_or_path": checkpoint.model, "output_dir": scratch}
    overrides = {**forgotten, "model_revision": "main", **given, **fixed}  # not the run's revision
    if checkpoint.run is not None and recipe is None:
        if profile != "auto":
            raise ConfigurationError(
                f"profile '{profile}' needs a recipe, but {checkpoint.model} is evaluated with the "
                "settings of its run; add --recipe, or give the settings themselves"
            )
        return resolve_run(checkpoint.run.config_file, overrides)
    return load_recipe(recipe or SHIPPED / "grpo.yaml", profile, overrides)


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
    sources = {"": task.dataset}
    sources |= {name: task.evaluation_task(name).dataset for name in task.eval_sets or ()}
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
    return Masker(known_secrets([resolved.settings], sys.argv, config.hub_token)).value(report)


def _or(value, other):
    return other if value is None else value


def build_evaluator(resolved: Resolved, grader: MathGrader) -> AblationTrainer:
    """A trainer that only evaluates; an adapter is merged into its base."""
    name = models.starting_model(resolved)
    fix = "give a model's folder, a run's directory, a Hub id, or miniature"
    with one_sentence(f"checkpoint {name}", fix):
        tokenizer = models.load_tokenizer(name, resolved)
        model = models.merged_adapter(name, resolved) if models.is_adapter(name) else name
        if model is name:
            models.check_model(name, resolved)
    sets = evaluation_sets(resolved.task, tokenizer)
    check_all_fit(sets, tokenizer, models.context_of(name, resolved), "eval questions")
    return put_together(resolved, grader, model, tokenizer, sets[MAIN], sets)
