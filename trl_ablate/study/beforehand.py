"""What the runs of an arm would refuse at their start, found before any of them is started.

Nothing is downloaded, and none of the user's code is executed: questions on the Hub are not read,
and only the run finds out whether a file defines the function that is named.
"""

from collections.abc import Iterable

from trl_ablate.config import AblationConfig
from trl_ablate.data.questions import (
    NAMED_DATASETS,
    Part,
    check_enough,
    load_questions,
    to_prompts,
)
from trl_ablate.data.row_files import is_on_the_hub
from trl_ablate.errors import ConfigurationError
from trl_ablate.miniature.registry import is_miniature
from trl_ablate.named_code import check_file, code_place
from trl_ablate.prompts.writing import prompt_writer
from trl_ablate.recipe.agreement import check_quantization
from trl_ablate.recipe.resolving import Resolved
from trl_ablate.reward_specs import GYM
from trl_ablate.study.definition import Study
from trl_ablate.study.engines.own_files import texts_in
from trl_ablate.switches import named
from trl_ablate.task import TaskArguments


def check_starts(arms: Iterable[tuple[str, Resolved]]) -> None:
    """Check every arm; arms that ask the same questions in the same way are checked once."""
    seen = set()
    for name, resolved in arms:
        config = resolved.config
        batch = (config.generation_batch_size, config.num_generations)
        look = (repr(resolved.task), repr(resolved.model), config.eval_strategy, batch)
        if look in seen:
            continue
        seen.add(look)
        try:
            _check_start(resolved)
        except ConfigurationError as error:
            raise ConfigurationError(f"arm '{name}': {error}") from error


def check_success(study: Study, configs: Iterable[AblationConfig]) -> None:
    """What a study in two parts needs: runs enough to decide, and a base to gain over."""
    from trl_ablate.study.power import check_decides

    what, trials = f"study {study.path}", len(study.tuning.seeds) if study.tuning else 0
    names = study.tuning.arms if study.tuning else study.arms
    first, *others = (len(arm.seeds) - trials for arm in study.arms)
    looks = study.looks or (min(others, default=first),)
    check_decides(looks, first, len(names) - 1, what)
    if study.threshold is None and not all(config.eval_on_start for config in configs):
        raise ConfigurationError(
            f"{what}: without an evaluation before training no gain is known, and so no success; "
            "set eval_on_start: true, or success: {threshold: 0.6}"
        )


def _check_start(resolved: Resolved) -> None:
    task, config = resolved.task, resolved.config
    check_quantization(resolved.model)
    for setting in named("code"):
        for place in map(code_place, texts_in(getattr(task, setting))):
            if place is not None and place.is_file:
                check_file(place, setting)
    train = _check_prompts(task, "train")
    if train is not None:
        check_enough(train, config)
    if config.eval_strategy != "no":
        for one in (task, *map(task.evaluation_task, task.eval_sets or ())):
            _check_prompts(one, "eval")


def _check_prompts(task: TaskArguments, part: Part):
    """The questions with their prompts; None if they are not on this machine."""
    name = task.dataset
    on_the_hub = name in NAMED_DATASETS or (not is_miniature(name) and is_on_the_hub(name))
    if on_the_hub or name.startswith(GYM):
        if task.prompt_column is None:
            prompt_writer(task.template, task.prompt_style, task.system_prompt, None)
        return None
    return to_prompts(load_questions(task, part), task)
