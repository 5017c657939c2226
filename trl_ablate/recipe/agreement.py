"""Checks of settings across the argument groups, and warnings about some combinations."""

import math
from collections.abc import Mapping
from typing import Any

from transformers.training_args import OptimizerNames
from trl import ModelConfig

from trl_ablate.config import AblationConfig
from trl_ablate.errors import ConfigurationError, brief, nearest
from trl_ablate.estimates import metric_name, metric_names
from trl_ablate.metrics import is_better_lower
from trl_ablate.prompts.templates import TEMPLATES, is_own
from trl_ablate.rewards.own.chosen import template_specs
from trl_ablate.task import TaskArguments

SIGNIFICAND_BITS = {"bfloat16": 8, "float16": 11}
TYPICAL_WEIGHT = 0.02


def check_agreement(config: AblationConfig, task: TaskArguments) -> None:
    """Refuse settings that contradict each other."""
    if config.resume_from_checkpoint is not None:
        raise ConfigurationError(
            f"resume_from_checkpoint is '{brief(config.resume_from_checkpoint)}', which is not "
            "supported; use --resume, which continues from the last whole checkpoint in "
            "output_dir, or --model_name_or_path to start a new run from a model"
        )
    if config.sync_ref_model and config.beta == 0:
        raise ConfigurationError(
            "sync_ref_model is true, but beta is 0, so there is no reference model; raise "
            "beta, or set sync_ref_model to false"
        )
    _check_evaluation(config, task)
    _check_rewards(config, task)
    _limit_prompts(config, task)


def _check_evaluation(config: AblationConfig, task: TaskArguments) -> None:
    """Check that an evaluation's metric names are unique and include the best metric."""
    sets = task.eval_sets or ()
    names, of_trl = evaluation_metrics(config, task), evaluation_metrics(config, task, "trl")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigurationError(
            f"eval_sets {', '.join(sets)} would define the metric '{twice[0]}' twice; rename the "
            "set"
        )
    if is_better_lower(config.best_metric):
        raise ConfigurationError(
            f"best_metric is '{brief(config.best_metric)}', of which a lower value is better, and "
            "the highest is kept; name a reward, such as eval_reward"
        )
    followed = {"best_metric": config.best_metric}
    if config.evaluation == "one_shot" and config.metric_for_best_model is not None:
        followed["metric_for_best_model"] = config.metric_for_best_model
    for setting, metric in followed.items():
        name, _, group = metric.partition("/")
        if config.eval_by and group.startswith(f"{config.eval_by}="):
            metric = name  # such as `eval_reward/level=3`
        if config.evaluation == "trl" and metric in names and metric not in of_trl:
            raise ConfigurationError(
                f"{setting} '{metric}' needs evaluation 'one_shot', but evaluation is 'trl'; "
                "change one of the two"
            )
        if metric not in names and not (setting != "best_metric" and f"eval_{metric}" in names):
            raise ConfigurationError(
                f"{setting} '{brief(metric)}' is not a metric of this evaluation"
                f"{nearest(metric, names) or '; one is eval_reward'}"
            )


def evaluation_metrics(
    config: AblationConfig, task: TaskArguments, evaluation: str = "one_shot"
) -> list[str]:
    """Names of the metrics of an evaluation, without those that reward functions log themselves."""
    samples, sets = config.num_generations_eval or config.num_generations or 1, task.eval_sets or ()
    names = metric_names(samples, sets, one_shot=evaluation == "one_shot")
    for key, one in {"": task, **{key: task.evaluation_task(key) for key in sets}}.items():
        for of in dict.fromkeys(reward_names(one)):
            names += [metric_name(f"rewards/{of}/{kind}", key) for kind in ("mean", "std")]
    return names


def _check_rewards(config: AblationConfig, task: TaskArguments) -> None:
    """The trainer checks the gate of the user's own rewards once it has imported them."""
    given = task.own_rewards[: len(task.reward_funcs or ())]
    weighted = [one.path for one in given if one.weight != 1.0]
    if weighted and config.reward_weights is not None:
        raise ConfigurationError(
            f"reward_weights is {config.reward_weights}, but reward_funcs gives {weighted[0]} a "
            "weight of its own; remove one of the two"
        )
    if config.evaluation == "trl" and (apart := task.sets_with_rewards):
        raise ConfigurationError(
            f"the reward of '{apart[0]}' needs evaluation 'one_shot', but evaluation is 'trl'; "
            "change one of the two"
        )
    names = reward_names(task)
    if not task.own_rewards and config.outcome_gate not in (None, *names):
        raise ConfigurationError(
            f"outcome_gate is '{brief(config.outcome_gate)}', but the reward functions are "
            f"{', '.join(names)}; name one of them, or set outcome_gate to null"
        )
    exchanged = config.reward_noise and not config.placebo
    penalty = task.eos_penalty or any(one.path == "eos_penalty" for one in task.own_rewards)
    if exchanged and penalty and config.outcome_gate in (None, "eos_penalty"):
        other = next((name for name in reversed(names) if name != "eos_penalty"), "another reward")
        raise ConfigurationError(
            f"reward_noise {config.reward_noise} exchanges rewards of 0 and 1, but eos_penalty is "
            f"0 or negative; leave eos_penalty out, or set outcome_gate to {other}"
        )


