"""The rollouts of a point: drawn by the reference, continued, or given.

Given rollouts are those of another X-ray, or a run's `rollouts/STEP.jsonl`: texts in the order of
the batch, if the run saved whole batches (`num_rollouts_saved` at least the rollout batch). Their
tokens are those of the text, encoded again; rewards are computed again, as for new rollouts.
"""

import itertools
import random
from pathlib import Path
from typing import Any

from accelerate import PartialState
from datasets import Dataset

from trl_ablate.data.questions import check_enough
from trl_ablate.errors import ConfigurationError
from trl_ablate.recipe.named_files import digest_of
from trl_ablate.recipe.resolving import Resolved
from trl_ablate.rewards import MathGrader
from trl_ablate.rewards.functions import completion_text
from trl_ablate.run.json_files import read_jsonl
from trl_ablate.switches import named
from trl_ablate.training.building import task_dataset
from trl_ablate.training.models import checked_tokenizer, starting_model
from trl_ablate.xray.chosen_arms import SAME, XrayArm
from trl_ablate.xray.gradients import key_of
from trl_ablate.xray.stored_rollouts import RolloutFolder
from trl_ablate.xray.taking import Point, take
from trl_ablate.xray.trainer import Sources

OF_THE_DRAW = ("seed", "weights", "recorded")
"""What given rollouts may differ in."""


def drawn(
    reference: XrayArm,
    point: Point,
    folder: Path,
    grader: MathGrader,
    *,
    given: Path | None,
    batches: int,
    seed: int,
    work: Path,
) -> tuple[Sources, dict[str, Any]]:
    """The rollouts of a point, all of them stored, and what they depend on.

    Args:
        folder: where they are stored; what is there is not drawn again.
        given: a folder of stored rollouts, used as it is; or a run's rollouts, which are scored and
            stored in `folder`.
    """
    resolved, about = reference.resolved, about_rollouts(reference, point, seed, given)
    of_run = given if given and given.suffix == ".jsonl" else None
    as_given = None if of_run else given
    asked, completions = read_recorded(of_run, resolved, batches) if of_run else (None, None)
    stored, processes = RolloutFolder(as_given or folder), PartialState()
    if as_given:
        stored.check({key: value for key, value in about.items() if key not in OF_THE_DRAW})
        stored.batches(batches)  # refuses if one is missing
    elif processes.is_main_process:
        stored.begin(about, asked or questions_of(resolved, batches, seed))
    processes.wait_for_everyone()
    questions = stored.questions()[: batches * _questions_per_batch(resolved)]
    sources = Sources(stored, questions, batches, seed, grader, work, completions)
    missing = any(stored.batch(number) is None for number in range(batches))
    processes.wait_for_everyone()
    if missing:
        take(resolved, Point(point.checkpoint), sources, draws=True)
        processes.wait_for_everyone()
    return sources, about


def about_rollouts(
    reference: XrayArm, point: Point, seed: int, given: Path | None
) -> dict[str, Any]:
    """What the rollouts and their stored rewards depend on."""
    settings = reference.settings
    keys = named(*itertools.chain(*SAME.values()), "reward")
    about = {key: settings[key] for key in keys if key in settings} | {"files": reference.files}
    files = sorted(point.checkpoint.glob("*.safetensors")) if point.checkpoint else []
    weights = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    about |= {"seed": seed, "weights": key_of({"files": weights})}
    return about | ({"recorded": _recorded(given)} if given else {})


def _recorded(given: Path) -> str:
    """Path and digest of given rollouts, which may have been replaced since."""
    files = sorted(given.glob("*.npz")) or [given]
    content = [digest_of(file) for file in files if file.is_file()]
    return f"{given} {key_of({'files': content})[:8]}"


def questions_of(resolved: Resolved, batches: int, seed: int) -> list[dict[str, Any]]:
    """Rows of the training set for so many rollout batches, in a seeded order. More batches begin
    with the same questions."""
    dataset, _ = training_set(resolved)
    check_enough(dataset, resolved.config)
    order = list(range(len(dataset)))
    random.Random(seed).shuffle(order)
    wanted = batches * _questions_per_batch(resolved)
    return [dataset[order[place % len(order)]] for place in range(wanted)]


def training_set(resolved: Resolved) -> tuple[Dataset, Any]:
    tokenizer = checked_tokenizer(starting_model(resolved), resolved)
    return task_dataset(resolved.task, "train", tokenizer), tokenizer


def _questions_per_batch(resolved: Resolved) -> int:
    config: Any = resolved.config
    return config.generation_batch_size // config.num_generations


def read_recorded(
    file: Path, resolved: Resolved, batches: int
) -> tuple[list[dict[str, Any]], list[list[int]]]:
    """The first rollout batches of a file: a row of the training set for each group, and the tokens
    of each completion."""
    config: Any = resolved.config
    rows = list(read_jsonl(file))
    wanted, group = batches * config.generation_batch_size, config.num_generations
    if len(rows) < wanted:
        raise ConfigurationError(
            f"{file} has {len(rows)} rollouts, and {batches} rollout batches take {wanted}; lower "
            "--batches, train with a larger num_rollouts_saved, or draw new rollouts"
        )
    dataset, tokenizer = training_set(resolved)
    asked: Any = dataset
    known: dict[str, Any] = {str(row["prompt"]): row for row in asked}
    prompts = [str(row.get("prompt")) for row in rows[:wanted]]
    for first in range(0, wanted, group):
        if len(set(prompts[first : first + group])) > 1:
            raise ConfigurationError(
                f"{file} has no whole groups of {group}: it is a sample of a batch; train with a "
                f"num_rollouts_saved of at least {config.generation_batch_size}, or draw new ones"
            )
        if prompts[first] not in known:
            raise ConfigurationError(
                f"{file} has the prompt {prompts[first][-80:]!r}, which the reference does not "
                "ask: it is of another template, tokenizer or data; draw new rollouts"
            )
    texts = [completion_text(row.get("response") or "") for row in rows[:wanted]]
    completions = [_tokens(text, config, tokenizer) for text in texts]
    return [known[prompt] for prompt in prompts[::group]], completions


def _tokens(response: str, config: Any, tokenizer: Any) -> list[int]:
    """The tokens of a response; its end-of-sequence token, which the text lacks, is added unless a
    stop string or the limit ended it."""
    ids = tokenizer.encode(response, add_special_tokens=False)[: config.max_completion_length]
    stopped = response.endswith(tuple(config.stop or ()))
    cut = len(ids) == config.max_completion_length
    return ids if stopped or cut else [*ids, tokenizer.eos_token_id]
