"""The metric that decides which model is the best, if evaluation computes no loss.

transformers uses a metric of the evaluation for `load_best_model_at_end`, for `save_strategy`
'best' and for the learning rate schedulers that wait for a plateau. Its default is the loss.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trl_ablate.errors import ConfigurationError
from trl_ablate.estimates import MAIN

if TYPE_CHECKING:
    from trl_ablate.config import AblationConfig

METRIC_SCHEDULERS = ("reduce_lr_on_plateau", "greedy")
"""Learning rate schedulers that follow a metric."""


def follow_the_best_metric(config: "AblationConfig") -> None:
    """Make `best_metric` the default of `metric_for_best_model`; higher is better."""
    if config.evaluation == "trl" or not _is_followed(config):
        return
    metric = config.metric_for_best_model or config.best_metric
    if metric.endswith("loss"):
        raise ConfigurationError(
            f"metric_for_best_model is '{metric}', but evaluation 'one_shot' computes no loss; "
            "use a metric such as eval_reward, or evaluation 'trl'"
        )
    config.metric_for_best_model = metric
    if config.greater_is_better is None:
        config.greater_is_better = True
    if config.lr_scheduler_type in METRIC_SCHEDULERS:
        config.lr_scheduler_kwargs = _scheduler_settings(config)


def _is_followed(config: "AblationConfig") -> bool:
    return (
        config.load_best_model_at_end
        or config.save_strategy == "best"
        or config.lr_scheduler_type in METRIC_SCHEDULERS
    )


def _scheduler_settings(config: "AblationConfig") -> Any:
    """The scheduler's arguments, with the direction in which the metric improves; torch's default
    is down."""
    given = config.lr_scheduler_kwargs
    if given is not None and not isinstance(given, dict):
        return given  # JSON text of a command line, which transformers reads later
    return {"mode": "max" if config.greater_is_better else "min", **(given or {})}


def check_best_metric(config: "AblationConfig", sets: Mapping[str, Any]) -> None:
    """Refuse, before training, a metric that no evaluation set has."""
    metric = config.metric_for_best_model
    if config.evaluation == "trl" or metric is None or MAIN in sets:
        return
    name = metric.removeprefix("eval_")
    if not any(name.startswith(f"{key}_") for key in sets):
        raise ConfigurationError(
            f"metric_for_best_model is '{metric}', but every evaluation set has a name "
            f"({', '.join(sets)}), and its metrics begin with this name; use one of these metrics, "
            f"such as 'eval_{next(iter(sets))}_reward'"
        )