def reward_names(task: TaskArguments) -> tuple[str, ...]:
    """The names of the task's reward functions, as far as they are known before any is imported."""
    implied = [] if task.form is None else template_specs(task.form, task.eos_penalty)
    return tuple(one.logged for one in task.own_rewards or implied)


def check_quantization(config: AblationConfig, model: ModelConfig) -> None:
    """Quantized weights cannot be trained; only adapters on top of them can, without an engine."""
    asked = [name for name in ("load_in_8bit", "load_in_4bit") if getattr(model, name)]
    if asked and not model.use_peft:
        raise ConfigurationError(
            f"{asked[0]} needs use_peft: quantized weights are not trained, adapters on top of "
            "them are; set use_peft to true, or remove the setting"
        )
    if asked and config.use_vllm:
        raise ConfigurationError(
            f"{asked[0]} and use_vllm: the engine would sample from other weights, and recent vLLM "
            "loads none that bitsandbytes quantizes; set use_vllm to false, or remove the setting"
        )


def _limit_prompts(config: AblationConfig, task: TaskArguments) -> None:
    """Limit prompts to the engine's length: it refuses longer prompts and cuts off completions."""
    if not config.use_vllm or config.vllm_max_model_length is None:
        return
    room = config.vllm_max_model_length - (config.max_completion_length or 0)
    if task.max_prompt_length is None:
        task.max_prompt_length = room
    if task.max_prompt_length > room:
        raise ConfigurationError(
            f"max_prompt_length {task.max_prompt_length} and max_completion_length "
            f"{config.max_completion_length} are more than vllm_max_model_length "
            f"{config.vllm_max_model_length}; lower one of the two, or raise vllm_max_model_length"
        )


def trust_warnings(config: AblationConfig) -> list[str]:
    """Warn about running code from a model's repository, so that the user does not overlook it."""
    loading = config.model_init_kwargs
    asked: dict[str, Any] = {"trust_remote_code": config.trust_remote_code}
    if isinstance(loading, Mapping):
        asked["model_init_kwargs: trust_remote_code"] = loading.get("trust_remote_code")
    return [
        f"{key} is on: code from the model's repository runs on this machine with all of your "
        "rights; leave it off for models whose code you have not read"
        for key, on in asked.items()
        if on
    ]


def template_warnings(task: TaskArguments, arguments: Mapping[str, Any]) -> list[str]:
    """A template has its own stop strings and reward; warn if only one of them is changed."""
    name, said = task.template, []
    if is_own(name) or task.prompt_column is not None:
        return []
    stop = TEMPLATES[name].stop
    if "stop" in arguments and tuple(arguments["stop"] or ()) != stop:
        said.append(
            f"stop is {arguments['stop']}, but template '{name}' needs {list(stop)}: its reward "
            "may not find the end of an answer"
        )
    if task.reward and task.reward != name and task.reward_funcs is None:
        said.append(
            f"reward '{task.reward}' grades completions that template '{name}' asks for in another "
            "format"
        )
    return said


def smallest_learning_rate(dtype: str) -> float:
    """Below it most updates of weights of this type are lost; 0 for precise enough types.

    Adam's first steps move a weight by about the learning rate, later ones by less. A number with p
    bits of significand is rounded to the nearest, and half of its step at w is between
    |w| 2^-(p+1) and |w| 2^-p: a smaller update does not change w. Typical weights of a language
    model are about 0.02, so the limit is 0.02 * 2^-(p+1): 3.9e-5 for bfloat16, 4.9e-6 for float16.
    Below it only small weights still change: 2 in 100 at a learning rate of 1e-6.
    """
    return TYPICAL_WEIGHT * 2.0 ** -(SIGNIFICAND_BITS.get(dtype, math.inf) + 1)


def precision_warnings(config: AblationConfig, model: ModelConfig) -> list[str]:
    """A warning if most updates of the trained weights are lost; only for optimizers whose updates
    are about as large as the learning rate."""
    optimizer = OptimizerNames(config.optim).value
    if "adam" not in optimizer and "lion" not in optimizer:
        return []
    dtype, why = trained_dtype(config, model)
    smallest = smallest_learning_rate(dtype)
    if config.learning_rate >= smallest:
        return []
    return [
        f"the trained weights are {dtype} ({why}), and learning_rate {config.learning_rate:g} is "
        f"below {smallest:.1e}, half a {dtype} step of a weight of {TYPICAL_WEIGHT}: most updates "
        "are rounded away; train float32 weights (dtype: float32, and bf16: true to compute in "
        "bfloat16)"
    ]


def trained_dtype(config: AblationConfig, model: ModelConfig) -> tuple[str, str]:
    """The type of the weights that the optimizer updates, and the setting that decides it."""
    if config.use_transformers_continuous_batching and (config.bf16 or config.fp16):
        cast = "bfloat16" if config.bf16 else "float16"
        return cast, "use_transformers_continuous_batching casts the policy to it"
    if model.use_peft:  # TRL chooses it for quantized models, PEFT for all others
        quantized = model.load_in_4bit or model.load_in_8bit
        return ("bfloat16", "adapters of a quantized model") if quantized else ("float32", "LoRA")
    given = config.model_init_kwargs if isinstance(config.model_init_kwargs, dict) else {}
    dtype = str(given.get("dtype", model.dtype)).removeprefix("torch.")
    if dtype in ("auto", "None"):
        return "bfloat16", f"dtype is {dtype}, and so most checkpoints are"
    return dtype, f"dtype is {dtype}"
